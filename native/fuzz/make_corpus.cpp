// Write the seed corpus: one small valid segment of each kind, segments with a graph, and hostile graphs.
#include <cstdio>
#include <fstream>
#include <string>
#include <utility>

#include "../tests/graph_fixture.hpp"
#include "frame.hpp"

namespace {

using namespace citadel;

constexpr std::uint64_t kDocuments = 64, kPerList = 60;

void write(const std::string& path, const fuzz::Frame& frame, std::size_t variant) {
  const fixture::Bytes bytes = fuzz::write_frame(frame, variant);
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

fuzz::Frame with_graph(std::size_t variant) {
  const auto [kind, codec] = fuzz::kVariants[variant];
  fuzz::Frame frame{fixture::make_example(kind, codec, kDocuments, kPerList, 2, 16), {}};
  frame.graph = fixture::put_graph(frame.example);
  return frame;
}

// Every row links to the next one and itself, so that a walk goes round.
std::vector<std::uint32_t> ring() {
  std::vector<std::uint32_t> links;
  for (std::uint32_t row = 0; row < kDocuments; ++row)
    for (std::uint32_t i = 0; i < 32; ++i) links.push_back(i % 2 == 0 ? row : (row + 1) % kDocuments);
  return links;
}

// Graphs that no builder writes, by the section that differs.
void write_hostile(const std::string& folder) {
  const auto repeated = [](std::uint32_t value, std::size_t n) { return std::vector<std::uint32_t>(n, value); };
  const std::pair<const char*, std::vector<std::uint32_t>> contents[] = {
      {"GRAPH_LINKS", ring()},
      {"GRAPH_LINKS", repeated(kDocuments, 32 * kDocuments)},
      {"GRAPH_LINKS", repeated(kNoLink, 32 * kDocuments)},
      {"GRAPH_ENTRIES", {kDocuments, kNoLink}},
      {"GRAPH_ENTRIES", repeated(5, kDocuments)},
      {"GRAPH_SEEDS", repeated(kDocuments + 1, 4)},
      {"GRAPH_NUMBERS", repeated(7, kDocuments)},
      {"GRAPH_POSTINGS", repeated(UINT32_MAX, 2 * kPerList)},
      {"GRAPH_ROWS", repeated(0x7fc00000, kDocuments * graph_row_bytes(16) / 4)},  // NaN as a step
  };
  int number = 0;
  for (const auto& [name, values] : contents) {
    fuzz::Frame frame = with_graph(0);
    frame.graph.put(name, fixture::bytes_of(values));
    write(folder + "/hostile-graph-" + std::to_string(++number), frame, 0);
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return std::fprintf(stderr, "usage: make_corpus FOLDER\n"), 2;
  for (std::size_t i = 0; i < fuzz::kVariants.size(); ++i) {
    const auto [kind, codec] = fuzz::kVariants[i];
    const std::uint64_t semantic = i == 0 ? 16 : i == 1 ? 5 : i == 6 ? 8 : 0;
    const fixture::Example example =
        fixture::make_example(kind, codec, i == 4 ? 70'000 : 90, i < 2 ? 30 : 150, 2, semantic);
    write(std::string(arguments[1]) + "/" + kind + "-" + codec, {example, {}}, i);
  }
  for (const std::size_t variant : {0, 4, 6}) write(std::string(arguments[1]) + "/graph-" + fuzz::kVariants[variant].kind, with_graph(variant), variant);
  write_hostile(arguments[1]);
}
