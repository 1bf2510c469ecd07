// Searches one segment through its graph: a walk steered by 4-bit codes, then exact scores of the rows it found.
#pragma once

#include "citadel/graph.hpp"
#include "citadel/scan.hpp"

namespace citadel {

struct GraphTask {
  const Graph& graph;
  const SegmentPlan& plan;
  std::size_t segment;   // its number in the snapshot
  const PreparedQuery& query;
  const ScoringRules& rules;
  const Cancel* cancel;
  std::uint64_t k;       // at most the documents of the snapshot
  std::uint64_t effort;  // rows that are scored exactly; at least k are
};

// Documents that are not deleted and that the filter allows.
inline std::uint64_t admitted(const SegmentPlan& plan) { return plan.allowed != nullptr ? plan.allowed->count() : plan.segment->live(); }

inline double admitted_share(const SegmentPlan& plan) {
  return static_cast<double>(admitted(plan)) / static_cast<double>(std::max<std::uint64_t>(1, plan.segment->documents()));
}

// Whether the graph is likely to be faster than a scan: not for a large k nor if few documents are allowed.
bool graph_pays(const GraphTask& task);

// Push the segment's best documents. Returns false, and pushes none, if the graph led to fewer than k and the segment has
// more. Adds the vectors that were scored to `dots`.
bool search_graph(const GraphTask& task, TopK& best, std::uint64_t& dots);

}  // namespace citadel
