// The graph: 4-bit codes, building, searching, and files with forged contents.
#include <algorithm>
#include <cmath>
#include <set>

#include "check.hpp"
#include "citadel/dispatch.hpp"
#include "citadel/match_postings.hpp"
#include "graph_fixture.hpp"

using namespace citadel;
using fixture::Built;
using fixture::clustered;
using fixture::Example;
using fixture::random_float;

namespace {

constexpr std::uint64_t kDocuments = 3000, kDimension = 48;

void test_nibbles_are_close_and_the_same_everywhere() {
  std::uint32_t state = 3;
  for (const std::size_t d : {1, 5, 64, 127, 128, 200, 384}) {
    std::vector<float> x(d), q(d);
    for (float& value : x) value = random_float(state);
    for (float& value : q) value = random_float(state);
    fixture::Bytes row(nibble_row_bytes(d));
    encode_nibbles(x.data(), d, row.data());
    const NibbleVector vector(q.data(), d);
    double exact = 0, size = 0;
    for (std::size_t j = 0; j < d; ++j) exact += static_cast<double>(x[j]) * q[j], size += static_cast<double>(q[j]) * q[j];
    std::vector<float> scores;
    for (const std::string& name : instruction_sets()) {
      use_instruction_set(name);
      const std::uint8_t* rows[] = {row.data()};
      scores.resize(scores.size() + 1);
      score_nibbles(nibble_dots(), rows, 1, nibble_blocks(d), vector.query(), &scores.back());
      CHECK(scores.back() == scores.front());
    }
    CHECK(d == 1 || std::fabs(scores[0] - exact) < 0.5 * std::sqrt(size));  // a 4-bit step is about 0.2 here
  }
}

void test_posting_matches_are_the_same_everywhere() {
  std::uint32_t state = 4;
  for (std::size_t n = 0; n <= 64; ++n) {
    std::vector<std::uint32_t> postings(n);
    for (std::uint32_t& posting : postings) posting = fixture::next_random(state) >> 24;
    for (const PostingRange range : {PostingRange{0, 0}, PostingRange{10, 100}, PostingRange{200, 1}, PostingRange{0, UINT32_MAX}}) {
      std::uint64_t expected = 0;
      for (std::size_t i = 0; i < n; ++i)
        expected |= std::uint64_t{postings[i] >= range.first && std::uint64_t{postings[i]} < std::uint64_t{range.first} + range.length} << i;
      for (const std::string& name : instruction_sets()) {
        use_instruction_set(name);
        CHECK(match_postings()(postings.data(), n, range) == expected);
      }
    }
  }
}

void test_a_build_does_not_depend_on_threads_or_instruction_sets() {
  const std::vector<float> vectors = clustered(700, kDimension);
  use_instruction_set("portable");
  const Built first(vectors, 700, kDimension, 1);
  for (const std::string& name : instruction_sets()) {
    use_instruction_set(name);
    const Built again(vectors, 700, kDimension, 3);
    CHECK(first.links == again.links && first.nibbles == again.nibbles && first.layout == again.layout);
  }
}

void test_every_row_is_reached_and_has_few_links() {
  const Built built(clustered(kDocuments, kDimension), kDocuments, kDimension, 2);
  CHECK(std::set<std::uint32_t>(built.layout.begin(), built.layout.end()).size() == kDocuments);
  for (std::uint64_t row = 0; row < kDocuments; ++row) {
    const std::uint32_t* own = built.links.data() + row * kBuildLinks;
    const auto count = std::find(own, own + kBuildLinks, kNoLink) - own;
    CHECK(count > 0 && count <= 32);
    CHECK(std::set<std::uint32_t>(own, own + count).size() == static_cast<std::size_t>(count) && std::find(own, own + count, row) == own + count);
  }
}

// Keep a graph without some of its rows and insert others, as a merge does.
std::vector<std::uint32_t> merged(const Built& old, const std::vector<float>& vectors, const std::vector<std::uint32_t>& new_rows, std::uint64_t rows, std::size_t threads) {
  const std::size_t d = kDimension;
  fixture::Bytes nibbles(rows * nibble_row_bytes(d));
  std::vector<std::int8_t> codes(rows * kNibbleBlock * nibble_blocks(d));
  std::vector<float> scales(rows), norms(rows);
  std::vector<std::int32_t> sums(rows);
  std::vector<std::uint32_t> links(rows * kBuildLinks), numbers(rows);
  for (std::uint32_t row = 0; row < rows; ++row) numbers[row] = row;
  GraphBuilder builder({rows, d, nibbles.data(), codes.data(), scales.data(), sums.data(), norms.data(), links.data()}, {});
  builder.put(numbers.data(), vectors.data(), rows);
  builder.adopt(old.links.data(), new_rows.data(), new_rows.size(), kBuildLinks, threads, nullptr);
  while (builder.inserted() < rows) builder.insert_batch(threads, nullptr);
  builder.finish(threads, nullptr);
  return links;
}

void test_a_kept_graph_loses_dropped_rows_and_takes_new_ones() {
  const std::vector<float> vectors = clustered(900, kDimension);
  const Built old(vectors, 600, kDimension, 1);
  std::vector<std::uint32_t> new_rows(600), kept;
  std::vector<float> now;
  for (std::uint32_t row = 0; row < 900; ++row) {
    if (row < 600) new_rows[row] = row % 4 == 1 ? kNoLink : static_cast<std::uint32_t>(now.size() / kDimension);
    if (row < 600 && row % 4 == 1) continue;
    now.insert(now.end(), vectors.begin() + row * kDimension, vectors.begin() + (row + 1) * kDimension);
  }
  const std::uint64_t rows = now.size() / kDimension;
  use_instruction_set("portable");
  const std::vector<std::uint32_t> first = merged(old, now, new_rows, rows, 1);
  for (const std::string& name : instruction_sets()) {
    use_instruction_set(name);
    CHECK(merged(old, now, new_rows, rows, 3) == first);
  }
  for (std::uint64_t row = 0; row < rows; ++row) {
    const std::uint32_t* own = first.data() + row * kBuildLinks;
    const auto count = std::find(own, own + kBuildLinks, kNoLink) - own;
    CHECK(count > 0 && count <= 32 && std::all_of(own, own + count, [&](std::uint32_t target) { return target < rows && target != row; }));
    CHECK(std::set<std::uint32_t>(own, own + count).size() == static_cast<std::size_t>(count));
  }
  std::vector<std::uint32_t> alone(600, kNoLink);  // of a row all of whose neighbours were dropped
  alone[5] = 0, alone[590] = 1;
  CHECK(merged(old, now, alone, rows, 2).size() == rows * kBuildLinks);
}

void test_a_kept_graph_is_checked() {
  const std::vector<float> vectors = clustered(100, kDimension);
  Built old(vectors, 100, kDimension, 1);
  std::vector<std::uint32_t> same(100);
  for (std::uint32_t row = 0; row < 100; ++row) same[row] = row;
  for (const auto& [at, value] : {std::pair{3u, 4u}, {3u, 100u}, {0u, 99u}}) {  // twice, outside, a gap after dropping 99
    std::vector<std::uint32_t> wrong = same;
    wrong[at] = value;
    if (value == 99u) wrong[99] = kNoLink;
    CHECK_THROWS(std::invalid_argument, merged(old, vectors, wrong, 100, 2));
  }
  old.links[7 * kBuildLinks] = 100;
  CHECK_THROWS(std::invalid_argument, merged(old, vectors, same, 100, 2));
}

void test_a_cancelled_build_stops() {
  const std::vector<float> vectors = clustered(300, kDimension);
  fixture::Bytes nibbles(300 * nibble_row_bytes(kDimension));
  std::vector<std::int8_t> codes(300 * kNibbleBlock);
  std::vector<float> scales(300), norms(300);
  std::vector<std::int32_t> sums(300);
  std::vector<std::uint32_t> links(300 * kBuildLinks), numbers(300);
  GraphBuilder builder({300, kDimension, nibbles.data(), codes.data(), scales.data(), sums.data(), norms.data(), links.data()}, {});
  Cancel cancel;
  builder.insert_batch(1, &cancel);
  cancel.set();
  CHECK_THROWS(CancelledError, builder.insert_batch(1, &cancel));
  CHECK(builder.inserted() == 1);
  CHECK_THROWS(std::logic_error, builder.finish(1, nullptr));
  const std::uint32_t outside = 300;
  CHECK_THROWS(std::invalid_argument, builder.put(&outside, vectors.data(), 1));
}

// A segment with clustered semantic vectors, and its graph.
struct World {
  World(const char* kind, const char* codec) : example(fixture::make_example(kind, codec, kDocuments, 900, 4, kDimension)), graph(fixture::put_graph(example)) {}

  Snapshot open(const std::uint8_t* deleted = nullptr) {
    return Snapshot({std::make_shared<const Segment>(example.shape, example.sections.view(), deleted, fixture::make_codebook(example.shape))}, true, 0.5f, 0.1f,
                    {std::make_shared<const Graph>(fixture::graph_shape(example), graph.view())});
  }

  Example example;
  fixture::Sections graph;
};

double overlap(const Result& a, const Result& b) {
  const std::set<std::int64_t> known(b.numbers.begin(), b.numbers.end());
  double same = 0;
  for (const std::int64_t number : a.numbers) same += static_cast<double>(known.count(number));
  return same / static_cast<double>(b.numbers.size());
}

// Every returned document has the score that a scan gives it, bit for bit; most of the best are found.
void check_against_exact(const Snapshot& snapshot, SearchOptions options) {
  const Query query = fixture::make_query(*snapshot.segments()[0]);
  options.k = 20, options.effort = 200, options.semantic = Semantic::graph;
  use_instruction_set("portable");
  const Result graph = snapshot.search(query, options);
  for (const std::string& name : instruction_sets()) {
    use_instruction_set(name);
    const Result again = snapshot.search(query, options);
    CHECK(again.numbers == graph.numbers && again.scores == graph.scores && again.dots == graph.dots);
  }
  options.k = kDocuments, options.semantic = Semantic::exact;
  Result exact = snapshot.search(query, options);
  std::map<std::int64_t, float> scores;
  for (std::size_t i = 0; i < exact.numbers.size(); ++i) scores[exact.numbers[i]] = exact.scores[i];
  for (std::size_t i = 0; i < graph.numbers.size(); ++i) CHECK(scores.at(graph.numbers[i]) == graph.scores[i]);
  exact.numbers.resize(20);
  CHECK(graph.numbers.size() == 20 && overlap(graph, exact) > 0.6);
}

void test_scores_are_those_of_a_scan() {
  const std::pair<const char*, const char*> cases[] = {{"vectors", "int8"}, {"vectors", "fp16"}, {"vectors", "pq2"}, {"sparse", "fp16"}, {"none", "fp16"}};
  for (const auto& [kind, codec] : cases) {
    World world(kind, codec);
    const Snapshot snapshot = world.open();
    for (const unsigned floor : {0u, 100u}) {
      SearchOptions options;
      options.weight_floor = floor;
      check_against_exact(snapshot, options);
    }
  }
}

void test_deleted_documents_are_only_passed_through() {
  World world("vectors", "int8");
  fixture::Bytes deleted(kDocuments / 8 + 1, 0x33);
  check_against_exact(world.open(deleted.data()), {});
}

// Walks that go around most documents, around few, and through them.
void test_filtered_walks_return_allowed_documents_with_their_scores() {
  for (const char* kind : {"vectors", "sparse", "none"}) {
    World world(kind, std::string(kind) == "vectors" ? "int8" : "fp16");
    fixture::Bytes deleted(kDocuments / 8 + 1, 0x33);
    for (const std::uint8_t* none : {static_cast<const std::uint8_t*>(nullptr), static_cast<const std::uint8_t*>(deleted.data())}) {
      const Snapshot snapshot = world.open(none);
      for (const int bits : {0xf0, 0xfe, 0xff}) {
        fixture::Bytes bitmap(kDocuments / 8 + 1, static_cast<std::uint8_t>(bits));
        bitmap[3] = 0;
        const std::vector<DocumentSet> allowed{snapshot.segments()[0]->allowed(bitmap.data())};
        SearchOptions options;
        options.allowed = &allowed;
        check_against_exact(snapshot, options);
      }
    }
  }
}

void test_few_allowed_documents_are_all_returned() {
  World world("vectors", "int8");
  fixture::Bytes deleted(kDocuments / 8 + 1, 0x33), bitmap(kDocuments / 8 + 1, 0);
  bitmap[7] = 0xff;
  const Snapshot snapshot = world.open(deleted.data());
  const std::vector<DocumentSet> few{snapshot.segments()[0]->allowed(bitmap.data())};
  SearchOptions options;
  options.allowed = &few, options.semantic = Semantic::graph, options.k = 20;
  CHECK(snapshot.search(fixture::make_query(*snapshot.segments()[0]), options).numbers.size() == 4);
}

// A filter that separates the rows from each other: the walk ends early, and a scan takes over.
void test_a_walk_that_is_cut_off_does_not_shorten_a_result() {
  World world("vectors", "int8");
  world.graph.put("GRAPH_LINKS", fixture::bytes_of(std::vector<std::uint32_t>(32 * kDocuments, kNoLink)));
  const Snapshot snapshot = world.open();
  const fixture::Bytes bitmap(kDocuments / 8 + 1, 0x55);
  const std::vector<DocumentSet> allowed{snapshot.segments()[0]->allowed(bitmap.data())};
  SearchOptions options;
  options.allowed = &allowed, options.semantic = Semantic::graph, options.effort = 100, options.k = 1;
  const Query query = fixture::make_query(*snapshot.segments()[0]);
  const Result graph = snapshot.search(query, options);
  options.semantic = Semantic::exact;
  CHECK(graph.numbers == snapshot.search(query, options).numbers);
}

// `automatic` scans a segment that is too small for its graph, and k as large as the segment returns all of it.
void test_a_scan_takes_over_where_a_graph_does_not_pay() {
  World world("vectors", "int8");
  const Snapshot snapshot = world.open();
  const Query query = fixture::make_query(*snapshot.segments()[0]);
  for (const Semantic mode : {Semantic::automatic, Semantic::graph}) {
    SearchOptions options;
    options.k = kDocuments, options.semantic = mode;
    const Result all = snapshot.search(query, options);
    options.semantic = Semantic::exact;
    const Result exact = snapshot.search(query, options);
    CHECK(all.numbers == exact.numbers && all.scores == exact.scores);
  }
}

void test_rows_that_nothing_links_to_do_not_shorten_a_result() {
  World world("vectors", "int8");
  world.graph.put("GRAPH_LINKS", fixture::bytes_of(std::vector<std::uint32_t>(32 * kDocuments, kNoLink)));
  const Snapshot snapshot = world.open();
  const Query query = fixture::make_query(*snapshot.segments()[0]);
  SearchOptions options;
  options.k = 300, options.semantic = Semantic::graph;
  const Result graph = snapshot.search(query, options);
  options.semantic = Semantic::exact;
  CHECK(graph.numbers == snapshot.search(query, options).numbers);
}

void search_or_throw(World& world) {
  try {
    const Snapshot snapshot = world.open();
    const Query query = fixture::make_query(*snapshot.segments()[0]);
    for (const std::string& name : instruction_sets()) {
      use_instruction_set(name);
      SearchOptions options;
      options.k = 50, options.effort = 100, options.semantic = Semantic::graph;
      const fixture::Bytes bitmap(kDocuments / 8 + 1, 0x0f);
      const std::vector<DocumentSet> allowed{snapshot.segments()[0]->allowed(bitmap.data())};
      for (const auto* filter : {static_cast<const std::vector<DocumentSet>*>(nullptr), &allowed}) {
        options.allowed = filter;
        const Result result = snapshot.search(query, options);
        CHECK(std::set<std::int64_t>(result.numbers.begin(), result.numbers.end()).size() == result.numbers.size());
        for (const std::int64_t number : result.numbers) {
          CHECK(number >= 0 && static_cast<std::uint64_t>(number) < kDocuments);
          CHECK(filter == nullptr || allowed[0].contains(static_cast<std::uint64_t>(number)));
        }
      }
    }
  } catch (const CorruptError&) {
  }
}

// Contents with valid checksums that no builder writes: an error or a ranking, never a crash.
void test_forged_sections_do_no_harm() {
  World world("vectors", "int8");
  const auto whole = world.graph.owned();
  std::uint32_t state = 77;
  for (const auto& [name, entry] : whole) {
    const fixture::Bytes& good = entry.first;
    std::vector<fixture::Bytes> forged{fixture::Bytes(good.size(), 0x00), fixture::Bytes(good.size(), 0xff), fixture::Bytes(good.size(), 0x01),
                                       fixture::random_bytes(good.size(), 9), {}, fixture::Bytes(good.begin(), good.end() - 1)};
    for (int i = 0; i < 20; ++i) {
      fixture::Bytes changed = good;
      for (int byte = 0; byte < 40; ++byte) changed[fixture::next_random(state) % changed.size()] = static_cast<std::uint8_t>(fixture::next_random(state) >> 24);
      forged.push_back(std::move(changed));
    }
    for (fixture::Bytes& bytes : forged) {
      world.graph.put(name, bytes);
      search_or_throw(world);
    }
    world.graph.put(name, good);
  }
  search_or_throw(world);
}

void test_forged_links_and_entries_are_named() {
  for (const char* name : {"GRAPH_LINKS", "GRAPH_ENTRIES", "GRAPH_SEEDS", "GRAPH_NUMBERS"}) {
    World world("vectors", "int8");
    const fixture::Bytes& weights = world.example.sections.owned().at("WEIGHTS").first;
    world.example.sections.put("WEIGHTS", fixture::Bytes(weights.size(), 0));  // so that the seeds are read
    fixture::Bytes bytes = world.graph.owned().at(name).first;
    for (std::size_t at = 0; at + 4 <= bytes.size(); at += 4) std::memcpy(bytes.data() + at, &kDocuments, 4);
    world.graph.put(name, bytes);
    const Snapshot snapshot = world.open();
    SearchOptions options;
    options.semantic = Semantic::graph;
    CHECK_THROWS(CorruptError, snapshot.search(fixture::make_query(*snapshot.segments()[0]), options));
    options.semantic = Semantic::exact;
    CHECK(snapshot.search(fixture::make_query(*snapshot.segments()[0]), options).numbers.size() == 10);
  }
}

void test_a_graph_of_another_segment_is_refused() {
  World world("vectors", "int8");
  Example other = fixture::make_example("vectors", "int8", kDocuments, 800, 4, kDimension);
  const auto segment = std::make_shared<const Segment>(other.shape, other.sections.view(), nullptr, nullptr);
  const auto graph = std::make_shared<const Graph>(fixture::graph_shape(world.example), world.graph.view());
  CHECK_THROWS(CorruptError, Snapshot({segment}, true, 0, 0, {graph}));
}

}  // namespace

int main() {
  test_nibbles_are_close_and_the_same_everywhere();
  test_posting_matches_are_the_same_everywhere();
  test_a_build_does_not_depend_on_threads_or_instruction_sets();
  test_every_row_is_reached_and_has_few_links();
  test_a_kept_graph_loses_dropped_rows_and_takes_new_ones();
  test_a_kept_graph_is_checked();
  test_a_cancelled_build_stops();
  test_scores_are_those_of_a_scan();
  test_deleted_documents_are_only_passed_through();
  test_filtered_walks_return_allowed_documents_with_their_scores();
  test_few_allowed_documents_are_all_returned();
  test_a_walk_that_is_cut_off_does_not_shorten_a_result();
  test_a_scan_takes_over_where_a_graph_does_not_pay();
  test_rows_that_nothing_links_to_do_not_shorten_a_result();
  test_forged_sections_do_no_harm();
  test_forged_links_and_entries_are_named();
  test_a_graph_of_another_segment_is_refused();
  std::puts("graph: ok");
}
