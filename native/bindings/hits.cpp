// Bindings: the parts of a query beside the search itself. Its tokens are ordered and weighted before; afterwards the first
// passage of each document is chosen and ids are read.
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_set>

#include "python.hpp"

using namespace nb::literals;

namespace citadel::python {
namespace {

bool all_finite(const float* values, std::size_t n) {
  return std::all_of(values, values + n, [](float value) { return std::isfinite(value); });
}

// The rows of a query sorted by key, without those of weight 0.
std::vector<std::size_t> plan_order(const std::uint32_t* keys, const float* weights, std::size_t n) {
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::erase_if(order, [&](std::size_t row) { return !(weights[row] > 0); });
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return keys[a] < keys[b]; });
  return order;
}

// Keys, weights and w·v in plan order; None if the shapes do not fit the index or a number is not finite.
nb::object plan_rows(Array<std::uint32_t, 1> keys, Array<float, 1> weights, std::optional<Array<float, 2>> vectors,
                     std::optional<Array<float, 1>> semantic, std::size_t dimension, std::size_t semantic_dimension) {
  const std::size_t n = keys.shape(0);
  const bool fits = weights.shape(0) == n && vectors.has_value() == (dimension > 0) && (!vectors || (vectors->shape(0) == n && vectors->shape(1) == dimension)) &&
                    (!semantic || (semantic_dimension > 0 && semantic->shape(0) == semantic_dimension));
  if (!fits || !all_finite(weights.data(), n) || (vectors && !all_finite(vectors->data(), n * dimension)) ||
      (semantic && !all_finite(semantic->data(), semantic->shape(0))))
    return nb::none();
  const std::vector<std::size_t> order = plan_order(keys.data(), weights.data(), n);
  std::vector<std::uint32_t> own_keys;
  std::vector<float> own_weights, products;
  products.reserve(order.size() * dimension);
  for (const std::size_t row : order) {
    own_keys.push_back(keys.data()[row]), own_weights.push_back(weights.data()[row]);
    for (std::size_t j = 0; j < dimension; ++j) products.push_back(vectors->data()[row * dimension + j] * weights.data()[row]);
  }
  if (!all_finite(products.data(), products.size())) return nb::none();
  nb::object weighted = dimension > 0 ? to_numpy(std::move(products), {order.size(), dimension}) : nb::none();
  return nb::make_tuple(to_numpy(std::move(own_keys)), to_numpy(std::move(own_weights)), weighted);
}

// The positions of the first entry of each distinct value, at most `limit`, ascending.
nb::object first_of_each(Array<std::int64_t, 1> values, std::size_t limit) {
  std::vector<std::int64_t> positions;
  std::unordered_set<std::int64_t> seen;
  seen.reserve(std::min(limit, values.size()));
  for (std::size_t i = 0; i < values.size() && positions.size() < limit; ++i)
    if (seen.insert(values.data()[i]).second) positions.push_back(static_cast<std::int64_t>(i));
  return to_numpy(std::move(positions));
}

// The strings octets[offsets[number]] … octets[offsets[number + 1] − 1].
nb::object read_ids(Array<std::uint64_t, 1> offsets, Array<std::uint8_t, 1> octets, Array<std::int64_t, 1> numbers) {
  constexpr std::size_t kAhead = 16;
  const std::size_t n = numbers.size();
  const std::uint64_t* starts = offsets.data();
  for (std::size_t i = 0; i < n; ++i)
    if (numbers.data()[i] < 0 || static_cast<std::uint64_t>(numbers.data()[i]) + 1 >= offsets.size())
      throw std::out_of_range("document " + std::to_string(numbers.data()[i]) + " does not exist");
  for (std::size_t i = 0; i < n; ++i) __builtin_prefetch(starts + numbers.data()[i]);
  nb::list ids;
  for (std::size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) __builtin_prefetch(octets.data() + std::min<std::uint64_t>(starts[numbers.data()[i + kAhead]], octets.size()));
    const std::uint64_t start = starts[numbers.data()[i]], end = starts[numbers.data()[i] + 1];
    if (start > end || end > octets.size()) throw std::out_of_range("an id lies outside its section");
    PyObject* id = PyUnicode_DecodeUTF8(reinterpret_cast<const char*>(octets.data() + start), static_cast<Py_ssize_t>(end - start), nullptr);
    if (id == nullptr) nb::raise_python_error();
    ids.append(nb::steal(id));
  }
  return ids;
}

}  // namespace

void bind_hits(nb::module_& m) {
  m.def("plan_rows", &plan_rows, nb::arg("keys").noconvert(), nb::arg("weights").noconvert(), nb::arg("vectors").noconvert().none(),
        nb::arg("semantic").noconvert().none(), "dimension"_a, "semantic_dimension"_a);
  m.def("first_of_each", &first_of_each, "values"_a, "limit"_a);
  m.def("read_ids", &read_ids, "offsets"_a, "octets"_a, "numbers"_a);
}

}  // namespace citadel::python
