#include "citadel/query.hpp"

namespace citadel {
namespace {

std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

}  // namespace

PreparedVectors::PreparedVectors(const float* vectors, std::size_t n, std::size_t d)
    : code_width_(round_up(d, kQueryPadding)),
      float_width_(round_up(d, kLanes)),
      codes_(n * code_width_),
      sums_(n),
      scales_(n),
      floats_(n * float_width_) {
  for (std::size_t i = 0; i < n; ++i) {
    std::int8_t* codes = codes_.data() + i * code_width_;
    scales_[i] = quantize_query(vectors + i * d, d, codes);
    for (std::size_t j = 0; j < d; ++j) {
      sums_[i] += codes[j];
      floats_[i * float_width_ + j] = vectors[i * d + j];
    }
  }
}

PreparedQuery::PreparedQuery(const Query& source, const std::vector<std::shared_ptr<const Segment>>& segments,
                             const Kernels& set)
    : query(source),
      kernels(set),
      semantic(source.semantic.data(), source.semantic.empty() ? 0 : 1, source.semantic.size()) {
  if (source.vectors.empty()) return;
  tokens = PreparedVectors(source.vectors.data(), source.tokens, source.dimension);
  for (const auto& segment : segments) {
    const Codebook* book = segment->codebook().get();
    if (segment->kind() != Kind::vectors || segment->codec() != Codec::pq || tables_.count(book) != 0)
      continue;
    const std::size_t size = book->subvectors() * kCentroids;
    Tables& tables = tables_[book];
    tables.entries.resize(source.tokens * 2 * size);
    std::vector<float> scratch(size);
    for (std::size_t i = 0; i < source.tokens; ++i)
      tables.steps.push_back(set.pq_table(book->centroids(), book->subvectors(), book->sub(),
                                          source.vectors.data() + i * source.dimension, scratch.data(),
                                          &tables.entries[i * 2 * size]));
  }
}

PqTable PreparedQuery::table(const Codebook* codebook, std::size_t token) const {
  const Tables& tables = tables_.at(codebook);
  return {tables.entries.data() + token * 2 * codebook->subvectors() * kCentroids, tables.steps[token]};
}

}  // namespace citadel
