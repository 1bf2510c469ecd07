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

nb::object best_keys(const Router& self, Array<std::uint8_t, 2> states, std::size_t max_keys) {
  if (states.shape(1) != self.width())
    throw std::invalid_argument("states must have " + std::to_string(self.width()) + " dimensions");
  const std::size_t n = states.shape(0);
  BestKeys best;
  {
    const nb::gil_scoped_release release;
    best = self.best(states.data(), n, max_keys);
  }
  return nb::make_tuple(to_numpy(std::move(best.keys), {n, max_keys}),
                        to_numpy(std::move(best.weights), {n, max_keys}));
}

}  // namespace

void bind_router(nb::module_& m) {
  nb::class_<Router>(m, "Router")
      .def("__init__", &make_router, "table"_a, "scales"_a, "biases"_a, "step"_a, "zero"_a)
      .def("best", &best_keys, "states"_a, "max_keys"_a);
}

}  // namespace citadel::python
