// The token stage: scores ranges of 2^15 documents, adding list after list into accumulators that fit in the L2 cache.
#pragma once

#include <vector>

#include "citadel/cursor.hpp"
#include "citadel/search.hpp"
#include "citadel/topk.hpp"

namespace citadel {

constexpr std::uint64_t kRange = 1 << 15;

// A document whose token score is needed regardless of its rank.
struct Wanted {
  std::uint32_t document;
  float token_score;
};

// One segment's part of a query. Shared read-only by all threads, except that each entry of `wanted` is written by the
// thread that scans its range.
struct SegmentPlan {
  const Segment* segment;
  std::uint64_t base;
  std::vector<Group> groups;
  std::uint64_t postings;        // summed over the query tokens
  std::vector<Wanted> wanted;    // by ascending document
  const DocumentSet* allowed = nullptr;
  bool is_searched = false;      // through its graph, so that it needs no scan
  const SegmentPlan* next = nullptr;  // the segment that the same thread scans afterwards, or null

  bool admits(std::uint64_t document) const { return allowed != nullptr ? allowed->contains(document) : !segment->is_deleted(document); }
  const DocumentSet* selected() const { return allowed != nullptr && allowed->is_selective() ? allowed : nullptr; }
};

struct ScanPlan {
  const PreparedQuery& query;
  ScoringRules rules;
  bool semantic;                 // add every document's semantic score
  const Cancel* cancel;
  StageClock* clock = nullptr;   // times the stages; requires a single thread
  bool keeps_selected = false;   // for later searches with the same filter; requires a single thread
};

// Score documents [begin, end) of a segment into `best`. `begin` is a multiple of kRange. Returns the postings scored.
std::uint64_t scan(SegmentPlan& segment, const ScanPlan& plan, std::uint64_t begin, std::uint64_t end, TopK& best);

}  // namespace citadel
