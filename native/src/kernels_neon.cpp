// NEON, which every aarch64 processor has.
#include <arm_neon.h>

#include "citadel/bits.hpp"
#include "citadel/half.hpp"
#include "citadel/kernels.hpp"

namespace citadel {
namespace {

constexpr std::size_t kWidth = 4;

template <typename Floats>
inline void widen_halves(const std::uint8_t* bytes, Floats* out) {
  for (std::size_t part = 0; part < kLanes / kWidth; ++part)
    out[part] = reinterpret_cast<Floats>(vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(bytes + 8 * part))));
}

#include "kernels_common.hpp"

// Two products of at most 128 · 127 fit 16 bits.
inline int32x4_t add_products(int32x4_t sums, int8x16_t a, int8x16_t q) {
  return vpadalq_s16(sums, vmlal_high_s8(vmull_s8(vget_low_s8(a), vget_low_s8(q)), a, q));
}

inline int32x4_t add_groups(int32x4_t sums, int8x16_t a, int8x16_t b) {
  const int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b)), high = vmull_high_s8(a, b);
  return vaddq_s32(sums, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
}

#include "kernels_neon.hpp"

}  // namespace

const Kernels kNeonKernels = {"neon", 0, 0, int8_neon, fp16_neon, fp32, pq, pq_table, pq_assign, sparse, bm25, finish_neon, collect_neon, select, match, unpack_documents, unpack_counts, byte_products_neon, logits_neon, token_products_neon, trellis, unpack_tokens, exceeding, byte_product, bound_bytes, residual_maxima, scaled_maxima, scaled_products, nearest_rows, quantize_row, gelu_row, add_row, scale_row};

}  // namespace citadel
