#include "citadel/semantic.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "citadel/topk.hpp"

namespace citadel {
namespace {

constexpr std::uint64_t kMinLists = 8;
constexpr std::size_t kGathered = 32;  // vectors scored together; those of the next group are prefetched

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

// Semantic vectors that lie apart in a segment.
class ScatteredVectors {
 public:
  ScatteredVectors(const Segment& segment, const PreparedQuery& query)
      : segment_(segment), query_(query), is_int8_(segment.semantic_codec() == Codec::int8),
        width_(segment.semantic_dimension() * (is_int8_ ? 1 : 2)), rows_(kGathered * width_ + 64) {}  // kernels may load a whole register

  void prefetch(std::span<const std::uint32_t> documents) const {
    for (const std::uint64_t document : documents) {
      const std::uint8_t* row = segment_.semantic_codes.data() + document * width_;
      const std::size_t before = reinterpret_cast<std::uintptr_t>(row) % 64;  // bytes from the start of the cache line
      for (std::size_t at = 0; at < before + width_; at += 64) __builtin_prefetch(row - before + at);
      if (is_int8_) __builtin_prefetch(segment_.semantic_scales.data() + 2 * document);
    }
  }

  // At most kGathered documents.
  void score(std::span<const std::uint32_t> documents, float* out) {
    std::uint8_t scales[2 * kGathered + 64];
    for (std::size_t i = 0; i < documents.size(); ++i) {
      const std::uint64_t document = documents[i];
      segment_.semantic_codes.verify(document * width_, (document + 1) * width_);
      std::memcpy(rows_.data() + i * width_, segment_.semantic_codes.data() + document * width_, width_);
      if (!is_int8_) continue;
      segment_.semantic_scales.verify(2 * document, 2 * document + 2);
      std::memcpy(scales + 2 * i, segment_.semantic_scales.data() + 2 * document, 2);
    }
    const std::uint64_t d = segment_.semantic_dimension();
    if (is_int8_) query_.kernels.int8(rows_.data(), scales, documents.size(), d, query_.semantic.int8(0), out);
    else query_.kernels.fp16(rows_.data(), documents.size(), d, query_.semantic.floats(0), out);
  }

 private:
  const Segment& segment_;
  const PreparedQuery& query_;
  bool is_int8_;
  std::uint64_t width_;
  std::vector<std::uint8_t> rows_;
};

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

void semantic_scores(const Segment& segment, const PreparedQuery& query, std::span<const std::uint32_t> documents, const Cancel* cancel,
                     float* out) {
  if (documents.empty()) return;
  ScatteredVectors vectors(segment, query);
  std::span<const std::uint32_t> next = documents.first(std::min(kGathered, documents.size()));
  vectors.prefetch(next);
  for (std::size_t start = 0; start < documents.size(); start += kGathered) {
    poll(cancel);
    const std::span<const std::uint32_t> group = next;
    const std::size_t after = start + group.size();
    next = documents.subspan(after, std::min(kGathered, documents.size() - after));
    vectors.prefetch(next);
    vectors.score(group, out + start);
  }
}

std::vector<std::uint32_t> probe(const Segment& segment, const PreparedQuery& query, std::uint64_t probes,
                                 const DocumentSet* allowed, const Cancel* cancel) {
  if (allowed != nullptr && allowed->count() <= probes) return allowed->members();  // as probing every list would find
  std::vector<std::uint32_t> documents;
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
