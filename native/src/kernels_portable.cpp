// Portable C++ with vectors of four floats, which SSE2 and NEON both have.
#include "citadel/bits.hpp"
#include "citadel/half.hpp"
#include "citadel/kernels.hpp"

namespace citadel {
namespace {

constexpr std::size_t kWidth = 4;

// half_to_float, four at a time.
template <typename Floats>
inline void widen_halves(const std::uint8_t* bytes, Floats* out) {
  typedef std::uint16_t Shorts __attribute__((vector_size(8)));
  typedef std::uint32_t Words __attribute__((vector_size(16)));
  for (std::size_t part = 0; part < kLanes / kWidth; ++part) {
    Shorts halves;
    __builtin_memcpy(&halves, bytes + part * sizeof halves, sizeof halves);
    const Words wide = __builtin_convertvector(halves, Words);
    const Words magnitude = (wide & 0x7fffu) << 13;
    const Words special = reinterpret_cast<Words>(magnitude >= 0x0f800000u) & 0x7f800000u;
    const Floats value = reinterpret_cast<Floats>(magnitude) * 5.192296858534828e33f;
    out[part] = reinterpret_cast<Floats>(reinterpret_cast<Words>(value) | special | (wide & 0x8000u) << 16);
  }
}

#include "kernels_common.hpp"

}  // namespace

const Kernels kPortableKernels = {"portable", 0, 0, int8_plain, fp16, fp32, pq, pq_table, pq_assign, sparse, bm25, finish, collect, select, match, unpack_documents, unpack_counts, byte_products, logits, token_products, trellis, unpack_tokens, exceeding, byte_product, bound_bytes, residual_maxima, scaled_maxima, scaled_products, nearest_rows, quantize_row, gelu_row, add_row, scale_row};

}  // namespace citadel
