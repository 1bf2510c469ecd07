// AVX-512 with byte dot products (VNNI).
#include <immintrin.h>

#include <utility>

#include "citadel/bits.hpp"
#include "citadel/half.hpp"
#include "citadel/kernels.hpp"

namespace citadel {
namespace {

constexpr std::size_t kWidth = 16;

template <typename Floats>
inline void widen_halves(const std::uint8_t* bytes, Floats* out) {
  out[0] = reinterpret_cast<Floats>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes))));
}

#include "kernels_common.hpp"

// vpdpbusd multiplies unsigned by signed bytes: codes are biased by 128, and 128 · Σq is subtracted at the end.
inline __m512i biased(const std::uint8_t* codes) { return _mm512_xor_si512(_mm512_loadu_si512(codes), _mm512_set1_epi8(-128)); }

// Sums of four registers' 128-bit lanes: lane l of the result is (Σ a_l, Σ b_l, Σ c_l, Σ d_l).
inline __m512i lane_sums(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
}

inline void store_scores(__m512i dots, const std::uint8_t* scales, const Int8Query& q, float* out) {
  const __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales)));
  const __m512i exact = _mm512_sub_epi32(dots, _mm512_set1_epi32(128 * q.sum));
  _mm512_storeu_ps(out, _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(exact), scale), _mm512_set1_ps(q.scale)));
}

// Sixteen rows of 32 dimensions, two rows per register.
inline __m512i sixteen_dots_32(const std::uint8_t* codes, __m512i q) {
  __m512i r[8];
#pragma GCC unroll 8
  for (int pair = 0; pair < 8; ++pair) r[pair] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), biased(codes + 64 * pair), q);
#pragma GCC unroll 8
  for (int pair = 0; pair < 8; ++pair) __builtin_prefetch(codes + 64 * pair + 32 * kPrefetchDistance, 0, 2);
  const __m512i low = lane_sums(r[0], r[1], r[2], r[3]), high = lane_sums(r[4], r[5], r[6], r[7]);
  const __m512i sums = _mm512_add_epi32(_mm512_shuffle_i32x4(low, high, 0x88), _mm512_shuffle_i32x4(low, high, 0xdd));
  return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15), sums);
}

std::size_t int8_32(const std::uint8_t* codes, const std::uint8_t* scales, std::size_t n, const Int8Query& q, float* out) {
  const __m512i wide = _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(q.codes)));
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) store_scores(sixteen_dots_32(codes + 32 * i, wide), scales + 2 * i, q, out + i);
  return i;
}

inline __m512i row_sums(const std::uint8_t* codes, std::size_t d, const std::int8_t* q) {
  __m512i sums = _mm512_setzero_si512();
  std::size_t j = 0;
  for (; j + 64 <= d; j += 64) sums = _mm512_dpbusd_epi32(sums, biased(codes + j), _mm512_loadu_si512(q + j));
  if (j == d) return sums;
  const __mmask64 rest = (std::uint64_t{1} << (d - j)) - 1;  // the query is zero-padded, so the other bytes do not matter
  const __m512i last = _mm512_xor_si512(_mm512_maskz_loadu_epi8(rest, codes + j), _mm512_set1_epi8(-128));
  return _mm512_dpbusd_epi32(sums, last, _mm512_loadu_si512(q + j));
}

std::size_t int8_any(const std::uint8_t* codes, const std::uint8_t* scales, std::size_t n, std::size_t d, const Int8Query& q, float* out) {
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    __m512i four[4];
    for (std::size_t f = 0; f < 4; ++f) {  // rows 4f … 4f + 3, in the order the transposition below expects
      const std::uint8_t* row = codes + (i + 4 * f) * d;
      four[f] = lane_sums(row_sums(row, d, q.codes), row_sums(row + d, d, q.codes), row_sums(row + 2 * d, d, q.codes), row_sums(row + 3 * d, d, q.codes));
    }
    const __m512i a = _mm512_shuffle_i32x4(four[0], four[1], 0x44), b = _mm512_shuffle_i32x4(four[0], four[1], 0xee);
    const __m512i c = _mm512_shuffle_i32x4(four[2], four[3], 0x44), e = _mm512_shuffle_i32x4(four[2], four[3], 0xee);
    const __m512i ab = _mm512_add_epi32(a, b), ce = _mm512_add_epi32(c, e);
    store_scores(_mm512_add_epi32(_mm512_shuffle_i32x4(ab, ce, 0x88), _mm512_shuffle_i32x4(ab, ce, 0xdd)), scales + 2 * i, q, out + i);
  }
  return i;
}

void int8(const std::uint8_t* codes, const std::uint8_t* scales, std::size_t n, std::size_t d, Int8Query q, float* out) {
  const std::size_t done = d == 32 ? int8_32(codes, scales, n, q, out) : int8_any(codes, scales, n, d, q, out);
  for (std::size_t i = done; i < n; ++i) {
    std::uint16_t scale;
    __builtin_memcpy(&scale, scales + 2 * i, sizeof scale);
    const std::int32_t dot = _mm512_reduce_add_epi32(row_sums(codes + i * d, d, q.codes)) - 128 * q.sum;
    out[i] = (static_cast<float>(dot) * half_to_float(scale)) * q.scale;
  }
}

// The 16 partial sums of one row; lane l adds dimensions l, l + 16, … in this order.
inline __m512 row_lanes(const std::uint8_t* vector, std::size_t d, const float* q) {
  __m512 sums = _mm512_setzero_ps();
  std::size_t j = 0;
  for (; j + 16 <= d; j += 16) {
    const __m512 values = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(vector + 2 * j)));
    sums = _mm512_add_ps(sums, _mm512_mul_ps(_mm512_loadu_ps(q + j), values));
  }
  if (j == d) return sums;
  const __mmask16 rest = static_cast<__mmask16>((1u << (d - j)) - 1);
  const __m512 values = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(rest, vector + 2 * j));
  return _mm512_add_ps(sums, _mm512_mul_ps(_mm512_loadu_ps(q + j), values));
}

inline float fold_row(__m512 sums) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(sums), _mm512_extractf32x8_ps(sums, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// The same additions for 16 rows at once: each step adds the upper half of every row's lanes to the lower half.
inline __m512 fold_sixteen(__m512 r[16]) {
  for (int i = 0; i < 8; ++i)
    r[i] = _mm512_add_ps(_mm512_shuffle_f32x4(r[2 * i], r[2 * i + 1], 0x44), _mm512_shuffle_f32x4(r[2 * i], r[2 * i + 1], 0xee));
  for (int i = 0; i < 4; ++i)
    r[i] = _mm512_add_ps(_mm512_shuffle_f32x4(r[2 * i], r[2 * i + 1], 0x88), _mm512_shuffle_f32x4(r[2 * i], r[2 * i + 1], 0xdd));
  for (int i = 0; i < 2; ++i) r[i] = _mm512_add_ps(_mm512_shuffle_ps(r[2 * i], r[2 * i + 1], 0x44), _mm512_shuffle_ps(r[2 * i], r[2 * i + 1], 0xee));
  const __m512 sums = _mm512_add_ps(_mm512_shuffle_ps(r[0], r[1], 0x88), _mm512_shuffle_ps(r[0], r[1], 0xdd));
  return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), sums);
}

void fp16_avx512(const std::uint8_t* vectors, std::size_t n, std::size_t d, const float* q, float* out) {
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    __m512 rows[16];
    for (std::size_t row = 0; row < 16; ++row) rows[row] = row_lanes(vectors + (i + row) * d * 2, d, q);
    _mm512_storeu_ps(out + i, fold_sixteen(rows));
  }
  for (; i < n; ++i) out[i] = fold_row(row_lanes(vectors + i * d * 2, d, q));
}

void repeats_avx512(const std::uint32_t* documents, std::size_t n, std::uint64_t mask[3]) {
  mask[0] = mask[1] = mask[2] = 0;
  for (std::size_t i = 0; i < n; i += 16) {  // the first entry has no predecessor
    const __mmask16 valid = static_cast<__mmask16>((n - i >= 16 ? 0xffffu : (1u << (n - i)) - 1) & (i == 0 ? 0xfffeu : 0xffffu));
    const __m512i current = _mm512_maskz_loadu_epi32(valid, documents + i);
    const __m512i previous = _mm512_maskz_loadu_epi32(valid, documents + i - 1);
    mask[i / 64] |= static_cast<std::uint64_t>(_mm512_mask_cmpeq_epi32_mask(valid, current, previous)) << (i % 64);
  }
}

inline __mmask16 lanes_at(const std::uint64_t mask[3], std::size_t i) { return static_cast<__mmask16>(mask[i / 64] >> (i % 64)); }

// The mask shifted down by `shift` ≥ 1 entries.
inline void shift_down(const std::uint64_t mask[3], std::size_t shift, std::uint64_t out[3]) {
  const std::size_t words = shift / 64, bits = shift % 64;
  for (std::size_t word = 0; word < 3; ++word) {
    const std::uint64_t low = word + words < 3 ? mask[word + words] : 0, high = word + words + 1 < 3 ? mask[word + words + 1] : 0;
    out[word] = bits == 0 ? low : low >> bits | high << (64 - bits);
  }
}

// After the steps 1, 2, 4, … an entry holds the maximum of the next 2, 4, 8, … entries of its run. In ascending order, an
// entry reads the one `step` after it before that one changes.
void fold_avx512(float* values, std::size_t n, const std::uint64_t mask[3]) {
  std::uint64_t joined[3], shifted[3];
  shift_down(mask, 1, joined);  // bit i: entry i + 1 has the document of entry i
  for (std::size_t step = 1; (joined[0] | joined[1] | joined[2]) != 0; step *= 2) {
    for (std::size_t i = 0; i < n; i += 16) {
      const __mmask16 lanes = lanes_at(joined, i);
      const __m512 current = _mm512_maskz_loadu_ps(lanes, values + i), later = _mm512_maskz_loadu_ps(lanes, values + i + step);
      _mm512_mask_storeu_ps(values + i, lanes, _mm512_max_ps(current, later));
    }
    shift_down(joined, step, shifted);
    for (std::size_t word = 0; word < 3; ++word) joined[word] &= shifted[word];
  }
  for (std::size_t i = 0; i < n; i += 16) _mm512_mask_storeu_ps(values + i, lanes_at(mask, i), _mm512_setzero_ps());
}

void finish_any(const std::uint32_t* documents, float* values, std::size_t n, bool floor) {
  std::uint64_t mask[3];
  repeats_avx512(documents, n, mask);
  fold_avx512(values, n, mask);
  normalize(values, n, floor);
}

struct Bits128 {
  std::uint64_t low, high;
  bool any() const { return (low | high) != 0; }
  Bits128 down(unsigned shift) const { return {low >> shift | high << (64 - shift), high >> shift}; }
  Bits128 operator&(const Bits128& other) const { return {low & other.low, high & other.high}; }
  __mmask16 lanes(std::size_t i) const { return static_cast<__mmask16>((i < 4 ? low : high) >> (16 * (i % 4))); }
};

// Each entry becomes the maximum of itself and the entry `Step` after it, which is still unchanged, if both are in one run.
template <int Step>
inline void take_maxima(__m512 v[8], const Bits128& joined) {
#pragma GCC unroll 8
  for (std::size_t i = 0; i < 8; ++i) {
    const __m512i next = i < 7 ? _mm512_castps_si512(v[i + 1]) : _mm512_setzero_si512();
    const __m512 later = _mm512_castsi512_ps(_mm512_alignr_epi32(next, _mm512_castps_si512(v[i]), Step));
    v[i] = _mm512_mask_max_ps(v[i], joined.lanes(i), v[i], later);
  }
}

// Fold runs of up to 16 in a block of 128, all in registers. Returns false if a run is longer.
inline bool fold_block(__m512 v[8], const Bits128& repeated) {
  const Bits128 one = repeated.down(1), two = one & one.down(1), four = two & two.down(2), eight = four & four.down(4);
  if ((eight & eight.down(8)).any()) return false;
  take_maxima<1>(v, one);
  if (two.any()) take_maxima<2>(v, two);
  if (four.any()) take_maxima<4>(v, four);
  if (eight.any()) take_maxima<8>(v, eight);
#pragma GCC unroll 8
  for (std::size_t i = 0; i < 8; ++i) v[i] = _mm512_maskz_mov_ps(static_cast<__mmask16>(~repeated.lanes(i)), v[i]);
  return true;
}

inline Bits128 repeated_documents(const std::uint32_t* documents) {
  std::uint64_t words[2] = {};
#pragma GCC unroll 8
  for (std::size_t i = 0; i < 8; ++i) {
    const __m512i current = _mm512_loadu_si512(documents + 16 * i);
    const __m512i previous = i == 0 ? _mm512_maskz_loadu_epi32(0xfffe, documents - 1) : _mm512_loadu_si512(documents + 16 * i - 1);
    const std::uint64_t same = _mm512_mask_cmpeq_epi32_mask(i == 0 ? 0xfffe : 0xffff, current, previous);
    words[i / 4] |= same << (16 * (i % 4));
  }
  return {words[0], words[1]};
}

void finish_avx512(const std::uint32_t* documents, float* values, std::size_t n, bool floor) {
  if (n != 128) return finish_any(documents, values, n, floor);
  const Bits128 repeated = repeated_documents(documents);
  __m512 v[8];
#pragma GCC unroll 8
  for (std::size_t i = 0; i < 8; ++i) v[i] = _mm512_loadu_ps(values + 16 * i);
  if (repeated.any() && !fold_block(v, repeated)) return finish_any(documents, values, n, floor);
  const __m512 zero = _mm512_setzero_ps();
#pragma GCC unroll 8
  for (std::size_t i = 0; i < 8; ++i) _mm512_storeu_ps(values + 16 * i, floor ? _mm512_max_ps(v[i], zero) : _mm512_add_ps(v[i], zero));
}

// Append the offsets and values of the selected lanes; writes a whole register, whose rest is overwritten or never read.
// Compresses in a register because compressing to memory is slow on Zen 4.
inline std::size_t append(__m512 sums, __mmask16 selected, std::size_t first, std::uint32_t* offsets, float* values) {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i numbers = _mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int>(first)));
  _mm512_storeu_si512(offsets, _mm512_maskz_compress_epi32(selected, numbers));
  _mm512_storeu_ps(values, _mm512_maskz_compress_ps(selected, sums));
  return static_cast<std::size_t>(__builtin_popcount(selected));
}

// For a threshold > 0, four registers at a time: positive floats sort like their bits and negative ones have negative bits,
// so an integer maximum over 64 accumulators tells whether any passes. If so, all four registers are processed, since an
// unpredictable branch per register costs more.
std::size_t collect_positive(float* accumulators, std::size_t n, float threshold, std::uint32_t* offsets, float* values) {
  const __m512i untouched = _mm512_castps_si512(_mm512_set1_ps(-0.0f)), thresholds = _mm512_castps_si512(_mm512_set1_ps(threshold));
  std::size_t count = 0;
  for (std::size_t i = 0; i < n; i += 64) {
    __m512i r[4];
#pragma GCC unroll 4
    for (std::size_t part = 0; part < 4; ++part) r[part] = _mm512_loadu_si512(accumulators + i + 16 * part);
#pragma GCC unroll 4
    for (std::size_t part = 0; part < 4; ++part) _mm512_storeu_si512(accumulators + i + 16 * part, untouched);
    const __m512i largest = _mm512_max_epi32(_mm512_max_epi32(r[0], r[1]), _mm512_max_epi32(r[2], r[3]));
    if (_mm512_cmpge_epi32_mask(largest, thresholds) == 0) continue;
#pragma GCC unroll 4
    for (std::size_t part = 0; part < 4; ++part) {
      const __m512 sums = _mm512_castsi512_ps(r[part]);
      const __mmask16 selected = _mm512_cmp_ps_mask(sums, _mm512_castsi512_ps(thresholds), _CMP_GE_OQ);
      count += append(sums, selected, i + 16 * part, offsets + count, values + count);
    }
  }
  return count;
}

std::size_t collect_any(float* accumulators, std::size_t n, float threshold, std::uint32_t* offsets, float* values) {
  const __m512i untouched = _mm512_castps_si512(_mm512_set1_ps(-0.0f));
  std::size_t count = 0;
  for (std::size_t i = 0; i < n; i += 16) {
    const __m512 sums = _mm512_loadu_ps(accumulators + i);
    const __mmask16 touched = _mm512_cmpneq_epi32_mask(_mm512_castps_si512(sums), untouched);
    const __mmask16 selected = _mm512_mask_cmp_ps_mask(touched, sums, _mm512_set1_ps(threshold), _CMP_GE_OQ);
    count += append(sums, selected, i, offsets + count, values + count);
    _mm512_storeu_si512(accumulators + i, untouched);
  }
  return count;
}

std::size_t collect_avx512(float* accumulators, std::size_t n, float threshold, std::uint32_t* offsets, float* values) {
  const std::size_t whole = threshold > 0.0f ? n / 64 * 64 : 0;
  const std::size_t count = collect_positive(accumulators, whole, threshold, offsets, values);
  const std::size_t rest = collect_any(accumulators + whole, n - whole, threshold, offsets + count, values + count);
  for (std::size_t i = count; i < count + rest; ++i) offsets[i] += static_cast<std::uint32_t>(whole);
  return count + rest;
}

constexpr std::size_t kNearSpan = 128 * 24;  // most groups of sixteen documents lie within 512

// The 32-bit words of a set that hold the bits of sixteen ascending documents: from one register where they lie close together.
inline __m512i set_words(__m512i numbers, __mmask16 valid, std::uint32_t first, std::uint32_t last, const std::uint64_t* set) {
  const __m512i at = _mm512_srli_epi32(numbers, 5);
  if ((last >> 5) - (first >> 5) >= 16) return _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), valid, at, set, 4);
  const __m512i near = _mm512_loadu_si512(reinterpret_cast<const std::uint32_t*>(set) + (first >> 5));
  return _mm512_permutexvar_epi32(_mm512_sub_epi32(at, _mm512_set1_epi32(static_cast<int>(first >> 5))), near);
}

std::size_t select_avx512(const std::uint32_t* documents, std::size_t n, const std::uint64_t* set, std::uint32_t* positions) {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  std::size_t count = 0;
  for (std::size_t i = 0; i < n; i += 16) {
    const auto valid = static_cast<__mmask16>(n - i >= 16 ? 0xffffu : (1u << (n - i)) - 1);
    const __m512i numbers = _mm512_maskz_loadu_epi32(valid, documents + i);
    const __m512i words = set_words(numbers, valid, documents[i], documents[n - i >= 16 ? i + 15 : n - 1], set);
    const __m512i bits = _mm512_srlv_epi32(words, _mm512_and_si512(numbers, _mm512_set1_epi32(31)));
    const __mmask16 members = _mm512_mask_test_epi32_mask(valid, bits, _mm512_set1_epi32(1));
    const __m512i at = _mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int>(i)));
    _mm512_storeu_si512(positions + count, _mm512_maskz_compress_epi32(members, at));
    count += static_cast<std::size_t>(__builtin_popcount(members));
  }
  return count;
}

// A member can only be in the first of eight groups of 16 whose last document is not below it.
std::size_t match_avx512(const std::uint32_t* documents, const std::uint32_t* members, std::size_t count, std::uint32_t* positions) {
  const __m256i strides = _mm256_setr_epi32(15, 31, 47, 63, 79, 95, 111, 127);
  const __m256i lasts = _mm256_i32gather_epi32(reinterpret_cast<const int*>(documents), strides, 4);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto group = static_cast<std::size_t>(
        __builtin_popcount(_mm256_cmplt_epu32_mask(lasts, _mm256_set1_epi32(static_cast<int>(members[i])))));
    const __m512i member = _mm512_set1_epi32(static_cast<int>(members[i]));
    for (std::size_t start = 16 * group; start < 128; start += 16) {
      unsigned found = _mm512_cmpeq_epi32_mask(_mm512_loadu_si512(documents + start), member);
      const bool continues = found >> 15 != 0;  // in the next group
      for (; found != 0; found &= found - 1) positions[kept++] = static_cast<std::uint32_t>(start) + static_cast<std::uint32_t>(__builtin_ctz(found));
      if (!continues) break;
    }
  }
  return kept;
}

#include "kernels_router.hpp"
#include "kernels_rows.hpp"
#include "kernels_vbmi.hpp"

}  // namespace

const Kernels kAvx512Kernels = {"avx512vnni", 32, kNearSpan, int8, fp16_avx512, fp32, pq, pq_table, pq_assign, sparse, bm25, finish_avx512, collect_avx512, select_avx512, match_avx512, unpack_documents, unpack_counts, byte_products_avx512<>, logits_avx512, token_products_avx512<>, trellis, unpack_tokens_avx512, exceeding_avx512, byte_product_avx512, bound_bytes, residual_maxima, scaled_maxima, scaled_products, nearest_rows, quantize_row_avx512, gelu_row_avx512, add_row, scale_row};
const Kernels kAvx512VbmiKernels = {"avx512vnni", 32, kNearSpan, int8, fp16_avx512, fp32, pq_vbmi, pq_table_planes, pq_assign, sparse, bm25,
                                    finish_avx512, collect_avx512, select_avx512, match_avx512, unpack_documents_vbmi, unpack_counts_vbmi, byte_products_avx512<>, logits_avx512, token_products_avx512<>, trellis, unpack_tokens_vbmi, exceeding_avx512, byte_product_avx512, bound_bytes, residual_maxima, scaled_maxima, scaled_products, nearest_rows, quantize_row_avx512, gelu_row_avx512, add_row, scale_row};

}  // namespace citadel
