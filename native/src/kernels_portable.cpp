// Plain C++ for every machine; four floats a vector, which SSE2 and NEON both have.
#include "citadel/half.hpp"
#include "citadel/kernels.hpp"

namespace citadel {
namespace {

constexpr std::size_t kWidth = 4;

template <typename Floats>
inline void widen_halves(const std::uint8_t* bytes, Floats* out) {
  std::uint16_t halves[kLanes];
  __builtin_memcpy(halves, bytes, sizeof halves);
  float wide[kLanes];
  for (std::size_t l = 0; l < kLanes; ++l) wide[l] = half_to_float(halves[l]);
  __builtin_memcpy(out, wide, sizeof wide);
}

#include "kernels_common.hpp"

}  // namespace

const Kernels kPortableKernels = {"portable", int8_plain, fp16, fp32, pq, pq_table, pq_assign, sparse, bm25, repeats, normalise, collect};

}  // namespace citadel
