// Python bindings: what their files share. Nothing outside this folder depends on Python.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace nb = nanobind;

namespace citadel::python {

template <typename T, int Dimensions>
using Array = nb::ndarray<const T, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;

// Owns a buffer-protocol view of a Python object.
class Buffer {
 public:
  explicit Buffer(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { PyBuffer_Release(&view_); }

  const std::uint8_t* data() const { return static_cast<const std::uint8_t*>(view_.buf); }
  std::size_t size() const { return static_cast<std::size_t>(view_.len); }

 private:
  Py_buffer view_{};
};

template <typename T>
nb::object to_numpy(std::vector<T>&& values, std::vector<std::size_t> shape,
                    nb::dlpack::dtype type = nb::dtype<T>()) {
  auto* owned = new std::vector<T>(std::move(values));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  nb::ndarray<nb::numpy> array(owned->data(), shape.size(), shape.data(), owner, nullptr, type);
  return nb::cast(array);
}

template <typename T>
nb::object to_numpy(std::vector<T>&& values) {
  const std::size_t size = values.size();
  return to_numpy(std::move(values), {size});
}

// Each adds its functions and classes to the module.
void bind_files(nb::module_& m);
void bind_maxsim(nb::module_& m);
void bind_hits(nb::module_& m);
void bind_packing(nb::module_& m);
void bind_router(nb::module_& m);
void bind_search(nb::module_& m);

}  // namespace citadel::python
