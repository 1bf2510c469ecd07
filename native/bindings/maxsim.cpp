// Bindings: centroids, token queries and the search of centroid segments.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>

#include "citadel/maxsim.hpp"
#include "citadel/nearest.hpp"
#include "citadel/parallel.hpp"
#include "snapshot.hpp"

using namespace nb::literals;

namespace citadel::python {
namespace {

void make_book(CentroidBook* self, Array<std::int8_t, 2> codes, Array<std::uint16_t, 1> scales, Array<std::int8_t, 2> buckets, float bucket_scale,
               float step) {
  if (scales.shape(0) != codes.shape(0)) throw std::invalid_argument("centroids and scales have different lengths");
  if (!std::has_single_bit(buckets.shape(0)) || !std::has_single_bit(buckets.shape(1)))
    throw std::invalid_argument("the number of buckets must be a power of two");
  const auto bits = static_cast<unsigned>(std::countr_zero(buckets.shape(0))), memory = static_cast<unsigned>(std::countr_zero(buckets.shape(1)));
  new (self) CentroidBook(codes.data(), scales.data(), codes.shape(0), codes.shape(1), buckets.data(), bits, memory, bucket_scale, step);
}

std::vector<std::uint32_t> numbers(const Array<std::uint32_t, 1>& values) {
  return {values.data(), values.data() + values.size()};
}

void make_nearest(NearestCentroids* self, Array<std::int8_t, 2> codes, Array<std::uint16_t, 1> scales,
                  Array<std::int8_t, 2> heads, Array<std::uint16_t, 1> head_scales,
                  Array<std::uint32_t, 1> starts, Array<std::uint32_t, 1> members, std::size_t probes) {
  const bool fits = scales.shape(0) == codes.shape(0) && head_scales.shape(0) == heads.shape(0) &&
                    heads.shape(1) == codes.shape(1) && starts.shape(0) == heads.shape(0) + 1 &&
                    starts.shape(0) > 1 && std::is_sorted(starts.data(), starts.data() + starts.size()) &&
                    starts.data()[heads.shape(0)] <= members.shape(0);
  if (!fits) throw std::invalid_argument("centroids, heads and groups do not fit");
  new (self) NearestCentroids(codes.data(), scales.data(), codes.shape(0), codes.shape(1), heads.data(),
                              head_scales.data(), numbers(starts), numbers(members), probes);
}

nb::object nearest(const NearestCentroids& self, Array<float, 2> vectors) {
  if (vectors.shape(1) != self.dimension())
    throw std::invalid_argument("the vectors and the centroids have different dimensions");
  std::vector<std::uint32_t> out;
  {
    const nb::gil_scoped_release release;
    out = self.nearest(vectors.data(), vectors.shape(0));
  }
  return to_numpy(std::move(out));
}

void require_finite(const Array<float, 2>& vectors) {
  for (std::size_t i = 0; i < vectors.size(); ++i)
    if (!std::isfinite(vectors.data()[i])) throw std::invalid_argument("a vector of the query has a value that is not finite");
}

void make_query(TokenQuery* self, Array<float, 2> vectors, std::shared_ptr<CentroidBook> book) {
  require_finite(vectors);
  new (self) TokenQuery(vectors.data(), vectors.shape(0), vectors.shape(1), std::move(book));
}

nb::object products(const TokenQuery& self) {
  if (self.book() == nullptr) throw std::invalid_argument("a query without centroids has no products with them");
  std::vector<float> out;
  for (std::size_t token = 0; token < self.tokens(); ++token)
    for (std::size_t centroid = 0; centroid < self.book()->size(); ++centroid) out.push_back(self.product(token, centroid));
  return to_numpy(std::move(out), {self.tokens(), self.book()->size()});
}

nb::object probes(const TokenQuery& self, std::size_t nprobe) {
  if (self.book() == nullptr || nprobe == 0) throw std::invalid_argument("probe one centroid or more, of a query with centroids");
  return to_numpy(self.probes(nprobe), {self.tokens(), std::min(nprobe, self.book()->size())});
}

TokenSearchOptions make_options(const PySnapshot& snapshot, std::uint64_t k, bool exact, std::uint64_t candidates, std::size_t nprobe, unsigned threads,
                                const Cancel* cancel, const PyFilter* filter) {
  if (filter != nullptr && filter->snapshot != &snapshot) throw std::invalid_argument("the filter belongs to another snapshot");
  return {k, exact, candidates, nprobe, threads, cancel, filter == nullptr ? nullptr : &filter->allowed};
}

nb::object to_python(Result&& result) {
  return nb::make_tuple(to_numpy(std::move(result.numbers)), to_numpy(std::move(result.scores)), result.dots);
}

using Vectors = Array<float, 2>;
using Book = std::shared_ptr<CentroidBook>;

nb::object search(const PySnapshot& snapshot, Vectors vectors, Book book, std::uint64_t k, bool exact, std::uint64_t candidates,
                  std::size_t nprobe, unsigned threads, const Cancel* cancel, const PyFilter* filter) {
  const TokenSearchOptions options = make_options(snapshot, k, exact, candidates, nprobe, threads, cancel, filter);
  require_finite(vectors);
  Result result;
  {
    const nb::gil_scoped_release release;
    const TokenQuery query(vectors.data(), vectors.shape(0), vectors.shape(1), std::move(book));
    result = search_tokens(snapshot.snapshot, query, options);
  }
  return to_python(std::move(result));
}

// Each query has a thread of its own. Its products with the centroids are made when its turn comes, as they are large.
nb::list search_batch(const PySnapshot& snapshot, nb::sequence queries, Book book, std::uint64_t k, bool exact, std::uint64_t candidates,
                      std::size_t nprobe, unsigned threads, const Cancel* cancel, const PyFilter* filter) {
  TokenSearchOptions options = make_options(snapshot, k, exact, candidates, nprobe, threads, cancel, filter);
  std::vector<Vectors> batch;
  for (nb::handle query : queries) batch.push_back(nb::cast<Vectors>(query)), require_finite(batch.back());
  std::vector<Result> results(batch.size());
  if (batch.size() > 1) options.threads = 1;
  {
    const nb::gil_scoped_release release;
    parallel(batch.size(), std::max(1u, threads), [&](std::size_t, std::size_t i) {
      const TokenQuery query(batch[i].data(), batch[i].shape(0), batch[i].shape(1), book);
      results[i] = search_tokens(snapshot.snapshot, query, options);
    });
  }
  nb::list out;
  for (Result& result : results) out.append(to_python(std::move(result)));
  return out;
}

nb::object candidates_of(const PySnapshot& snapshot, const TokenQuery& query, std::uint64_t candidates, std::size_t nprobe, const PyFilter* filter) {
  const TokenSearchOptions options = make_options(snapshot, 1, false, candidates, nprobe, 1, nullptr, filter);
  return to_numpy(token_candidates(snapshot.snapshot, query, options));
}

}  // namespace

void bind_maxsim(nb::module_& m) {
  nb::class_<CentroidBook>(m, "CentroidBook").def("__init__", &make_book, "codes"_a, "scales"_a, "buckets"_a, "bucket_scale"_a, "step"_a);
  nb::class_<NearestCentroids>(m, "NearestCentroids")
      .def("__init__", &make_nearest, "codes"_a, "scales"_a, "heads"_a, "head_scales"_a, "starts"_a,
           "members"_a, "probes"_a)
      .def("nearest", &nearest, "vectors"_a);
  nb::class_<TokenQuery>(m, "TokenQuery")
      .def("__init__", &make_query, "vectors"_a, "book"_a.none())
      .def("products", &products)
      .def("probes", &probes, "nprobe"_a);
  m.def("search_tokens", &search, "snapshot"_a, "vectors"_a, "book"_a.none(), "k"_a, "exact"_a, "candidates"_a, "nprobe"_a, "threads"_a = 1,
        "cancel"_a.none() = nb::none(), "filter"_a.none() = nb::none());
  m.def("search_tokens_batch", &search_batch, "snapshot"_a, "queries"_a, "book"_a.none(), "k"_a, "exact"_a, "candidates"_a, "nprobe"_a,
        "threads"_a = 1, "cancel"_a.none() = nb::none(), "filter"_a.none() = nb::none());
  m.def("token_candidates", &candidates_of, "snapshot"_a, "query"_a, "candidates"_a, "nprobe"_a, "filter"_a.none() = nb::none());
}

}  // namespace citadel::python
