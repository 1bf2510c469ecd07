// Reading and writing the frame of a fuzz input.
#pragma once

#include <algorithm>
#include <array>
#include <string>

#include "../tests/fixture.hpp"

namespace citadel::fuzz {

struct Variant {
  const char *kind, *codec;
};

constexpr std::array<Variant, 7> kVariants = {{{"vectors", "int8"},
                                               {"vectors", "fp16"},
                                               {"vectors", "pq2"},
                                               {"vectors", "pq1"},
                                               {"sparse", "fp16"},
                                               {"bm25", "fp16"},
                                               {"none", "fp16"}}};

constexpr std::array<const char*, 26> kNames = {"KEYS",
                                                "LIST_STARTS",
                                                "BLOCK_STARTS",
                                                "BLOCK_DOCUMENTS",
                                                "BLOCK_OFFSETS",
                                                "PACKED_DOCUMENTS",
                                                "WEIGHTS",
                                                "CODES",
                                                "SCALES",
                                                "VALUES",
                                                "TERM_OFFSETS",
                                                "TERM_BYTES",
                                                "LENGTHS",
                                                "COUNT_OFFSETS",
                                                "PACKED_COUNTS",
                                                "SEMANTIC_CODES",
                                                "SEMANTIC_SCALES",
                                                "PROBE_CENTROIDS",
                                                "PROBE_STARTS",
                                                "PROBE_DOCUMENTS",
                                                "GRAPH_ROWS",
                                                "GRAPH_LINKS",
                                                "GRAPH_NUMBERS",
                                                "GRAPH_ENTRIES",
                                                "GRAPH_SEEDS",
                                                "GRAPH_POSTINGS"};
constexpr std::size_t kFirstOfGraph = 20;

// A segment and the sections of its graph, none if it has no graph.
struct Frame {
  fixture::Example example;
  fixture::Sections graph;
};

inline bool read_frame(const std::uint8_t* data, std::size_t size, Frame& frame) {
  if (size < 5) return false;
  const Variant& variant = kVariants[data[0] % kVariants.size()];
  const std::uint64_t documents =
      data[2] | data[3] << 8 | (data[4] & 1) << 16;  // at most 131,071, to keep searches short
  frame.example.shape = {"fuzz",
                         documents,
                         variant.kind,
                         variant.codec,
                         data[1] & 0x80 ? "int8" : "fp16",
                         std::string(variant.kind) == "vectors" ? 32u : 0u,
                         data[1] & 0x7fu};
  for (std::size_t at = 5; size - at >= 4;) {
    const std::size_t length =
        std::min<std::size_t>(data[at + 1] | data[at + 2] << 8 | data[at + 3] << 16, size - at - 4);
    const std::size_t name = data[at] % kNames.size();
    fixture::Sections& sections = name < kFirstOfGraph ? frame.example.sections : frame.graph;
    sections.put(kNames[name], {data + at + 4, data + at + 4 + length});
    at += 4 + length;
  }
  return true;
}

inline fixture::Bytes write_frame(const Frame& frame, std::size_t variant) {
  const fixture::Example& example = frame.example;
  const std::uint64_t documents = example.shape.documents;
  fixture::Bytes out{static_cast<std::uint8_t>(variant),
                     static_cast<std::uint8_t>(example.shape.semantic_dimension |
                                               (example.shape.semantic_codec == "int8" ? 0x80u : 0u)),
                     static_cast<std::uint8_t>(documents), static_cast<std::uint8_t>(documents >> 8),
                     static_cast<std::uint8_t>(documents >> 16)};
  for (std::size_t name = 0; name < kNames.size(); ++name) {
    const auto& sections = (name < kFirstOfGraph ? example.sections : frame.graph).owned();
    const auto it = sections.find(kNames[name]);
    if (it == sections.end()) continue;
    const fixture::Bytes& bytes = it->second.first;
    out.push_back(static_cast<std::uint8_t>(name));
    for (int shift : {0, 8, 16}) out.push_back(static_cast<std::uint8_t>(bytes.size() >> shift));
    out.insert(out.end(), bytes.begin(), bytes.end());
  }
  return out;
}

}  // namespace citadel::fuzz
