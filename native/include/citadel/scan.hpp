// The token stage: ranges of 2^15 documents, lists added one after the other into an accumulator that fits the L2 cache.
#pragma once

#include <vector>

#include "citadel/cursor.hpp"
#include "citadel/search.hpp"
#include "citadel/topk.hpp"

namespace citadel {

constexpr std::uint64_t kRange = 1 << 15;

// A document whose token score is wanted whatever its rank.
struct Wanted {
  std::uint32_t document;
  float token_score;
};

// One segment's part of a query; read by all threads, except `wanted`, whose entries each belong to one range.
struct SegmentPlan {
  const Segment* segment;
  std::uint64_t base;
  std::vector<Group> groups;
  std::uint64_t postings;        // of all query tokens
  std::vector<Wanted> wanted;    // ascending documents
};

struct ScanPlan {
  const PreparedQuery& query;
  ScoringRules rules;
  bool semantic;                 // add the semantic part to every document
  const Cancel* cancel;
  StageClock* clock = nullptr;   // where stages are timed; then one thread alone scans
};

// Scores documents begin … end (begin a multiple of kRange) of a segment into `best`.
void scan(SegmentPlan& segment, const ScanPlan& plan, std::uint64_t begin, std::uint64_t end, TopK& best);

}  // namespace citadel
