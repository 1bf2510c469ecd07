// Bindings: segments, snapshots, queries, filters and the search.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <map>
#include <optional>
#include <stdexcept>

#include "citadel/graph_builder.hpp"
#include "snapshot.hpp"

using namespace nb::literals;

namespace citadel::python {
namespace {

void require_finite(const float* values, std::size_t n, std::size_t width, const std::string& what) {
  for (std::size_t i = 0; i < n; ++i)
    if (!std::isfinite(values[i])) throw std::invalid_argument(what + " " + std::to_string(i / width) + " of the query has a value that is not finite");
}

// A segment and the Python buffers it reads.
struct PySegment {
  PySegment() = default;
  PySegment(PySegment&&) = default;

  std::vector<std::unique_ptr<Buffer>> buffers;
  std::shared_ptr<const Segment> segment;
};

SectionBytes section_bytes(std::vector<std::unique_ptr<Buffer>>& buffers, nb::handle data, nb::handle crcs) {
  buffers.push_back(std::make_unique<Buffer>(data));
  const Buffer& bytes = *buffers.back();
  buffers.push_back(std::make_unique<Buffer>(crcs));
  const Buffer& sums = *buffers.back();
  return {bytes.data(), bytes.size(), sums.data(), sums.size() / 4};
}

std::map<std::string, SectionBytes> named_sections(std::vector<std::unique_ptr<Buffer>>& buffers, nb::sequence sections) {
  std::map<std::string, SectionBytes> by_name;
  for (nb::handle entry : sections) {
    const nb::tuple section = nb::cast<nb::tuple>(entry);
    if (section.size() != 3) throw std::invalid_argument("a section is (name, bytes, checksums)");
    by_name[nb::cast<std::string>(section[0])] = section_bytes(buffers, section[1], section[2]);
  }
  return by_name;
}

void make_segment(PySegment* self, const std::string& name, std::uint64_t documents, const std::string& kind, std::uint64_t dimension,
                  const std::string& codec, std::uint64_t semantic_dimension, const std::string& semantic_codec,
                  nb::sequence sections, nb::object deleted, std::shared_ptr<Codebook> codebook) {
  PySegment result;
  const std::map<std::string, SectionBytes> by_name = named_sections(result.buffers, sections);
  const std::uint8_t* bitmap = nullptr;
  if (!deleted.is_none()) {
    result.buffers.push_back(std::make_unique<Buffer>(deleted));
    if (result.buffers.back()->size() < divide_up(documents, 8)) throw std::invalid_argument("the bitmap of deleted documents is too short");
    bitmap = result.buffers.back()->data();
  }
  SegmentShape shape{name, documents, kind, codec, semantic_codec, dimension, semantic_dimension};
  result.segment = std::make_shared<const Segment>(std::move(shape), by_name, bitmap, std::move(codebook));
  new (self) PySegment(std::move(result));
}

void make_codebook(Codebook* self, Array<float, 3> centroids, Array<std::uint32_t, 1> keys, Array<float, 1> scales, float global_scale) {
  if (centroids.shape(1) != kCentroids) throw std::invalid_argument("centroids must be [S, 256, d/S]");
  if (centroids.shape(0) == 0 || centroids.shape(2) == 0) throw std::invalid_argument("a codebook needs at least one sub-vector");
  if (keys.shape(0) != scales.shape(0)) throw std::invalid_argument("scale_keys and key_scales must have the same length");
  new (self) Codebook(centroids.data(), centroids.shape(0), centroids.shape(2), {keys.data(), keys.data() + keys.size()},
                      {scales.data(), scales.data() + scales.size()}, global_scale);
}

void make_query(Query* self, Array<std::int64_t, 2> lists, Array<float, 1> weights, std::optional<Array<float, 2>> vectors,
                std::optional<Array<float, 1>> semantic) {
  Query query;
  query.segments = lists.shape(0), query.tokens = lists.shape(1);
  if (weights.shape(0) != query.tokens) throw std::invalid_argument("lists and weights must have the same number of query tokens");
  query.lists.assign(lists.data(), lists.data() + lists.size());
  query.weights.assign(weights.data(), weights.data() + weights.size());
  require_finite(query.weights.data(), query.weights.size(), 1, "the weight of token");
  if (vectors) {
    if (vectors->shape(0) != query.tokens) throw std::invalid_argument("lists and vectors must have the same number of query tokens");
    query.dimension = vectors->shape(1);
    query.vectors.assign(vectors->data(), vectors->data() + vectors->size());
    require_finite(query.vectors.data(), query.vectors.size(), std::max<std::size_t>(1, query.dimension), "the vector of token");
  }
  if (semantic) query.semantic.assign(semantic->data(), semantic->data() + semantic->size());
  require_finite(query.semantic.data(), query.semantic.size(), std::max<std::size_t>(1, query.semantic.size()), "semantic vector");
  new (self) Query(std::move(query));
}

// A graph and the Python buffers it reads.
struct PyGraph {
  PyGraph() = default;
  PyGraph(PyGraph&&) = default;

  std::vector<std::unique_ptr<Buffer>> buffers;
  std::shared_ptr<const Graph> graph;
};

void make_graph(PyGraph* self, const std::string& name, std::uint64_t rows, std::uint64_t dimension, std::uint64_t postings, std::uint64_t links,
                std::uint64_t lists, std::uint64_t seeds, nb::sequence sections) {
  PyGraph result;
  std::map<std::string, SectionBytes> by_name = named_sections(result.buffers, sections);
  result.graph = std::make_shared<const Graph>(GraphShape{name, rows, dimension, postings, links, lists, seeds}, by_name);
  new (self) PyGraph(std::move(result));
}

template <typename T, int Dimensions>
using Output = nb::ndarray<T, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;

// A builder and the arrays it fills.
struct PyGraphBuilder {
  std::vector<nb::object> owners;
  GraphBuilder builder;
};

void make_graph_builder(PyGraphBuilder* self, std::uint64_t dimension, Output<std::uint8_t, 2> nibbles, Output<std::int8_t, 2> codes,
                        Output<float, 1> scales, Output<std::int32_t, 1> sums, Output<float, 1> norms, Output<std::uint32_t, 2> links,
                        std::size_t links_per_row, std::size_t width, float reach) {
  const std::uint64_t rows = nibbles.shape(0);
  const bool fits = nibbles.shape(1) == nibble_row_bytes(dimension) && codes.shape(0) == rows && codes.shape(1) == kNibbleBlock * nibble_blocks(dimension) &&
                    scales.shape(0) == rows && sums.shape(0) == rows && norms.shape(0) == rows && links.shape(0) == rows && links.shape(1) == kBuildLinks;
  if (!fits) throw std::invalid_argument("the arrays of a graph do not fit each other");
  const GraphArrays arrays{rows, dimension, nibbles.data(), codes.data(), scales.data(), sums.data(), norms.data(), links.data()};
  std::vector<nb::object> owners{nb::cast(nibbles), nb::cast(codes), nb::cast(scales), nb::cast(sums), nb::cast(norms), nb::cast(links)};
  new (self) PyGraphBuilder{std::move(owners), GraphBuilder(arrays, GraphRules{links_per_row, width, reach})};
}

void adopt_links(PyGraphBuilder& self, Array<std::uint32_t, 2> links, Array<std::uint32_t, 1> new_rows, std::size_t threads, const Cancel* cancel) {
  if (links.shape(0) != new_rows.shape(0)) throw std::invalid_argument("links and new_rows have different lengths");
  const nb::gil_scoped_release release;
  self.builder.adopt(links.data(), new_rows.data(), links.shape(0), links.shape(1), threads, cancel);
}

void put_vectors(PyGraphBuilder& self, Array<std::uint32_t, 1> rows, Array<float, 2> vectors, std::uint64_t dimension) {
  if (vectors.shape(0) != rows.shape(0) || vectors.shape(1) != dimension) throw std::invalid_argument("rows and vectors do not fit each other");
  const nb::gil_scoped_release release;
  self.builder.put(rows.data(), vectors.data(), rows.shape(0));
}

// Set the signature bits of a run of postings in the signatures of their documents [documents, 48 bytes].
void sign_documents(Array<std::int64_t, 1> documents, Array<std::uint32_t, 1> lists, Output<std::uint8_t, 2> out) {
  if (documents.shape(0) != lists.shape(0) || out.shape(1) != kSignatureBits / 8) throw std::invalid_argument("documents, lists and signatures do not fit each other");
  for (std::size_t i = 0; i < documents.shape(0); ++i) {
    const auto document = static_cast<std::uint64_t>(documents.data()[i]);
    if (document >= out.shape(0)) throw std::invalid_argument("document " + std::to_string(document) + " does not exist");
    const std::uint32_t bit = signature_bit(lists.data()[i]);
    out.data()[document * out.shape(1) + (bit >> 3)] |= static_cast<std::uint8_t>(1u << (bit & 7));
  }
}

// Scatter a run of postings to the rows of their documents: cursors [documents] move on, out [postings] receives them.
void scatter_postings(Array<std::int64_t, 1> documents, std::uint64_t first, Output<std::uint64_t, 1> cursors, Output<std::uint32_t, 1> out) {
  const std::size_t n = documents.shape(0);
  for (std::size_t i = 0; i < n; ++i) {
    const auto document = static_cast<std::uint64_t>(documents.data()[i]);
    if (document >= cursors.shape(0)) throw std::invalid_argument("document " + std::to_string(document) + " does not exist");
    const std::uint64_t slot = cursors.data()[document]++;
    if (slot >= out.shape(0) || first + i > UINT32_MAX) throw std::invalid_argument("a posting lies outside the forward map");
    out.data()[slot] = static_cast<std::uint32_t>(first + i);
  }
}

void make_snapshot(PySnapshot* self, nb::sequence segments, bool floor, float norm_base, float norm_slope, nb::object graphs) {
  std::vector<nb::object> owners;
  std::vector<std::shared_ptr<const Segment>> parts;
  for (nb::handle entry : segments) {
    owners.push_back(nb::borrow(entry));
    parts.push_back(nb::cast<const PySegment&>(entry).segment);
  }
  std::vector<std::shared_ptr<const Graph>> own;
  if (!graphs.is_none())
    for (nb::handle entry : nb::cast<nb::sequence>(graphs)) {
      owners.push_back(nb::borrow(entry));
      own.push_back(entry.is_none() ? nullptr : nb::cast<const PyGraph&>(entry).graph);
    }
  new (self) PySnapshot{std::move(owners), Snapshot(std::move(parts), floor, norm_base, norm_slope, std::move(own))};
}

PyFilter make_filter(const PySnapshot& self, nb::sequence bitmaps) {
  const auto& segments = self.snapshot.segments();
  PyFilter filter{&self, {}};
  for (nb::handle entry : bitmaps) {
    if (filter.allowed.size() == segments.size()) throw std::invalid_argument("a filter needs one bitmap per segment");
    const Segment& segment = *segments[filter.allowed.size()];
    const Buffer bitmap(entry);
    if (bitmap.size() < divide_up(segment.documents(), 8)) throw std::invalid_argument("a filter's bitmap is too short");
    filter.allowed.push_back(segment.allowed(bitmap.data()));
  }
  if (filter.allowed.size() != segments.size()) throw std::invalid_argument("a filter needs one bitmap per segment");
  return filter;
}

std::uint64_t count_allowed(const PyFilter& self) {
  std::uint64_t count = 0;
  for (const DocumentSet& part : self.allowed) count += part.count();
  return count;
}

template <typename Find>
nb::object find_all(const Snapshot& snapshot, std::size_t n, Find find) {
  std::vector<std::int64_t> lists(snapshot.segments().size() * n, -1);
  for (std::size_t segment = 0; segment < snapshot.segments().size(); ++segment)
    for (std::size_t i = 0; i < n; ++i)
      if (const auto list = find(*snapshot.segments()[segment], i)) lists[segment * n + i] = static_cast<std::int64_t>(*list);
  return to_numpy(std::move(lists), {snapshot.segments().size(), n});
}

nb::object find_keys(const PySnapshot& self, Array<std::uint32_t, 1> keys) {
  const auto& segments = self.snapshot.segments();
  const std::size_t n = keys.size();
  std::vector<std::int64_t> lists(segments.size() * n);
  for (std::size_t segment = 0; segment < segments.size(); ++segment) segments[segment]->find_keys(keys.data(), n, lists.data() + segment * n);
  return to_numpy(std::move(lists), {segments.size(), n});
}

nb::object find_terms(const PySnapshot& self, nb::sequence terms) {
  std::vector<std::string> texts;
  for (nb::handle term : terms) {
    const nb::bytes bytes = nb::cast<nb::bytes>(term);
    texts.emplace_back(bytes.c_str(), bytes.size());
  }
  return find_all(self.snapshot, texts.size(), [&](const Segment& segment, std::size_t i) { return segment.find_term(texts[i]); });
}

std::string_view text(nb::handle term) {
  char* bytes = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(term.ptr(), &bytes, &size) != 0) nb::raise_python_error();
  return {bytes, static_cast<std::size_t>(size)};
}

// A bm25 query in one call: the list of each term in each segment, weighted by idf · occurrences in the query.
Query plan_terms(const PySnapshot& self, nb::list terms, nb::list repeats, std::uint64_t documents) {
  const auto& segments = self.snapshot.segments();
  Query query;
  query.segments = segments.size(), query.tokens = terms.size();
  if (repeats.size() != query.tokens) throw std::invalid_argument("terms and repeats must have the same length");
  query.lists.assign(query.segments * query.tokens, -1);
  for (std::size_t i = 0; i < query.tokens; ++i) {
    std::uint64_t frequency = 0;
    for (std::size_t s = 0; s < query.segments; ++s)
      if (const auto list = segments[s]->find_term(text(terms[i]))) {
        query.lists[s * query.tokens + i] = static_cast<std::int64_t>(*list);
        frequency += segments[s]->list_length(*list);
      }
    const double without = static_cast<double>(documents) - static_cast<double>(frequency);
    const double idf = std::log1p((without + 0.5) / (static_cast<double>(frequency) + 0.5));
    query.weights.push_back(static_cast<float>(idf * nb::cast<double>(repeats[i])));
  }
  return query;
}

nb::object list_lengths(const PySnapshot& self, Array<std::int64_t, 2> lists) {
  const auto& segments = self.snapshot.segments();
  if (lists.shape(0) != segments.size()) throw std::invalid_argument("lists must have one row per segment");
  std::vector<std::int64_t> lengths(lists.size());
  for (std::size_t i = 0; i < lists.size(); ++i) {
    const Segment& segment = *segments[i / lists.shape(1)];
    const std::int64_t list = lists.data()[i];
    if (list < 0) continue;
    if (static_cast<std::uint64_t>(list) >= segment.lists()) throw std::invalid_argument("list " + std::to_string(list) + " does not exist");
    lengths[i] = static_cast<std::int64_t>(segment.list_length(static_cast<std::uint64_t>(list)));
  }
  return to_numpy(std::move(lengths), {lists.shape(0), lists.shape(1)});
}

Semantic parse_semantic(const std::string& mode) {
  if (mode == "off") return Semantic::off;
  if (mode == "rerank") return Semantic::rerank;
  if (mode == "exact") return Semantic::exact;
  if (mode == "graph") return Semantic::graph;
  if (mode == "auto") return Semantic::automatic;
  throw std::invalid_argument("unknown semantic mode '" + mode + "': off, rerank, exact, graph or auto");
}

SearchOptions make_options(std::uint64_t k, const std::string& semantic, std::uint64_t candidates, std::uint64_t probes,
                      unsigned weight_floor, std::uint64_t effort, unsigned threads, const Cancel* cancel, const PySnapshot& snapshot,
                      const PyFilter* filter) {
  if (filter != nullptr && filter->snapshot != &snapshot) throw std::invalid_argument("the filter belongs to another snapshot");
  return {k, parse_semantic(semantic), candidates, probes, weight_floor, threads, cancel, filter == nullptr ? nullptr : &filter->allowed, nullptr, effort};
}

nb::object to_python(Result&& result) {
  return nb::make_tuple(to_numpy(std::move(result.numbers)), to_numpy(std::move(result.scores)), result.dots);
}

nb::object search(const PySnapshot& self, const Query& query, std::uint64_t k, const std::string& semantic, std::uint64_t candidates,
                  std::uint64_t probes, unsigned weight_floor, std::uint64_t effort, unsigned threads, const Cancel* cancel,
                  const PyFilter* filter) {
  const SearchOptions options = make_options(k, semantic, candidates, probes, weight_floor, effort, threads, cancel, self, filter);
  Result result;
  {
    const nb::gil_scoped_release release;
    result = self.snapshot.search(query, options);
  }
  return to_python(std::move(result));
}

// The result and the nanoseconds spent per stage: planning, token retrieval, accumulation, semantic scoring, sorting.
nb::object search_timed(const PySnapshot& self, const Query& query, std::uint64_t k, const std::string& semantic, std::uint64_t candidates,
                        std::uint64_t probes, unsigned weight_floor, std::uint64_t effort, const PyFilter* filter) {
  SearchOptions options = make_options(k, semantic, candidates, probes, weight_floor, effort, 1, nullptr, self, filter);
  Stages stages;
  options.stages = &stages;
  Result result;
  {
    const nb::gil_scoped_release release;
    result = self.snapshot.search(query, options);
  }
  std::vector<double> nanoseconds(stages.nanoseconds.begin(), stages.nanoseconds.end());
  return nb::make_tuple(to_python(std::move(result)), to_numpy(std::move(nanoseconds)));
}

nb::list search_batch(const PySnapshot& self, nb::sequence queries, std::uint64_t k, const std::string& semantic, std::uint64_t candidates,
                      std::uint64_t probes, unsigned weight_floor, std::uint64_t effort, unsigned threads, const Cancel* cancel,
                      const PyFilter* filter) {
  const SearchOptions options = make_options(k, semantic, candidates, probes, weight_floor, effort, threads, cancel, self, filter);
  std::vector<nb::object> owners;
  std::vector<const Query*> batch;
  for (nb::handle query : queries) owners.push_back(nb::borrow(query)), batch.push_back(&nb::cast<const Query&>(query));
  std::vector<Result> results;
  {
    const nb::gil_scoped_release release;
    results = self.snapshot.search_batch(batch, options);
  }
  nb::list out;
  for (Result& result : results) out.append(to_python(std::move(result)));
  return out;
}

}  // namespace

void bind_search(nb::module_& m) {
  nb::class_<Cancel>(m, "Cancel").def(nb::init<>()).def("set", &Cancel::set).def("is_set", &Cancel::is_set);
  nb::class_<Codebook>(m, "Codebook")
      .def("__init__", &make_codebook, "centroids"_a, "scale_keys"_a, "key_scales"_a, "global_scale"_a);
  nb::class_<PySegment>(m, "Segment")
      .def("__init__", &make_segment, "name"_a, "documents"_a, "kind"_a, "dimension"_a, "codec"_a, "semantic_dimension"_a,
           "semantic_codec"_a, "sections"_a, "deleted"_a.none(), "codebook"_a.none());
  nb::class_<Query>(m, "Query")
      .def("__init__", &make_query, "lists"_a, "weights"_a, "vectors"_a.none(), "semantic"_a.none());
  nb::class_<PyGraph>(m, "Graph")
      .def("__init__", &make_graph, "name"_a, "rows"_a, "dimension"_a, "postings"_a, "links"_a, "lists"_a, "seeds"_a, "sections"_a);
  m.attr("BUILD_LINKS") = kBuildLinks;
  m.def("nibble_row_bytes", &nibble_row_bytes, "dimension"_a);
  m.def("graph_row_bytes", &graph_row_bytes, "dimension"_a);
  m.attr("SIGNATURE_BYTES") = kSignatureBits / 8;
  m.def("sign_documents", &sign_documents, "documents"_a, "lists"_a, "out"_a);
  m.def("scatter_postings", &scatter_postings, "documents"_a, "first"_a, "cursors"_a, "out"_a);
  nb::class_<PyGraphBuilder>(m, "GraphBuilder")
      .def("__init__", &make_graph_builder, "dimension"_a, "nibbles"_a, "codes"_a, "scales"_a, "sums"_a, "norms"_a, "links"_a,
           "links_per_row"_a = 32, "width"_a = 64, "reach"_a = 1.2f)
      .def("put", &put_vectors, "rows"_a, "vectors"_a, "dimension"_a)
      .def("adopt", &adopt_links, "links"_a, "new_rows"_a, "threads"_a, "cancel"_a.none() = nb::none())
      .def_prop_ro("inserted", [](const PyGraphBuilder& self) { return self.builder.inserted(); })
      .def("insert_batch", [](PyGraphBuilder& self, std::size_t threads, const Cancel* cancel) { self.builder.insert_batch(threads, cancel); },
           "threads"_a, "cancel"_a.none() = nb::none(), nb::call_guard<nb::gil_scoped_release>())
      .def("finish", [](PyGraphBuilder& self, std::size_t threads, const Cancel* cancel) { self.builder.finish(threads, cancel); },
           "threads"_a, "cancel"_a.none() = nb::none(), nb::call_guard<nb::gil_scoped_release>())
      .def("entries", [](const PyGraphBuilder& self) { return to_numpy(self.builder.entries()); })
      .def("layout", [](const PyGraphBuilder& self) { return to_numpy(self.builder.layout()); });
  nb::class_<PyFilter>(m, "Filter").def("__len__", &count_allowed);
  nb::class_<PySnapshot>(m, "Snapshot")
      .def("__init__", &make_snapshot, "segments"_a, "floor"_a, "norm_base"_a, "norm_slope"_a, "graphs"_a.none() = nb::none())
      .def("filter", &make_filter, "bitmaps"_a, nb::keep_alive<0, 1>())
      .def("find_keys", &find_keys, "keys"_a)
      .def("find_terms", &find_terms, "terms"_a)
      .def("plan_terms", &plan_terms, "terms"_a, "repeats"_a, "documents"_a)
      .def("list_lengths", &list_lengths, "lists"_a)
      .def("search", &search, "query"_a, "k"_a, "semantic"_a = "off", "candidates"_a = 1000, "probes"_a = 1000,
           "weight_floor"_a = 0, "effort"_a = 0, "threads"_a = 1, "cancel"_a.none() = nb::none(), "filter"_a.none() = nb::none())
      .def("search_timed", &search_timed, "query"_a, "k"_a, "semantic"_a = "off", "candidates"_a = 1000, "probes"_a = 1000,
           "weight_floor"_a = 0, "effort"_a = 0, "filter"_a.none() = nb::none())
      .def("search_batch", &search_batch, "queries"_a, "k"_a, "semantic"_a = "off", "candidates"_a = 1000, "probes"_a = 1000,
           "weight_floor"_a = 0, "effort"_a = 0, "threads"_a = 1, "cancel"_a.none() = nb::none(), "filter"_a.none() = nb::none());
}

}  // namespace citadel::python
