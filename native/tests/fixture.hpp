// Small segments with valid checksums for the C++ tests and the fuzzer.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "citadel/crc32c.hpp"
#include "citadel/search.hpp"

namespace citadel::fixture {

using Bytes = std::vector<std::uint8_t>;

template <typename T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes out(values.size() * sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), values.data(), out.size());
  return out;
}

// Owns the bytes a segment borrows.
class Sections {
 public:
  void put(const std::string& name, Bytes bytes) { owned_[name] = {std::move(bytes), {}}; }

  const std::map<std::string, SectionBytes>& view() {
    for (auto& [name, entry] : owned_) {
      entry.second = bytes_of(crc32c_blocks(entry.first.data(), entry.first.size(), Section::kCrcBlock));
      view_[name] = {entry.first.data(), entry.first.size(), entry.second.data(), entry.second.size() / 4};
    }
    return view_;
  }

  const std::map<std::string, std::pair<Bytes, Bytes>>& owned() const { return owned_; }

 private:
  std::map<std::string, std::pair<Bytes, Bytes>> owned_;
  std::map<std::string, SectionBytes> view_;
};

struct Example {
  SegmentShape shape;
  Sections sections;
  std::vector<std::vector<std::uint32_t>> lists;  // document numbers
};

inline std::uint32_t next_random(std::uint32_t& state) { return state = state * 1664525u + 1013904223u; }

inline void put_lists(Example& example, std::uint64_t per_list, std::size_t count, std::uint32_t seed) {
  std::vector<std::uint64_t> starts{0}, blocks{0};
  std::vector<std::uint32_t> all;
  for (std::size_t list = 0; list < count; ++list) {
    std::vector<std::uint32_t> numbers(per_list);
    std::uint64_t at = 0;
    for (std::uint32_t& number : numbers) {
      at += (next_random(seed) >> 16) % std::max<std::uint64_t>(1, 2 * example.shape.documents / per_list);
      number = static_cast<std::uint32_t>(std::min(at, example.shape.documents - 1));
    }
    all.insert(all.end(), numbers.begin(), numbers.end());
    starts.push_back(all.size()), blocks.push_back(blocks.back() + divide_up(per_list, kBlock));
    example.lists.push_back(std::move(numbers));
  }
  PackedDocuments packed = pack_documents(all.data(), all.size(), starts.data(), count);
  example.sections.put("LIST_STARTS", bytes_of(starts));
  example.sections.put("BLOCK_STARTS", bytes_of(blocks));
  example.sections.put("BLOCK_DOCUMENTS", bytes_of(packed.firsts));
  example.sections.put("BLOCK_OFFSETS", bytes_of(packed.offsets));
  example.sections.put("PACKED_DOCUMENTS", std::move(packed.bytes));
}

inline void put_counts(Example& example, std::uint64_t per_list, std::size_t count) {
  std::vector<std::uint64_t> starts;
  for (std::size_t list = 0; list <= count; ++list) starts.push_back(list * per_list);
  std::vector<std::uint32_t> counts(per_list * count);
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] = static_cast<std::uint32_t>(1 + i % 3);
  PackedCounts packed = pack_counts(counts.data(), counts.size(), starts.data(), count);
  example.sections.put("COUNT_OFFSETS", bytes_of(packed.offsets));
  example.sections.put("PACKED_COUNTS", std::move(packed.bytes));
  example.sections.put("LENGTHS", bytes_of(std::vector<std::uint32_t>(example.shape.documents, 7)));
  std::vector<std::uint64_t> ends;
  for (std::size_t list = 0; list <= count; ++list) ends.push_back(list);
  example.sections.put("TERM_OFFSETS", bytes_of(ends));
  example.sections.put("TERM_BYTES", Bytes(count, 'a'));
}

inline Bytes random_bytes(std::uint64_t n, std::uint32_t seed) {
  Bytes out(n);
  for (std::uint8_t& byte : out) byte = static_cast<std::uint8_t>(next_random(seed) >> 24);
  return out;
}

inline Bytes halves(std::uint64_t n) {
  std::vector<std::uint16_t> out(n);
  for (std::uint64_t i = 0; i < n; ++i)
    out[i] = static_cast<std::uint16_t>(0x3000u + 37 * i % 0x0c00u);  // 0.125 … 2
  return bytes_of(out);
}

inline std::uint64_t code_bytes(const SegmentShape& shape) {
  if (shape.codec == "pq2") return shape.dimension / 4;
  if (shape.codec == "pq1") return shape.dimension / 8;
  return shape.codec == "int8" ? shape.dimension : 2 * shape.dimension;
}

inline void put_semantic(Example& example) {
  const std::uint64_t n = example.shape.documents, s = example.shape.semantic_dimension, centroids = 10;
  const bool int8 = example.shape.semantic_codec == "int8";
  example.sections.put("SEMANTIC_CODES", int8 ? random_bytes(n * s, 5) : halves(n * s));
  if (int8) example.sections.put("SEMANTIC_SCALES", halves(n));
  std::vector<float> vectors(centroids * s);
  for (std::size_t i = 0; i < vectors.size(); ++i) vectors[i] = static_cast<float>(i % 7) - 3.0f;
  std::vector<std::uint64_t> starts;
  for (std::uint64_t c = 0; c <= centroids; ++c) starts.push_back(c * n / centroids);
  std::vector<std::uint32_t> numbers(n);
  for (std::uint32_t i = 0; i < n; ++i) numbers[i] = i;
  example.sections.put("PROBE_CENTROIDS", bytes_of(vectors));
  example.sections.put("PROBE_STARTS", bytes_of(starts));
  example.sections.put("PROBE_DOCUMENTS", bytes_of(numbers));
}

inline Example make_example(const std::string& kind, const std::string& codec, std::uint64_t documents,
                            std::uint64_t per_list, std::size_t lists, std::uint64_t semantic) {
  Example example;
  example.shape = {
      "example", documents, kind, codec, semantic % 2 == 0 ? "int8" : "fp16", kind == "vectors" ? 32u : 0u,
      semantic};
  if (kind != "none") put_lists(example, per_list, lists, 11);
  const std::uint64_t postings = per_list * lists;
  std::vector<std::uint32_t> keys(lists);
  for (std::uint32_t i = 0; i < lists; ++i) keys[i] = 3 * i;
  if (kind == "vectors" || kind == "sparse") {
    example.sections.put("KEYS", bytes_of(keys));
    example.sections.put("WEIGHTS", random_bytes(postings, 3));
  }
  if (kind == "bm25") put_counts(example, per_list, lists);
  if (kind == "sparse") example.sections.put("VALUES", halves(postings));
  if (kind == "vectors") {
    const std::uint64_t bytes = postings * code_bytes(example.shape);
    example.sections.put("CODES", codec == "fp16" ? halves(bytes / 2) : random_bytes(bytes, 9));
    if (codec == "int8") example.sections.put("SCALES", halves(postings));
  }
  if (semantic > 0) put_semantic(example);
  return example;
}

inline std::shared_ptr<const Codebook> make_codebook(const SegmentShape& shape) {
  if (shape.codec != "pq1" && shape.codec != "pq2") return nullptr;
  const std::size_t sub = shape.codec == "pq1" ? 8 : 4, subvectors = shape.dimension / sub;
  std::vector<float> centroids(subvectors * kCentroids * sub);
  for (std::size_t i = 0; i < centroids.size(); ++i) centroids[i] = static_cast<float>(i % 17) * 0.25f - 2.0f;
  return std::make_shared<Codebook>(centroids.data(), subvectors, sub, std::vector<std::uint32_t>{0, 6},
                                    std::vector<float>{0.5f, 2.0f}, 1.0f);
}

// A query that reads the segment's first six lists, the first of them twice.
inline Query make_query(const Segment& segment) {
  Query query;
  query.segments = 1;
  for (std::uint64_t list = 0; list < std::min<std::uint64_t>(segment.lists(), 6); ++list)
    query.lists.push_back(static_cast<std::int64_t>(list));
  if (!query.lists.empty()) query.lists.insert(query.lists.begin(), 0);
  query.tokens = query.lists.size();
  query.weights.assign(query.tokens, 1.5f);
  query.dimension = segment.dimension();
  for (std::size_t i = 0; segment.kind() == Kind::vectors && i < query.tokens * query.dimension; ++i)
    query.vectors.push_back(static_cast<float>(i * 7 % 11) - 4.5f);
  for (std::size_t i = 0; i < segment.semantic_dimension(); ++i)
    query.semantic.push_back(static_cast<float>(i % 5) - 1.75f);
  return query;
}

}  // namespace citadel::fixture
