// A snapshot and a filter as Python objects.
#pragma once

#include <vector>

#include "citadel/search.hpp"
#include "python.hpp"

namespace citadel::python {

struct PySnapshot {
  std::vector<nb::object> owners;  // the segments' Python objects, which own the bytes
  Snapshot snapshot;
};

// The documents a search of this snapshot may return.
struct PyFilter {
  const PySnapshot* snapshot;
  std::vector<DocumentSet> allowed;
};

}  // namespace citadel::python
