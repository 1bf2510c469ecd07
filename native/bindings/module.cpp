// The Python module: its exceptions, the choice of instruction set, and the bindings of each part.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "python.hpp"
#include "citadel/cancel.hpp"
#include "citadel/dispatch.hpp"
#include "citadel/errors.hpp"

using namespace nb::literals;
using namespace citadel;

NB_MODULE(_native, m) {
  m.doc() = "The native search engine.";
  nb::exception<CorruptError>(m, "CorruptError");
  nb::exception<CancelledError>(m, "CancelledError");
  nb::exception<ReadError>(m, "ReadError");

  m.def("instruction_sets", &instruction_sets);
  m.def("instruction_set", [] { return std::string(kernels().name); });
  m.def("use_instruction_set", &use_instruction_set, "name"_a);

  python::bind_files(m);
  python::bind_hits(m);
  python::bind_packing(m);
  python::bind_router(m);
  python::bind_search(m);
  python::bind_maxsim(m);
}
