// Operators of our own for ONNX Runtime, which loads this module as a library of operators: passes over an
// encoder's states that take several operators of ONNX Runtime each. encode/fused_rows.py puts them into a
// graph.
//
// ONNX Runtime's headers are no part of its Python package, so what is used of its C interface is declared
// here. Functions are only ever appended to its table, and it reads the part of an operator that belongs to
// the stated version.
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <vector>

#include "citadel/dispatch.hpp"

namespace citadel::python {
namespace {

using Status = void;  // null if all is well
using Table = void* const*;

// Positions in the table of functions.
constexpr std::size_t kCreateStatus = 0, kCreateDomain = 26, kAddToDomain = 27, kAddDomain = 28,
                      kTensorData = 51, kCountDimensions = 61, kGetDimensions = 62, kGetShape = 65,
                      kGetInput = 90, kGetOutput = 91, kReleaseShape = 99;
constexpr std::uint32_t kVersion = 16;  // the first whose kernels report errors
constexpr int kFloat = 1, kByte = 2, kInvalidArgument = 2;
constexpr std::size_t kMaxRank = 8;

template <typename... Arguments>
Status* call(Table api, std::size_t function, Arguments... arguments) {
  return reinterpret_cast<Status* (*)(Arguments...)>(api[function])(arguments...);
}

Status* invalid(Table api, const char* why) { return call(api, kCreateStatus, kInvalidArgument, why); }

// The rows of a tensor: all dimensions but the last.
struct Rows {
  float* values = nullptr;
  std::array<std::int64_t, kMaxRank> shape{};
  std::size_t rank = 0, count = 1, width = 1;

  bool fits(const Rows& other, std::size_t other_width) const {
    return count == other.count && other.width == other_width;
  }
};

class Call {
 public:
  Call(Table api, void* context) : api_(api), context_(context) {}

  Rows input(std::size_t index) {
    const void* value = nullptr;
    void* description = nullptr;
    Rows rows;
    check(call(api_, kGetInput, static_cast<const void*>(context_), index, &value));
    if (ok()) check(call(api_, kGetShape, value, &description));
    if (!ok()) return rows;
    const void* shape = description;
    check(call(api_, kCountDimensions, shape, &rows.rank));
    if (ok() && (rows.rank == 0 || rows.rank > kMaxRank)) check(invalid(api_, "a tensor has no rows"));
    if (ok()) check(call(api_, kGetDimensions, shape, rows.shape.data(), rows.rank));
    reinterpret_cast<void (*)(void*)>(api_[kReleaseShape])(description);
    if (ok())
      check(call(api_, kTensorData, const_cast<void*>(value), reinterpret_cast<void**>(&rows.values)));
    if (!ok()) return rows;
    for (std::size_t i = 0; i + 1 < rows.rank; ++i) rows.count *= static_cast<std::size_t>(rows.shape[i]);
    rows.width = static_cast<std::size_t>(rows.shape[rows.rank - 1]);
    return rows;
  }

  // A result with the rows of `like` and its own width; null if there is none.
  template <typename T>
  T* output(std::size_t index, const Rows& like, std::size_t width) {
    std::array<std::int64_t, kMaxRank> shape = like.shape;
    shape[like.rank - 1] = static_cast<std::int64_t>(width);
    void *value = nullptr, *data = nullptr;
    check(call(api_, kGetOutput, context_, index, static_cast<const std::int64_t*>(shape.data()), like.rank,
               &value));
    if (ok()) check(call(api_, kTensorData, value, &data));
    return static_cast<T*>(data);
  }

  void require(bool holds, const char* why) {
    if (ok() && !holds) check(invalid(api_, why));
  }
  bool ok() const { return failure_ == nullptr; }
  Status* failure() const { return failure_; }

 private:
  void check(Status* status) {
    if (status != nullptr) failure_ = status;
  }

  Table api_;
  void* context_;
  Status* failure_ = nullptr;
};

// x [.., w] → codes [.., w], largest [.., 1]
void quantize(Call& run) {
  const Rows x = run.input(0);
  if (!run.ok()) return;
  auto* codes = run.output<std::uint8_t>(0, x, x.width);
  auto* largest = run.output<float>(1, x, 1);
  if (!run.ok()) return;
  const Kernels& set = kernels();
  for (std::size_t row = 0; row < x.count; ++row)
    largest[row] = set.quantize_row(x.values + row * x.width, x.width, codes + row * x.width);
}

// sums [.., w], scales [.., 1], bias [w] → codes [.., w], largest [.., 1]
void gelu_quantize(Call& run) {
  const Rows sums = run.input(0), scales = run.input(1), bias = run.input(2);
  run.require(sums.fits(scales, 1) && bias.count == 1 && bias.width == sums.width,
              "sums, scales and bias do not fit");
  if (!run.ok()) return;
  auto* codes = run.output<std::uint8_t>(0, sums, sums.width);
  auto* largest = run.output<float>(1, sums, 1);
  if (!run.ok()) return;
  const Kernels& set = kernels();
  std::vector<float> scratch(sums.width);
  for (std::size_t row = 0; row < sums.count; ++row)
    largest[row] = set.gelu_row(sums.values + row * sums.width, scales.values[row], bias.values, sums.width,
                                scratch.data(), codes + row * sums.width);
}

// sums [.., w], scales [.., 1], bias [w], residual [.., w] → [.., w]
void add(Call& run) {
  const Rows sums = run.input(0), scales = run.input(1), bias = run.input(2), residual = run.input(3);
  run.require(
      sums.fits(scales, 1) && sums.fits(residual, sums.width) && bias.count == 1 && bias.width == sums.width,
      "sums, scales, bias and residual do not fit");
  if (!run.ok()) return;
  auto* out = run.output<float>(0, sums, sums.width);
  if (!run.ok()) return;
  const Kernels& set = kernels();
  for (std::size_t at = 0, row = 0; row < sums.count; ++row, at += sums.width)
    set.add_row(sums.values + at, scales.values[row], bias.values, residual.values + at, sums.width,
                out + at);
}

// sums [.., 3w], scales [.., 1] → three parts [.., w]
void split(Call& run) {
  constexpr std::size_t kParts = 3;
  const Rows sums = run.input(0), scales = run.input(1);
  run.require(sums.fits(scales, 1) && sums.width % kParts == 0, "sums and scales do not fit");
  if (!run.ok()) return;
  const std::size_t width = sums.width / kParts;
  std::array<float*, kParts> parts{};
  for (std::size_t part = 0; part < kParts && run.ok(); ++part)
    parts[part] = run.output<float>(part, sums, width);
  if (!run.ok()) return;
  const Kernels& set = kernels();
  for (std::size_t row = 0; row < sums.count; ++row)
    for (std::size_t part = 0; part < kParts; ++part)
      set.scale_row(sums.values + row * sums.width + part * width, scales.values[row], width,
                    parts[part] + row * width);
}

// What ONNX Runtime reads of an operator, in its order.
struct Operator {
  std::uint32_t version = kVersion;
  void* create = nullptr;
  const char* (*name_of)(const Operator*) = [](const Operator* self) { return self->name; };
  const char* (*provider)(const Operator*) = [](const Operator*) {
    return static_cast<const char*>(nullptr);
  };
  int (*input_type)(const Operator*, std::size_t) = [](const Operator*, std::size_t) { return kFloat; };
  std::size_t (*count_inputs)(const Operator*) = [](const Operator* self) { return self->inputs; };
  int (*output_type)(const Operator*, std::size_t) = [](const Operator* self, std::size_t index) {
    return self->gives_codes && index == 0 ? kByte : kFloat;
  };
  std::size_t (*count_outputs)(const Operator*) = [](const Operator* self) { return self->outputs; };
  void* compute = nullptr;
  void (*destroy)(void*) = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  int (*input_kind)(const Operator*, std::size_t) = [](const Operator*, std::size_t) {
    return 0;
  };  // required
  int (*output_kind)(const Operator*, std::size_t) = [](const Operator*, std::size_t) { return 0; };
  int (*input_memory)(const Operator*, std::size_t) = [](const Operator*, std::size_t) {
    return 0;
  };  // the processor's
  void* variadic[4] = {};
  Status* (*create_kernel)(const Operator*, Table, const void*, void**) = [](const Operator* self, Table api,
                                                                             const void*, void** kernel) {
    *kernel = new Kernel{self, api};
    return static_cast<Status*>(nullptr);
  };
  Status* (*compute_kernel)(void*, void*) = [](void* kernel, void* context) {
    const auto* self = static_cast<const Kernel*>(kernel);
    Call run(self->api, context);
    try {
      self->op->run(run);
    } catch (const std::bad_alloc&) {
      return invalid(self->api, "out of memory");
    }
    return run.failure();
  };

  struct Kernel {
    const Operator* op;
    Table api;
  };

  // Ours
  const char* name;
  std::size_t inputs, outputs;
  bool gives_codes;
  void (*run)(Call&);
};

Operator make(const char* name, std::size_t inputs, std::size_t outputs, bool gives_codes,
              void (*run)(Call&)) {
  Operator made{};
  made.name = name, made.inputs = inputs, made.outputs = outputs, made.gives_codes = gives_codes,
  made.run = run;
  return made;
}

const std::array<Operator, 4>& operators() {
  static const std::array<Operator, 4> all = {
      make("QuantizeRows", 1, 2, true, quantize), make("GeluQuantizeRows", 3, 2, true, gelu_quantize),
      make("AddRows", 4, 1, false, add), make("SplitRows", 2, 3, false, split)};
  return all;
}

struct ApiBase {
  Table (*get_api)(std::uint32_t version);
  const char* (*version)();
};

}  // namespace

// Called by ONNX Runtime for each session that uses the operators; they and their domain stay for all
// sessions to come.
extern "C" __attribute__((visibility("default"))) void* RegisterCustomOps(void* options,
                                                                          const ApiBase* base) {
  static std::mutex mutex;
  static void* domain = nullptr;
  const Table api = base->get_api(kVersion);
  if (api == nullptr) return nullptr;  // the session then reports unknown operators
  const std::lock_guard lock(mutex);
  if (domain == nullptr) {
    if (Status* failure = call(api, kCreateDomain, "citadel", &domain)) return failure;
    for (const Operator& each : operators())
      if (Status* failure = call(api, kAddToDomain, domain, &each)) return failure;
  }
  return call(api, kAddDomain, options, domain);
}

}  // namespace citadel::python
