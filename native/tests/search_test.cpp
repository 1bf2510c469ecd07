// Search against a naive loop, under every instruction set and several threads, and hostile sections.
#include <atomic>
#include <bit>
#include <thread>

#include "check.hpp"
#include "citadel/dispatch.hpp"
#include "citadel/half.hpp"
#include "citadel/topk.hpp"
#include "fixture.hpp"

using namespace citadel;
using fixture::Example;

namespace {

struct Case {
  const char *kind, *codec;
  std::uint64_t semantic;
};

constexpr Case kCases[] = {{"vectors", "int8", 48}, {"vectors", "fp16", 33}, {"vectors", "pq2", 0}, {"vectors", "pq1", 16},
                           {"sparse", "fp16", 0},   {"bm25", "fp16", 0},     {"none", "fp16", 32}};

std::shared_ptr<const Segment> open(Example& example) {
  return std::make_shared<const Segment>(example.shape, example.sections.view(), nullptr, fixture::make_codebook(example.shape));
}

// Sparse scores are simple enough to be added up here by hand.
void test_sparse_against_a_loop() {
  Example example = fixture::make_example("sparse", "fp16", 100'000, 3000, 4, 0);
  const auto segment = open(example);
  const Query query = fixture::make_query(*segment);
  const fixture::Bytes& values = example.sections.owned().at("VALUES").first;
  std::map<std::uint64_t, float> sums;
  for (std::size_t token = 0; token < query.tokens; ++token) {
    const auto list = static_cast<std::size_t>(query.lists[token]);
    std::map<std::uint64_t, float> best;
    for (std::size_t i = 0; i < 3000; ++i) {
      const float value = 1.5f * half_to_float(load<std::uint16_t>(values.data(), list * 3000 + i));
      float& most = best.try_emplace(example.lists[list][i], value).first->second;
      most = std::max(most, value);
    }
    for (const auto& [document, value] : best) sums[document] += value;
  }
  std::vector<Scored> want;
  for (const auto& [document, score] : sums) want.push_back({score, document});
  std::sort(want.begin(), want.end(), better);
  want.resize(500);
  SearchOptions options;
  options.k = 500;
  const Result got = Snapshot({segment}, false, 0, 0).search(query, options);
  CHECK(got.numbers.size() == 500 && got.dots == 5 * 3000);
  for (std::size_t i = 0; i < 500; ++i) CHECK(got.numbers[i] == static_cast<std::int64_t>(want[i].number) && got.scores[i] == want[i].score);
}

bool same(const Result& a, const Result& b) {
  return a.numbers == b.numbers && a.scores == b.scores && a.dots == b.dots;
}

// Four tokens of 105,000 postings: enough that a query is split over threads.
void test_threads_and_sets_agree() {
  for (const Case& c : kCases) {
    Example example = fixture::make_example(c.kind, c.codec, 110'000, 105'000, 3, c.semantic);
    const Snapshot snapshot({open(example)}, true, 0.5f, 0.1f);
    const Query query = fixture::make_query(*snapshot.segments()[0]);
    for (Semantic mode : {Semantic::off, Semantic::rerank, Semantic::exact}) {
      if (mode != Semantic::off && c.semantic == 0) continue;
      SearchOptions options;
      options.k = 50, options.semantic = mode;
      use_instruction_set("portable");
      const Result first = snapshot.search(query, options);
      options.threads = 3;
      for (const std::string& name : instruction_sets()) {
        use_instruction_set(name);
        CHECK(same(first, snapshot.search(query, options)));
      }
      for (const Result& result : snapshot.search_batch({&query, &query, &query}, options)) CHECK(same(first, result));
    }
  }
}

// Concurrent searches of one fresh segment race to verify its checksums.
void test_concurrent_first_touch() {
  Example example = fixture::make_example("vectors", "int8", 20'000, 20'000, 3, 48);
  const Snapshot snapshot({open(example)}, true, 0, 0);
  const Query query = fixture::make_query(*snapshot.segments()[0]);
  SearchOptions options;
  options.semantic = Semantic::exact;
  std::vector<Result> results(4);
  std::vector<std::thread> threads;
  for (Result& result : results) threads.emplace_back([&] { result = snapshot.search(query, options); });
  for (std::thread& thread : threads) thread.join();
  for (const Result& result : results) CHECK(same(results[0], result) && result.numbers.size() == 10);
}

void test_cancel() {
  Example example = fixture::make_example("vectors", "int8", 20'000, 20'000, 3, 0);
  const Snapshot snapshot({open(example)}, true, 0, 0);
  const Query query = fixture::make_query(*snapshot.segments()[0]);
  Cancel cancel;
  SearchOptions options;
  options.cancel = &cancel;
  const Result before = snapshot.search(query, options);
  cancel.set();
  CHECK_THROWS(CancelledError, snapshot.search(query, options));
  options.cancel = nullptr;
  CHECK(same(before, snapshot.search(query, options)));
}

// A search stopped half-way must not leave its sums to the next one on the same thread.
void test_corruption_half_way() {
  Example good = fixture::make_example("sparse", "fp16", 50'000, 5000, 2, 0), bad = fixture::make_example("sparse", "fp16", 50'000, 5000, 2, 0);
  fixture::Bytes firsts = bad.sections.owned().at("BLOCK_DOCUMENTS").first;
  std::fill(firsts.end() - 4, firsts.end(), std::uint8_t{0xff});  // the last block starts at a document that does not exist
  bad.sections.put("BLOCK_DOCUMENTS", firsts);
  const Snapshot whole({open(good)}, false, 0, 0), broken({open(bad)}, false, 0, 0);
  const Query query = fixture::make_query(*whole.segments()[0]);
  const Result before = whole.search(query, {});
  CHECK_THROWS(CorruptError, broken.search(query, {}));
  CHECK(same(before, whole.search(query, {})));
}

void test_wrong_checksum_and_sizes() {
  Example example = fixture::make_example("vectors", "int8", 1000, 500, 3, 48);
  auto view = example.sections.view();
  fixture::Bytes codes = example.sections.owned().at("CODES").first;
  codes[100] ^= 1;
  view["CODES"].data = codes.data();
  const Snapshot flipped({std::make_shared<const Segment>(example.shape, view, nullptr, nullptr)}, true, 0, 0);
  CHECK_THROWS(CorruptError, flipped.search(fixture::make_query(*flipped.segments()[0]), {}));
  for (const auto& [name, entry] : example.sections.owned()) {
    Example shorter = fixture::make_example("vectors", "int8", 1000, 500, 3, 48);
    fixture::Bytes bytes = entry.first;
    bytes.pop_back();
    if (name == "PACKED_DOCUMENTS") bytes.clear();
    shorter.sections.put(name, bytes);
    CHECK_THROWS(CorruptError, open(shorter));
  }
}

}  // namespace

int main() {
  test_sparse_against_a_loop();
  test_threads_and_sets_agree();
  test_concurrent_first_touch();
  test_cancel();
  test_corruption_half_way();
  test_wrong_checksum_and_sizes();
  std::puts("search: ok");
}
