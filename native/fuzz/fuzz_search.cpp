// Fuzz target: opens segments from untrusted sections and runs every search mode. The input is a small frame:
//   byte 0: kind and codec   byte 1: semantic width, codec   bytes 2-4: documents   then sections: u8 name,
//   u24 length, bytes
// Checksums are computed here, so that damaged contents pass verification.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "../tests/fixture.hpp"
#include "citadel/dispatch.hpp"
#include "frame.hpp"

using namespace citadel;

namespace {

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
  fixture::Example example;
  if (!fuzz::read_frame(data, size, example)) return;
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
