// Graphs of small segments for tests.
#pragma once

#include <algorithm>
#include <cstring>

#include "citadel/graph.hpp"
#include "citadel/graph_builder.hpp"
#include "fixture.hpp"

namespace citadel::fixture {

inline float random_float(std::uint32_t& state) { return static_cast<float>(next_random(state) >> 8) / 8388608.0f - 1.0f; }

// Rows around a few centres, as passages lie around topics.
inline std::vector<float> clustered(std::uint64_t rows, std::size_t d) {
  std::uint32_t state = 5;
  std::vector<float> centres(40 * d), vectors(rows * d);
  for (float& x : centres) x = random_float(state);
  for (std::uint64_t row = 0; row < rows; ++row) {
    const float* centre = centres.data() + (next_random(state) >> 16) % 40 * d;
    for (std::size_t j = 0; j < d; ++j) vectors[row * d + j] = centre[j] + 0.5f * random_float(state);
  }
  return vectors;
}

// A graph's arrays, built.
struct Built {
  Built(const std::vector<float>& vectors, std::uint64_t rows, std::size_t d, std::size_t threads)
      : nibbles(rows * nibble_row_bytes(d)), codes(rows * kNibbleBlock * nibble_blocks(d)), scales(rows), norms(rows), sums(rows), links(rows * kBuildLinks) {
    GraphBuilder builder({rows, d, nibbles.data(), codes.data(), scales.data(), sums.data(), norms.data(), links.data()}, {});
    std::vector<std::uint32_t> numbers(rows);
    for (std::uint32_t row = 0; row < rows; ++row) numbers[row] = row;
    builder.put(numbers.data(), vectors.data(), rows);
    while (builder.inserted() < rows) builder.insert_batch(threads, nullptr);
    builder.finish(threads, nullptr);
    layout = builder.layout();
    entries = builder.entries();
  }

  Bytes nibbles;
  std::vector<std::int8_t> codes;
  std::vector<float> scales, norms;
  std::vector<std::int32_t> sums;
  std::vector<std::uint32_t> links, layout, entries;
};

// Give a segment clustered semantic vectors, and return the sections of its graph.
inline Sections put_graph(Example& example) {
  const std::uint64_t documents = example.shape.documents, d = example.shape.semantic_dimension;
  const std::vector<float> vectors = clustered(documents, d);
  const Int8Vectors coded = quantize_int8(vectors.data(), documents, d);
  example.sections.put("SEMANTIC_CODES", bytes_of(coded.codes));
  example.sections.put("SEMANTIC_SCALES", bytes_of(coded.scales));
  const Built built(vectors, documents, d, 1);
  const std::size_t width = graph_row_bytes(d), signature_at = nibble_row_bytes(d);
  std::vector<std::uint32_t> ranks(documents), links, postings, seeds, entries;
  for (std::uint32_t row = 0; row < documents; ++row) ranks[built.layout[row]] = row;
  std::vector<std::vector<std::uint32_t>> own(documents), own_lists(documents);
  std::uint32_t posting = 0;
  for (std::uint32_t list = 0; list < example.lists.size(); ++list)
    for (const std::uint32_t document : example.lists[list]) own[document].push_back(posting++), own_lists[document].push_back(list);
  Bytes rows(documents * width);
  for (std::size_t row = 0; row < documents; ++row) {
    const std::uint32_t document = built.layout[row];
    std::memcpy(rows.data() + row * width, built.nibbles.data() + document * signature_at, signature_at);
    for (const std::uint32_t list : own_lists[document]) {
      const std::uint32_t bit = signature_bit(list);
      rows[row * width + signature_at + bit / 8] |= static_cast<std::uint8_t>(1u << bit % 8);
    }
    const std::uint32_t bounds[] = {static_cast<std::uint32_t>(postings.size()), static_cast<std::uint32_t>(postings.size() + own[document].size())};
    std::memcpy(rows.data() + row * width + 4, bounds, sizeof bounds);
    postings.insert(postings.end(), own[document].begin(), own[document].end());
    for (std::size_t i = 0; i < 32; ++i) {
      const std::uint32_t target = built.links[document * kBuildLinks + i];
      links.push_back(target == kNoLink ? kNoLink : ranks[target]);
    }
  }
  for (const auto& list : example.lists) seeds.push_back(ranks[list[0]]), seeds.push_back(kNoLink);
  for (const std::uint32_t row : built.entries) entries.push_back(ranks[row]);
  Sections graph;
  graph.put("GRAPH_ROWS", rows), graph.put("GRAPH_LINKS", bytes_of(links)), graph.put("GRAPH_NUMBERS", bytes_of(built.layout));
  graph.put("GRAPH_ENTRIES", bytes_of(entries)), graph.put("GRAPH_SEEDS", bytes_of(seeds)), graph.put("GRAPH_POSTINGS", bytes_of(postings));
  return graph;
}

inline GraphShape graph_shape(const Example& example) {
  std::uint64_t postings = 0;
  for (const auto& list : example.lists) postings += list.size();
  return {"graph", example.shape.documents, example.shape.semantic_dimension, postings, 32, example.lists.size(), 2};
}

}  // namespace citadel::fixture
