// Fuzz target: opens segments and graphs from untrusted sections and runs every search mode. The input is a small frame:
//   byte 0: kind and codec   byte 1: semantic width, codec   bytes 2-4: documents   then sections: u8 name,
//   u24 length, bytes
// Checksums are computed here, so that damaged contents pass verification.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <string>

#include "../tests/fixture.hpp"
#include "citadel/dispatch.hpp"
#include "frame.hpp"

using namespace citadel;

namespace {

// Every document once, none that is not allowed.
void check(const Result& result, const Snapshot& snapshot, const DocumentSet* allowed) {
  if (std::set<std::int64_t>(result.numbers.begin(), result.numbers.end()).size() != result.numbers.size()) std::abort();
  for (const std::int64_t number : result.numbers) {
    if (number < 0 || static_cast<std::uint64_t>(number) >= snapshot.documents()) std::abort();
    if (allowed != nullptr && !allowed->contains(static_cast<std::uint64_t>(number))) std::abort();
  }
}

// Walks with and without a filter, which keeps what the first one has read.
void search_graph(const Snapshot& snapshot, const Query& query) {
  const fixture::Bytes bitmap(snapshot.documents() / 8 + 1, 0xf1);
  std::vector<DocumentSet> allowed;
  allowed.push_back(snapshot.segments()[0]->allowed(bitmap.data()));
  for (const Semantic mode : {Semantic::graph, Semantic::graph, Semantic::automatic})
    for (const auto* filter : {static_cast<const std::vector<DocumentSet>*>(nullptr), static_cast<const std::vector<DocumentSet>*>(&allowed)}) {
      SearchOptions options;
      options.k = 10, options.effort = 20, options.semantic = mode, options.allowed = filter;
      try {
        check(snapshot.search(query, options), snapshot, filter == nullptr ? nullptr : allowed.data());
      } catch (const CorruptError&) {}
    }
}

// The graph of the frame; null without one.
std::shared_ptr<const Graph> open_graph(fixture::Sections& sections, const Segment& segment) {
  const auto& owned = sections.owned();
  const auto elements = [&](const char* name) { return owned.count(name) ? owned.at(name).first.size() / 4 : 0; };
  if (owned.empty()) return nullptr;
  const std::uint64_t links = elements("GRAPH_LINKS") / std::max<std::uint64_t>(1, segment.documents());
  const std::uint64_t seeds = elements("GRAPH_SEEDS") / std::max<std::uint64_t>(1, segment.lists());
  const GraphShape shape{"graph", segment.documents(), segment.semantic_dimension(), segment.postings(), links, segment.lists(), seeds};
  return std::make_shared<const Graph>(shape, sections.view());
}

void search_all(const Snapshot& snapshot, const Query& query, bool semantic) {
  for (Semantic mode : {Semantic::off, Semantic::rerank, Semantic::exact}) {
    if (mode != Semantic::off && !semantic) continue;
    for (unsigned weight_floor : {0u, 100u}) {
      SearchOptions options;
      options.k = 20, options.candidates = 30, options.probes = 25, options.semantic = mode,
      options.weight_floor = weight_floor;
      try {
        const Result result = snapshot.search(query, options);
        if (result.numbers.size() > snapshot.documents()) std::abort();
        for (const std::int64_t number : result.numbers)
          if (number < 0 || static_cast<std::uint64_t>(number) >= snapshot.documents()) std::abort();
      } catch (const CorruptError&) {}
    }
  }
}

void run(const std::uint8_t* data, std::size_t size) {
  fuzz::Frame frame;
  if (!fuzz::read_frame(data, size, frame)) return;
  fixture::Example& example = frame.example;
  try {
    const fixture::Bytes deleted(example.shape.documents / 8 + 1, 0x11);
    const auto segment = std::make_shared<const Segment>(
        example.shape, example.sections.view(), deleted.data(), fixture::make_codebook(example.shape));
    const Snapshot snapshot({segment}, size % 2 == 0, 0.5f, 0.1f);
    try {
      segment->find_key(3);
      segment->find_term("a");
    } catch (const CorruptError&) {}
    search_all(snapshot, fixture::make_query(*segment), example.shape.semantic_dimension > 0);
    if (const auto graph = open_graph(frame.graph, *segment))
      search_graph(Snapshot({segment}, size % 2 == 0, 0.5f, 0.1f, {graph}), fixture::make_query(*segment));
  } catch (const CorruptError&) {}
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 0) {  // the input selects the instruction set
    static const std::vector<std::string> sets = instruction_sets();
    use_instruction_set(sets[data[size - 1] % sets.size()]);
  }
  run(data, size);
  return 0;
}
