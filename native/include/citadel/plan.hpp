// Which lists a query reads in each segment, checked against the snapshot.
#pragma once

#include <vector>

#include "citadel/scan.hpp"
#include "citadel/search.hpp"

namespace citadel {

// Throws std::invalid_argument where the query does not fit the snapshot.
void check_query(const Snapshot& snapshot, const Query& query, Semantic semantic);

std::vector<SegmentPlan> plan_segments(const Snapshot& snapshot, const Query& query, const Cancel* cancel);

}  // namespace citadel
