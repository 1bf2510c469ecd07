// AVX2 and F16C.
#include <immintrin.h>

#include "citadel/bits.hpp"
#include "citadel/half.hpp"
#include "citadel/kernels.hpp"

namespace citadel {
namespace {

constexpr std::size_t kWidth = 8;

template <typename Floats>
inline void widen_halves(const std::uint8_t* bytes, Floats* out) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
  out[0] = reinterpret_cast<Floats>(_mm256_cvtph_ps(_mm256_castsi256_si128(halves)));
  out[1] = reinterpret_cast<Floats>(_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)));
}

#include "kernels_common.hpp"

// 16 products at a time, widened to 16 bits because maddubs would saturate on damaged codes of -128.
inline __m256i products(const std::uint8_t* codes, const std::int8_t* q) {
  const __m256i a = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  const __m256i b = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q)));
  return _mm256_madd_epi16(a, b);
}

inline __m256i row_sums(const std::uint8_t* codes, std::size_t d, const std::int8_t* q) {
  __m256i sums = _mm256_setzero_si256();
  std::size_t j = 0;
  for (; j + 16 <= d; j += 16) sums = _mm256_add_epi32(sums, products(codes + j, q + j));
  if (j == d) return sums;
  std::uint8_t rest[16] = {};
  __builtin_memcpy(rest, codes + j, d - j);
  return _mm256_add_epi32(sums, products(rest, q + j));
}

// Dot products of eight rows.
inline __m256i eight_dots(const std::uint8_t* codes, std::size_t d, const std::int8_t* q) {
  __m256i rows[8];
  for (std::size_t r = 0; r < 8; ++r) rows[r] = row_sums(codes + r * d, d, q);
  const __m256i low = _mm256_hadd_epi32(_mm256_hadd_epi32(rows[0], rows[1]), _mm256_hadd_epi32(rows[2], rows[3]));
  const __m256i high = _mm256_hadd_epi32(_mm256_hadd_epi32(rows[4], rows[5]), _mm256_hadd_epi32(rows[6], rows[7]));
  return _mm256_add_epi32(_mm256_permute2x128_si256(low, high, 0x20), _mm256_permute2x128_si256(low, high, 0x31));
}

void int8(const std::uint8_t* codes, const std::uint8_t* scales, std::size_t n, std::size_t d, Int8Query q, float* out) {
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256i dots = d == 32 ? eight_dots(codes + i * 32, 32, q.codes) : eight_dots(codes + i * d, d, q.codes);
    const __m256 scale = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + 2 * i)));
    const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(dots), scale);
    _mm256_storeu_ps(out + i, _mm256_mul_ps(scaled, _mm256_set1_ps(q.scale)));
  }
  int8_plain(codes + i * d, scales + 2 * i, n - i, d, q, out + i);
}

void repeats_avx2(const std::uint32_t* documents, std::size_t n, std::uint64_t mask[3]) {
  mask[0] = mask[1] = mask[2] = 0;
  std::size_t i = 1;
  for (; i + 8 <= n; i += 8) {
    const __m256i current = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(documents + i));
    const __m256i previous = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(documents + i - 1));
    const auto equal = static_cast<std::uint64_t>(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(current, previous))));
    mask[i / 64] |= equal << (i % 64);
    if (i % 64 > 56) mask[i / 64 + 1] |= equal >> (64 - i % 64);
  }
  for (; i < n; ++i) mask[i / 64] |= static_cast<std::uint64_t>(documents[i] == documents[i - 1]) << (i % 64);
}

std::size_t collect_avx2(float* accumulators, std::size_t n, float threshold, std::uint32_t* offsets, float* values) {
  const __m256 untouched = _mm256_set1_ps(-0.0f);
  const __m256 thresholds = _mm256_set1_ps(threshold);
  std::size_t count = 0;
  for (std::size_t i = 0; i < n; i += 8) {
    const __m256 sums = _mm256_loadu_ps(accumulators + i);
    const __m256i same = _mm256_cmpeq_epi32(_mm256_castps_si256(sums), _mm256_castps_si256(untouched));
    const __m256 selected = _mm256_andnot_ps(_mm256_castsi256_ps(same), _mm256_cmp_ps(sums, thresholds, _CMP_GE_OQ));
    for (auto mask = static_cast<unsigned>(_mm256_movemask_ps(selected)); mask != 0; mask &= mask - 1) {
      const auto offset = static_cast<std::uint32_t>(i) + static_cast<std::uint32_t>(__builtin_ctz(mask));
      offsets[count] = offset;
      values[count++] = accumulators[offset];
    }
    _mm256_storeu_ps(accumulators + i, untouched);
  }
  return count;
}

void finish_avx2(const std::uint32_t* documents, float* values, std::size_t n, bool floor) {
  std::uint64_t mask[3];
  repeats_avx2(documents, n, mask);
  fold(values, n, mask);
  normalize(values, n, floor);
}

// ---- products of token vectors --------------------------------------------------------------------------

// 32 values at a time, as in kernels_router.hpp. Returns the codes that were unpacked.
template <unsigned Bits>
inline std::size_t unpack_row(const std::uint8_t* codes, std::size_t width, __m256i table,
                              std::uint8_t* out) {
  constexpr std::size_t kStep = Bits == 0 ? 32 : 4 * Bits;
  std::size_t at = 0;
  for (; at + kStep <= width; at += kStep) {
    __m256i values;
    if constexpr (Bits == 0) {
      values = _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + at)),
                                _mm256_set1_epi8(static_cast<char>(0x80)));
    } else if constexpr (Bits == 4) {
      const __m256i wide =
          _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + at)));
      const __m256i both = _mm256_or_si256(wide, _mm256_slli_epi16(wide, 4));
      values = _mm256_shuffle_epi8(table, _mm256_and_si256(both, _mm256_set1_epi8(15)));
    } else {
      const __m256i wide =
          _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + at)));
      const __m256i half = _mm256_or_si256(wide, _mm256_slli_epi32(wide, 6));
      const __m256i all = _mm256_or_si256(half, _mm256_slli_epi32(half, 12));
      values = _mm256_shuffle_epi8(table, _mm256_and_si256(all, _mm256_set1_epi8(3)));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + at / kStep * 32), values);
  }
  return at;
}

// 32 dimensions of a trellis, as in kernels_router.hpp.
template <unsigned Bits>
inline __m256i widen(const std::uint8_t* codes) {
  if constexpr (Bits == 4) return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
}

template <unsigned Bits>
inline __m256i windows(const std::uint8_t* codes) {
  const __m256i bits = _mm256_or_si256(widen<Bits>(codes - 1), _mm256_slli_epi64(widen<Bits>(codes), 8));
  if constexpr (Bits == 4)
    return _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi64(bits, 6), _mm256_set1_epi16(0x3f)),
                           _mm256_and_si256(_mm256_srli_epi64(bits, 2), _mm256_set1_epi16(0x3f00)));
  const __m256i low = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi64(bits, 4), _mm256_set1_epi32(0x3f)),
                                      _mm256_and_si256(_mm256_slli_epi64(bits, 2), _mm256_set1_epi32(0x3f00)));
  const __m256i high = _mm256_or_si256(_mm256_and_si256(_mm256_slli_epi64(bits, 8), _mm256_set1_epi32(0x3f0000)),
                                       _mm256_and_si256(_mm256_slli_epi64(bits, 14), _mm256_set1_epi32(0x3f000000)));
  return _mm256_or_si256(low, high);
}

template <unsigned Bits>
inline void unpack_trellis_row(const std::uint8_t* codes, std::size_t width, const TokenValues& values, std::uint8_t* out) {
  constexpr std::size_t kStep = 4 * Bits;
  if (width <= kStep) return unpack_token(codes, width, values, out);
  unpack_token(codes, 1, values, out);  // it has no byte before it
  __m256i tables[4];
  for (std::size_t i = 0; i < 4; ++i)
    tables[i] = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values.buckets + 16 * i)));
  for (std::size_t next = 1; next < width; next += kStep) {
    const std::size_t at = next + kStep <= width ? next : width - kStep;
    const __m256i own = windows<Bits>(codes + at), low = _mm256_and_si256(own, _mm256_set1_epi8(15));
    const __m256i odd = _mm256_slli_epi64(own, 3), high = _mm256_slli_epi64(own, 2);  // the bit that selects, in the sign of a byte
    const __m256i first = _mm256_blendv_epi8(_mm256_shuffle_epi8(tables[0], low), _mm256_shuffle_epi8(tables[1], low), odd);
    const __m256i second = _mm256_blendv_epi8(_mm256_shuffle_epi8(tables[2], low), _mm256_shuffle_epi8(tables[3], low), odd);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + at * (8 / Bits)), _mm256_blendv_epi8(first, second, high));
  }
}

void unpack_tokens_avx2(const std::uint8_t* codes, std::size_t rows, std::size_t width,
                        const TokenValues& values, std::uint8_t* out) {
  const __m256i table =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values.buckets)));
  const std::size_t per_byte = values.bits == 0 ? 1 : 8 / values.bits;
  for (std::size_t row = 0; values.memory != 0 && row < rows; ++row, codes += width, out += kTokenStride) {
    if (values.bits == 1)
      unpack_token(codes, width, values, out);
    else
      values.bits == 2 ? unpack_trellis_row<2>(codes, width, values, out) : unpack_trellis_row<4>(codes, width, values, out);
  }
  for (std::size_t row = 0; values.memory == 0 && row < rows; ++row, codes += width, out += kTokenStride) {
    const std::size_t done = values.bits == 0   ? unpack_row<0>(codes, width, table, out)
                             : values.bits == 4 ? unpack_row<4>(codes, width, table, out)
                             : values.bits == 2 ? unpack_row<2>(codes, width, table, out)
                                                : 0;
    unpack_token(codes + done, width - done, values, out + done * per_byte);
  }
}

// |value| · ±code fits 16 bits in pairs, as values are −128 … 127 and codes −127 … 127.
template <std::size_t Rows>
inline void row_sums(const std::uint8_t* tokens, const std::int8_t* codes, std::size_t groups,
                     std::int32_t* sums) {
  __m256i totals[Rows][4];
  for (std::size_t row = 0; row < Rows; ++row)
    for (std::size_t part = 0; part < 4; ++part) totals[row][part] = _mm256_setzero_si256();
  for (std::size_t group = 0; group < groups; ++group, tokens += 4, codes += 4 * kKeyBlock) {
    __m256i values[Rows];
    for (std::size_t row = 0; row < Rows; ++row) {
      std::uint32_t word;
      __builtin_memcpy(&word, tokens + row * kTokenStride, sizeof word);
      values[row] = _mm256_set1_epi32(static_cast<std::int32_t>(word ^ 0x80808080u));
    }
    for (std::size_t part = 0; part < 4; ++part) {
      const __m256i own = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 32 * part));
      for (std::size_t row = 0; row < Rows; ++row) {
        const __m256i pairs =
            _mm256_maddubs_epi16(_mm256_abs_epi8(values[row]), _mm256_sign_epi8(own, values[row]));
        totals[row][part] =
            _mm256_add_epi32(totals[row][part], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
      }
    }
  }
  for (std::size_t row = 0; row < Rows; ++row)
    for (std::size_t part = 0; part < 4; ++part) {
      auto* out = reinterpret_cast<__m256i*>(sums + row * kKeyBlock + 8 * part);
      _mm256_storeu_si256(out, _mm256_add_epi32(totals[row][part], _mm256_loadu_si256(out)));
    }
}

// 128 · Σ codes of each key, which the bias of the tokens adds to every sum.
inline void bias_sums(const std::int8_t* codes, std::size_t groups, std::int32_t* out) {
  for (std::size_t part = 0; part < 4; ++part) {
    __m256i total = _mm256_setzero_si256();
    for (std::size_t group = 0; group < groups; ++group) {
      const __m256i own =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + group * 4 * kKeyBlock + 32 * part));
      total = _mm256_add_epi32(
          total, _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), own), _mm256_set1_epi16(128)));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 8 * part), total);
  }
}

void token_products_avx2(const std::uint8_t* tokens, std::size_t rows, const std::int8_t* codes,
                         std::size_t groups, std::int32_t* sums) {
  std::int32_t bias[kKeyBlock];
  bias_sums(codes, groups, bias);
  for (std::size_t row = 0; row < rows; ++row) __builtin_memcpy(sums + row * kKeyBlock, bias, sizeof bias);
  std::size_t row = 0;
  for (; row + 2 <= rows; row += 2)
    row_sums<2>(tokens + row * kTokenStride, codes, groups, sums + row * kKeyBlock);
  if (row < rows) row_sums<1>(tokens + row * kTokenStride, codes, groups, sums + row * kKeyBlock);
}

}  // namespace

const Kernels kAvx2Kernels = {"avx2", 0, 0, int8, fp16, fp32, pq, pq_table, pq_assign, sparse, bm25, finish_avx2, collect_avx2, select, match, unpack_documents, unpack_counts, byte_products, logits, token_products_avx2, trellis, unpack_tokens_avx2, exceeding, byte_product, bound_bytes, residual_maxima, scaled_maxima, scaled_products, nearest_rows, quantize_row, gelu_row, add_row, scale_row};

}  // namespace citadel
