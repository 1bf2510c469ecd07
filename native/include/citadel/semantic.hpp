// The semantic field: one vector a document, scored in order or through a probe structure.
#pragma once

#include <vector>

#include "citadel/query.hpp"
#include "citadel/segment.hpp"

namespace citadel {

// Semantic scores of documents first … first + n.
void semantic_scores(const Segment& segment, const PreparedQuery& query, std::uint64_t first, std::size_t n, float* out);

// Documents of the centroids nearest to the query: at least 8 lists and `probes` documents, ascending.
std::vector<std::uint32_t> probe(const Segment& segment, const PreparedQuery& query, std::uint64_t probes, const Cancel* cancel);

}  // namespace citadel
