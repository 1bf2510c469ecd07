#include "citadel/semantic.hpp"

#include <algorithm>
#include <string>

#include "citadel/topk.hpp"

namespace citadel {
namespace {

constexpr std::uint64_t kMinLists = 8;

std::vector<Scored> ranked_centroids(const Segment& segment, const PreparedQuery& query) {
  const std::uint64_t lists = segment.probe_lists();
  std::vector<float> scores(lists);
  segment.probe_centroids.verify(0, segment.probe_centroids.size());
  query.kernels.fp32(segment.probe_centroids.data(), lists, segment.semantic_dimension(), query.semantic.floats(0), scores.data());
  std::vector<Scored> ranked(lists);
  for (std::uint64_t i = 0; i < lists; ++i) ranked[i] = {scores[i] == scores[i] ? scores[i] : 0.0f, i};  // NaN would break the sort
  std::sort(ranked.begin(), ranked.end(), better);
  return ranked;
}

// Returns the number of documents read.
std::uint64_t append_list(const Segment& segment, std::uint64_t list, const DocumentSet* allowed, std::vector<std::uint32_t>& documents) {
  const Span span = segment.probe_list(list);
  segment.probe_documents.verify(4 * span.begin, 4 * span.end);
  for (std::uint64_t i = span.begin; i < span.end; ++i) {
    const auto document = load<std::uint32_t>(segment.probe_documents.data(), i);
    if (document >= segment.documents()) segment.probe_documents.corrupt("document number " + std::to_string(document) + " does not exist");
    if (allowed == nullptr || allowed->contains(document)) documents.push_back(document);
  }
  return span.end - span.begin;
}

}  // namespace

void semantic_scores(const Segment& segment, const PreparedQuery& query, std::uint64_t first, std::size_t n, float* out) {
  const std::uint64_t d = segment.semantic_dimension();
  const bool int8 = segment.semantic_codec() == Codec::int8;
  const std::uint64_t width = int8 ? d : 2 * d;
  segment.semantic_codes.verify(first * width, (first + n) * width);
  const std::uint8_t* codes = segment.semantic_codes.data() + first * width;
  if (!int8) return query.kernels.fp16(codes, n, d, query.semantic.floats(0), out);
  segment.semantic_scales.verify(2 * first, 2 * (first + n));
  query.kernels.int8(codes, segment.semantic_scales.data() + 2 * first, n, d, query.semantic.int8(0), out);
}

std::vector<std::uint32_t> probe(const Segment& segment, const PreparedQuery& query, std::uint64_t probes,
                                 const DocumentSet* allowed, const Cancel* cancel) {
  std::vector<std::uint32_t> documents;
  if (allowed != nullptr && allowed->count() <= probes) {  // all of them, as probing every list would find
    for (std::uint64_t next = allowed->next(0); next != DocumentSet::kEnd; next = allowed->next(next + 1))
      documents.push_back(static_cast<std::uint32_t>(next));
    return documents;
  }
  std::uint64_t taken = 0, read = 0;
  for (const Scored& centroid : ranked_centroids(segment, query)) {
    if (taken >= kMinLists && documents.size() >= probes) break;
    poll(cancel);
    read += append_list(segment, centroid.number, allowed, documents);
    ++taken;
    // Damaged starts may repeat the same documents without end.
    if (read > segment.documents()) segment.probe_starts.corrupt("probe lists overlap");
  }
  std::sort(documents.begin(), documents.end());
  documents.erase(std::unique(documents.begin(), documents.end()), documents.end());
  return documents;
}

}  // namespace citadel
