// The semantic field: one vector per document, scored exhaustively or through a probe structure (IVF).
#pragma once

#include <span>
#include <vector>

#include "citadel/document_set.hpp"
#include "citadel/query.hpp"
#include "citadel/segment.hpp"

namespace citadel {

// Semantic scores of documents [first, first + n).
void semantic_scores(const Segment& segment, const PreparedQuery& query, std::uint64_t first, std::size_t n, float* out);

// Semantic scores of some documents, whose vectors are copied together while the next ones arrive from memory.
void semantic_scores(const Segment& segment, const PreparedQuery& query, std::span<const std::uint32_t> documents, const Cancel* cancel,
                     float* out);

// Documents of the lists nearest to the query, ascending; takes lists until it has at least 8 and `probes` documents.
// With `allowed`, only its documents count.
std::vector<std::uint32_t> probe(const Segment& segment, const PreparedQuery& query, std::uint64_t probes,
                                 const DocumentSet* allowed, const Cancel* cancel);

}  // namespace citadel
