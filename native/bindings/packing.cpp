// Bindings: sorting and packing of postings, quantization of vectors.
#include <stdexcept>

#include "python.hpp"
#include "citadel/bits.hpp"
#include "citadel/kernels.hpp"
#include "citadel/quantize.hpp"
#include "citadel/radix.hpp"
#include "citadel/trellis.hpp"

using namespace nb::literals;

namespace citadel::python {
namespace {

nb::object quantize(Array<float, 2> vectors, std::size_t tries) {
  Int8Vectors coded;
  {
    const nb::gil_scoped_release release;
    coded = quantize_int8(vectors.data(), vectors.shape(0), vectors.shape(1), tries);
  }
  constexpr nb::dlpack::dtype kHalf{static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float), 16, 1};
  return nb::make_tuple(to_numpy(std::move(coded.codes), {vectors.shape(0), vectors.shape(1)}),
                        to_numpy(std::move(coded.scales), {vectors.shape(0)}, kHalf));
}

nb::object assign(Array<float, 2> vectors, Array<float, 3> centroids) {
  const std::size_t n = vectors.shape(0), subvectors = centroids.shape(0), sub = centroids.shape(2);
  if (centroids.shape(1) != kCentroids) throw std::invalid_argument("centroids must be [S, 256, d/S]");
  if (vectors.shape(1) != subvectors * sub)
    throw std::invalid_argument("vectors and centroids have different dimensions");
  std::vector<std::uint8_t> codes;
  {
    const nb::gil_scoped_release release;
    codes = pq_assign(vectors.data(), n, centroids.data(), subvectors, sub);
  }
  return to_numpy(std::move(codes), {n, subvectors});
}

nb::object rotated(Array<float, 2> vectors) {
  std::vector<float> rows(vectors.data(), vectors.data() + vectors.size());
  {
    const nb::gil_scoped_release release;
    rotate(rows.data(), vectors.shape(0), vectors.shape(1));
  }
  return to_numpy(std::move(rows), {vectors.shape(0), vectors.shape(1)});
}

nb::object codes_along(Array<float, 2> rows, Array<float, 1> values, unsigned bits) {
  if (values.size() != std::size_t{1} << kWindowBits) throw std::invalid_argument("a trellis has 64 values");
  std::vector<std::uint8_t> codes;
  {
    const nb::gil_scoped_release release;
    codes = trellis_codes(rows.data(), rows.shape(0), rows.shape(1), values.data(), bits);
  }
  return to_numpy(std::move(codes), {rows.shape(0), rows.shape(1)});
}

std::size_t list_count(const Array<std::uint64_t, 1>& starts) {
  if (starts.size() == 0) throw std::invalid_argument("starts must have at least one entry");
  return starts.size() - 1;
}

nb::object pack(Array<std::uint32_t, 1> values, Array<std::uint64_t, 1> starts) {
  PackedDocuments packed = pack_documents(values.data(), values.size(), starts.data(), list_count(starts));
  return nb::make_tuple(to_numpy(std::move(packed.firsts)), to_numpy(std::move(packed.offsets)),
                        to_numpy(std::move(packed.bytes)));
}

nb::object pack_term_counts(Array<std::uint32_t, 1> values, Array<std::uint64_t, 1> starts) {
  PackedCounts packed = pack_counts(values.data(), values.size(), starts.data(), list_count(starts));
  return nb::make_tuple(to_numpy(std::move(packed.offsets)), to_numpy(std::move(packed.bytes)));
}

}  // namespace

void bind_packing(nb::module_& m) {
  m.def(
      "sort_by_key",
      [](Array<std::uint32_t, 1> keys) { return to_numpy(sort_by_key(keys.data(), keys.size())); }, "keys"_a);
  m.def("pack", &pack, "values"_a, "starts"_a);
  m.def("pack_counts", &pack_term_counts, "values"_a, "starts"_a);
  m.def("quantize_int8", &quantize, "vectors"_a, "tries"_a = 1);
  m.def("rotate", &rotated, "vectors"_a);
  m.def("trellis_codes", &codes_along, "rows"_a, "values"_a, "bits"_a);
  m.def("pq_assign", &assign, "vectors"_a, "centroids"_a);
}

}  // namespace citadel::python
