// The lists a query reads in each segment.
#pragma once

#include <vector>

#include "citadel/scan.hpp"
#include "citadel/search.hpp"

namespace citadel {

// Throws std::invalid_argument if the query does not match the snapshot.
void check_query(const Snapshot& snapshot, const Query& query, Semantic semantic);

std::vector<SegmentPlan> plan_segments(const Snapshot& snapshot, const Query& query, const Cancel* cancel);

}  // namespace citadel
