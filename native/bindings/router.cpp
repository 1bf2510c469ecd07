// Bindings: the router.
#include <stdexcept>
#include <string>

#include "python.hpp"
#include "citadel/router.hpp"

using namespace nb::literals;

namespace citadel::python {
namespace {

void make_router(Router* self, Array<std::int8_t, 2> table, Array<float, 1> scales, Array<float, 1> biases,
                 float step, std::uint8_t zero) {
  const std::size_t keys = table.shape(0);
  if (scales.shape(0) != keys || biases.shape(0) != keys)
    throw std::invalid_argument("table, scales and biases must have the same number of keys");
  new (self) Router(table.data(), scales.data(), biases.data(), keys, table.shape(1), step, zero);
}

nb::object best_keys(const Router& self, Array<std::uint8_t, 2> states, std::size_t max_keys, bool above) {
  if (states.shape(1) != self.width())
    throw std::invalid_argument("states must have " + std::to_string(self.width()) + " dimensions");
  const std::size_t n = states.shape(0);
  BestKeys best;
  {
    const nb::gil_scoped_release release;
    best = above ? self.best_above(states.data(), n, max_keys) : self.best(states.data(), n, max_keys);
  }
  return nb::make_tuple(to_numpy(std::move(best.keys), {n, max_keys}),
                        to_numpy(std::move(best.weights), {n, max_keys}));
}

nb::object best(const Router& self, Array<std::uint8_t, 2> states, std::size_t max_keys) {
  return best_keys(self, states, max_keys, false);
}

template <typename T>
std::vector<T> copied(const Array<T, 2>& array, std::size_t rows, std::size_t columns) {
  if (array.shape(0) != rows || array.shape(1) != columns)
    throw std::invalid_argument("the bounds do not have the size of the table");
  return {array.data(), array.data() + rows * columns};
}

template <typename T>
std::vector<T> copied(const Array<T, 1>& array, std::size_t size) {
  if (array.shape(0) != size) throw std::invalid_argument("the bounds do not have the size of the table");
  return {array.data(), array.data() + size};
}

void set_bounds(Router& self, Array<std::int8_t, 2> transform, Array<float, 1> means, Array<float, 1> factors,
                Array<float, 1> units, Array<std::int8_t, 2> codes, Array<std::int32_t, 1> thresholds) {
  if (codes.shape(1) <= kBoundLengths || units.shape(0) != 3)
    throw std::invalid_argument("the bounds need coordinates and three units");
  KeyBounds bounds;
  bounds.lead = codes.shape(1) - kBoundLengths;
  bounds.transform = copied<std::int8_t>(transform, self.width(), self.width());
  bounds.means = copied<float>(means, self.width()), bounds.factors = copied<float>(factors, self.width());
  bounds.codes = copied<std::int8_t>(codes, self.keys(), bounds.lead + kBoundLengths),
  bounds.thresholds = copied<std::int32_t>(thresholds, self.keys());
  for (std::size_t i = 0; i < 3; ++i) bounds.units[i] = units.data()[i];
  const nb::gil_scoped_release release;
  self.set_bounds(bounds);
}

nb::object best_above(const Router& self, Array<std::uint8_t, 2> states, std::size_t max_keys) {
  return best_keys(self, states, max_keys, true);
}

}  // namespace

void bind_router(nb::module_& m) {
  nb::class_<Router>(m, "Router")
      .def("__init__", &make_router, "table"_a, "scales"_a, "biases"_a, "step"_a, "zero"_a)
      .def("best", &best, "states"_a, "max_keys"_a)
      .def("set_bounds", &set_bounds, "transform"_a, "means"_a, "factors"_a, "units"_a, "codes"_a,
           "thresholds"_a)
      .def("best_above", &best_above, "states"_a, "max_keys"_a);
}

}  // namespace citadel::python
