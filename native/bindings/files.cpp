// Bindings: checksums, and the registry of mapped files.
#include "python.hpp"
#include "citadel/crc32c.hpp"
#include "citadel/mapping.hpp"

using namespace nb::literals;

namespace citadel::python {
namespace {

std::uint32_t checksum(nb::object data, std::uint32_t value) {
  const Buffer bytes(data);
  const nb::gil_scoped_release release;
  return crc32c(bytes.data(), bytes.size(), value);
}

nb::object checksums(nb::object data, std::uint64_t block) {
  if (block == 0) throw std::invalid_argument("a block must have at least one byte");
  const Buffer bytes(data);
  std::vector<std::uint32_t> crcs;
  {
    const nb::gil_scoped_release release;
    crcs = crc32c_blocks(bytes.data(), bytes.size(), block);
  }
  return to_numpy(std::move(crcs));
}

// Registers a mapped file and returns its slot, or -1 if there is none.
std::int64_t watch(nb::object mapped, int descriptor) {
  const Buffer bytes(mapped);
  const std::size_t slot = watch_mapping(bytes.data(), bytes.size(), descriptor);
  return slot == kUnwatched ? -1 : static_cast<std::int64_t>(slot);
}

int state(std::int64_t slot, bool exact) {
  return static_cast<int>(mapping_state(static_cast<std::size_t>(slot), exact ? kCheckNow : mapping_clock()));
}

}  // namespace

void bind_files(nb::module_& m) {
  m.def("watch_mapping", &watch, "mapped"_a, "descriptor"_a);
  m.def(
      "unwatch_mapping", [](std::int64_t slot) { unwatch_mapping(static_cast<std::size_t>(slot)); },
      "slot"_a);
  m.def("mapping_state", &state, "slot"_a, "exact"_a = true);
  m.def("crc32c", &checksum, "data"_a, "value"_a = 0);
  m.def("crc32c_blocks", &checksums, "data"_a, "block"_a);
}

}  // namespace citadel::python
