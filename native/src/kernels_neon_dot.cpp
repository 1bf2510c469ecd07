// NEON with byte dot products (ARMv8.2 dotprod: Graviton 2 and later, Apple silicon, Ampere Altra).
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

inline int32x4_t add_products(int32x4_t sums, int8x16_t a, int8x16_t q) { return vdotq_s32(sums, a, q); }

inline int32x4_t add_groups(int32x4_t sums, int8x16_t a, int8x16_t b) { return vdotq_s32(sums, a, b); }

#include "kernels_neon.hpp"

}  // namespace

const Kernels kNeonDotKernels = {"neon-dotprod", 0, 0, int8_neon, fp16_neon, fp32, pq, pq_table, pq_assign, sparse, bm25, finish_neon, collect_neon, select, match, unpack_documents, unpack_counts, byte_products_neon, logits_neon, token_products_neon, trellis, unpack_tokens, exceeding, byte_product, bound_bytes, residual_maxima, scaled_maxima, scaled_products, nearest_rows, quantize_row, gelu_row, add_row, scale_row};

}  // namespace citadel
