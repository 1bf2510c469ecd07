// Search compared with a naive loop, across instruction sets and thread counts, and with damaged sections.
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

void test_sparse_search_equals_naive_loop() {
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
      float& maximum = best.try_emplace(example.lists[list][i], value).first->second;
      maximum = std::max(maximum, value);
    }
    for (const auto& [document, value] : best) sums[document] += value;
  }
  std::vector<Scored> expected;
  for (const auto& [document, score] : sums) expected.push_back({score, document});
  std::sort(expected.begin(), expected.end(), better);
  expected.resize(500);
  SearchOptions options;
  options.k = 500;
  const Result actual = Snapshot({segment}, false, 0, 0).search(query, options);
  CHECK(actual.numbers.size() == 500 && actual.dots == 5 * 3000);
  for (std::size_t i = 0; i < 500; ++i)
    CHECK(actual.numbers[i] == static_cast<std::int64_t>(expected[i].number) && actual.scores[i] == expected[i].score);
}

bool same(const Result& a, const Result& b) {
  return a.numbers == b.numbers && a.scores == b.scores && a.dots == b.dots;
}

// Four tokens of 105,000 postings: enough for a query to use several threads.
void test_threads_and_instruction_sets_agree() {
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

// `keeps`: searches keep the postings of these documents for later ones.
std::vector<DocumentSet> every_nth(const Snapshot& snapshot, std::uint64_t step, bool keeps = true) {
  std::vector<DocumentSet> sets;
  for (const auto& segment : snapshot.segments()) {
    fixture::Bytes bitmap(divide_up(segment->documents(), 8));
    for (std::uint64_t n = step / 2; n < segment->documents(); n += step) bitmap[n >> 3] |= static_cast<std::uint8_t>(1u << (n & 7));
    sets.push_back(segment->allowed(bitmap.data()));
    if (!keeps) sets.back().lists().close();
  }
  return sets;
}

// The allowed documents of a full ranking, in its order.
Result filtered(const Result& all, const std::vector<DocumentSet>& allowed, std::size_t k) {
  Result out;
  for (std::size_t i = 0; i < all.numbers.size() && out.numbers.size() < k; ++i)
    if (allowed[0].contains(static_cast<std::uint64_t>(all.numbers[i]))) out.numbers.push_back(all.numbers[i]), out.scores.push_back(all.scores[i]);
  return out;
}

// Few and many allowed documents take different paths: both equal filtering the ranking of all documents.
void test_filtered_search_equals_filtered_ranking() {
  for (const Case& c : kCases)
    for (const std::uint64_t step : {1, 3, 40, 1000, 30'000, 200'000}) {
      Example example = fixture::make_example(c.kind, c.codec, 110'000, 20'000, 3, c.semantic);
      const Snapshot snapshot({open(example)}, true, 0.5f, 0.1f);
      const Query query = fixture::make_query(*snapshot.segments()[0]);
      const std::vector<DocumentSet> allowed = every_nth(snapshot, step), unkept = every_nth(snapshot, step, false);
      for (Semantic mode : {Semantic::off, Semantic::exact}) {
        if (mode != Semantic::off && c.semantic == 0) continue;
        for (const unsigned floor : {0u, 128u}) {
          SearchOptions options;
          options.k = 110'000, options.semantic = mode, options.weight_floor = floor;
          const Result expected = filtered(snapshot.search(query, options), allowed, 40);
          options.k = 40;
          for (const std::string& name : instruction_sets()) {
            use_instruction_set(name);
            for (const unsigned run : {0u, 1u, 2u, 3u}) {
              options.allowed = run < 2 ? &allowed : &unkept, options.threads = 1 + 2 * (run % 2);
              const Result actual = snapshot.search(query, options);
              CHECK(actual.numbers == expected.numbers && actual.scores == expected.scores);
            }
          }
        }
      }
    }
}

// `rerank` probes until it has enough allowed documents; with few of them it scores all and is exact.
void test_filtered_rerank_scores_allowed_documents() {
  Example example = fixture::make_example("vectors", "int8", 110'000, 20'000, 3, 48);
  const Snapshot snapshot({open(example)}, true, 0.5f, 0.1f);
  const Query query = fixture::make_query(*snapshot.segments()[0]);
  for (const std::uint64_t step : {2, 40, 1000, 200'000}) {
    const std::vector<DocumentSet> allowed = every_nth(snapshot, step);
    SearchOptions options;
    options.k = 50, options.semantic = Semantic::rerank, options.allowed = &allowed;
    const Result reranked = snapshot.search(query, options);
    CHECK(reranked.numbers.size() == std::min<std::uint64_t>(50, allowed[0].count()));
    for (const std::int64_t number : reranked.numbers) CHECK(allowed[0].contains(static_cast<std::uint64_t>(number)));
    options.semantic = Semantic::exact;
    const Result exact = snapshot.search(query, options);
    CHECK(allowed[0].count() > 1000 || exact.numbers == reranked.numbers);
  }
}

// Several segments with deletions: a filter never allows a deleted document, and a batch with threads equals single searches.
void test_filters_deletions_and_segments() {
  Example first = fixture::make_example("vectors", "int8", 9'000, 3'000, 3, 48), second = fixture::make_example("vectors", "int8", 500, 90, 3, 48);
  fixture::Bytes deleted(divide_up(9'000, 8));
  for (std::uint64_t n = 0; n < 9'000; n += 7) deleted[n >> 3] |= static_cast<std::uint8_t>(1u << (n & 7));
  const Snapshot snapshot({std::make_shared<const Segment>(first.shape, first.sections.view(), deleted.data(), nullptr), open(second)}, true, 0, 0);
  Query query = fixture::make_query(*snapshot.segments()[0]);
  query.segments = 2, query.lists.insert(query.lists.end(), query.lists.begin(), query.lists.end());
  for (const std::uint64_t step : {1, 2, 9, 64, 5'000, 20'000}) {
    const std::vector<DocumentSet> allowed = every_nth(snapshot, step), unkept = every_nth(snapshot, step, false);
    for (Semantic mode : {Semantic::off, Semantic::rerank, Semantic::exact}) {
      SearchOptions options;
      options.k = 9'500, options.semantic = mode, options.candidates = options.probes = mode == Semantic::rerank ? 10'000 : 40;
      Result expected;
      const Result all = snapshot.search(query, options);
      for (std::size_t i = 0; i < all.numbers.size(); ++i) {
        const auto number = static_cast<std::uint64_t>(all.numbers[i]);
        if (allowed[number >= 9'000].contains(number >= 9'000 ? number - 9'000 : number))
          expected.numbers.push_back(all.numbers[i]), expected.scores.push_back(all.scores[i]);
      }
      options.allowed = &allowed, options.threads = 3;
      for (const std::string& name : instruction_sets()) {
        use_instruction_set(name);
        for (const Result& actual : snapshot.search_batch({&query, &query, &query}, options))
          CHECK(actual.numbers == expected.numbers && actual.scores == expected.scores);
      }
      options.allowed = &unkept;
      const Result fresh = snapshot.search(query, options);
      CHECK(fresh.numbers == expected.numbers && fresh.scores == expected.scores);
      options.candidates = options.probes = 20, options.k = 5;  // few candidates
      const Result few = snapshot.search(query, options);
      CHECK(mode == Semantic::off || few.numbers.size() == std::min<std::uint64_t>(5, allowed[0].count() + allowed[1].count()));
      for (const std::int64_t number : few.numbers) CHECK(number >= 9'000 || number % 7 != 0);
    }
  }
}

// Damage is noticed on the paths that read single rows, too.
void test_filtered_searches_verify_checksums() {
  for (const char* name : {"SEMANTIC_CODES", "SEMANTIC_SCALES", "CODES", "SCALES"}) {
    Example example = fixture::make_example("vectors", "int8", 9'000, 3'000, 3, 48);
    auto view = example.sections.view();
    fixture::Bytes bytes = example.sections.owned().at(name).first;
    bytes[bytes.size() / 2] ^= 1;
    view[name].data = bytes.data();
    const Snapshot flipped({std::make_shared<const Segment>(example.shape, view, nullptr, nullptr)}, true, 0, 0);
    const std::vector<DocumentSet> allowed = every_nth(flipped, 50);
    SearchOptions options;
    options.semantic = Semantic::exact, options.allowed = &allowed;
    CHECK_THROWS(CorruptError, flipped.search(fixture::make_query(*flipped.segments()[0]), options));
  }
}

// Concurrent searches of one fresh segment race to verify its checksums.
void test_concurrent_verification() {
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

void test_cancelled_search_throws() {
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

// A search that throws must not leave its sums to the next one on the same thread.
void test_accumulators_are_reset_after_an_error() {
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

void test_wrong_checksums_and_sizes_are_detected() {
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
  test_sparse_search_equals_naive_loop();
  test_threads_and_instruction_sets_agree();
  test_filtered_search_equals_filtered_ranking();
  test_filtered_rerank_scores_allowed_documents();
  test_filters_deletions_and_segments();
  test_filtered_searches_verify_checksums();
  test_concurrent_verification();
  test_cancelled_search_throws();
  test_accumulators_are_reset_after_an_error();
  test_wrong_checksums_and_sizes_are_detected();
  std::puts("search: ok");
}
