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

// vpdpbusd multiplies unsigned by signed bytes: codes are shifted up by 128 and 128 · Σq is taken off at the end.
inline __m512i shifted(const std::uint8_t* codes) { return _mm512_xor_si512(_mm512_loadu_si512(codes), _mm512_set1_epi8(-128)); }

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

// Sixteen rows of 32 dimensions: two rows a register.
inline __m512i sixteen_dots_32(const std::uint8_t* codes, __m512i q) {
  __m512i r[8];
#pragma GCC unroll 8
  for (int pair = 0; pair < 8; ++pair) r[pair] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), shifted(codes + 64 * pair), q);
#pragma GCC unroll 8
  for (int pair = 0; pair < 8; ++pair) __builtin_prefetch(codes + 64 * pair + 32 * kAhead, 0, 2);
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
  for (; j + 64 <= d; j += 64) sums = _mm512_dpbusd_epi32(sums, shifted(codes + j), _mm512_loadu_si512(q + j));
  if (j == d) return sums;
  const __mmask64 rest = (std::uint64_t{1} << (d - j)) - 1;  // the query's padding is 0, so what the other bytes are is all the same
  const __m512i last = _mm512_xor_si512(_mm512_maskz_loadu_epi8(rest, codes + j), _mm512_set1_epi8(-128));
  return _mm512_dpbusd_epi32(sums, last, _mm512_loadu_si512(q + j));
}

std::size_t int8_any(const std::uint8_t* codes, const std::uint8_t* scales, std::size_t n, std::size_t d, const Int8Query& q, float* out) {
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    __m512i four[4];
    for (std::size_t f = 0; f < 4; ++f) {  // rows f, f + 4, …: their sums then stand where the transposition below wants them
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

// The 16 lanes of one row's sum: products of dimensions l, l + 16, … in this order.
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

// The same additions for 16 rows at once: each step adds the upper half of every row's lanes to the lower one.
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
  for (std::size_t i = 0; i < n; i += 16) {  // the entry before the first is never compared
    const __mmask16 valid = static_cast<__mmask16>((n - i >= 16 ? 0xffffu : (1u << (n - i)) - 1) & (i == 0 ? 0xfffeu : 0xffffu));
    const __m512i here = _mm512_maskz_loadu_epi32(valid, documents + i);
    const __m512i before = _mm512_maskz_loadu_epi32(valid, documents + i - 1);
    mask[i / 64] |= static_cast<std::uint64_t>(_mm512_mask_cmpeq_epi32_mask(valid, here, before)) << (i % 64);
  }
}

inline __mmask16 lanes_at(const std::uint64_t mask[3], std::size_t i) { return static_cast<__mmask16>(mask[i / 64] >> (i % 64)); }

// mask moved down by `shift` entries, 1 to 63, or 64 and more.
inline void move_down(const std::uint64_t mask[3], std::size_t shift, std::uint64_t out[3]) {
  const std::size_t words = shift / 64, bits = shift % 64;
  for (std::size_t word = 0; word < 3; ++word) {
    const std::uint64_t low = word + words < 3 ? mask[word + words] : 0, high = word + words + 1 < 3 ? mask[word + words + 1] : 0;
    out[word] = bits == 0 ? low : low >> bits | high << (64 - bits);
  }
}

// Entries that know the maximum of the next 1, 2, 4, … of their run: as many steps as the longest run has doublings. Going up,
// an entry reads what stands `step` behind it before that is changed.
void fold_avx512(float* values, std::size_t n, const std::uint64_t mask[3]) {
  std::uint64_t joined[3], moved[3];
  move_down(mask, 1, joined);  // bit i: entry i + 1 goes on with the document of entry i
  for (std::size_t step = 1; (joined[0] | joined[1] | joined[2]) != 0; step *= 2) {
    for (std::size_t i = 0; i < n; i += 16) {
      const __mmask16 lanes = lanes_at(joined, i);
      const __m512 here = _mm512_maskz_loadu_ps(lanes, values + i), there = _mm512_maskz_loadu_ps(lanes, values + i + step);
      _mm512_mask_storeu_ps(values + i, lanes, _mm512_max_ps(here, there));
    }
    move_down(joined, step, moved);
    for (std::size_t word = 0; word < 3; ++word) joined[word] &= moved[word];
  }
  for (std::size_t i = 0; i < n; i += 16) _mm512_mask_storeu_ps(values + i, lanes_at(mask, i), _mm512_setzero_ps());
}

void finish_any(const std::uint32_t* documents, float* values, std::size_t n, bool floor) {
  std::uint64_t mask[3];
  repeats_avx512(documents, n, mask);
  fold_avx512(values, n, mask);
  normalise(values, n, floor);
}

struct Bits128 {
  std::uint64_t low, high;
  bool any() const { return (low | high) != 0; }
  Bits128 down(unsigned shift) const { return {low >> shift | high << (64 - shift), high >> shift}; }
  Bits128 operator&(const Bits128& other) const { return {low & other.low, high & other.high}; }
  __mmask16 lanes(std::size_t i) const { return static_cast<__mmask16>((i < 4 ? low : high) >> (16 * (i % 4))); }
};

// Each entry takes the maximum with the one `Step` behind it where both belong to one run. Going up, that one is still as it was.
template <int Step>
inline void take_maxima(__m512 v[8], const Bits128& joined) {
#pragma GCC unroll 8
  for (std::size_t i = 0; i < 8; ++i) {
    const __m512i next = i < 7 ? _mm512_castps_si512(v[i + 1]) : _mm512_setzero_si512();
    const __m512 behind = _mm512_castsi512_ps(_mm512_alignr_epi32(next, _mm512_castps_si512(v[i]), Step));
    v[i] = _mm512_mask_max_ps(v[i], joined.lanes(i), v[i], behind);
  }
}

// Runs of up to 16 within a block of 128, all in registers; gives false for a longer one.
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
    const __m512i here = _mm512_loadu_si512(documents + 16 * i);
    const __m512i before = i == 0 ? _mm512_maskz_loadu_epi32(0xfffe, documents - 1) : _mm512_loadu_si512(documents + 16 * i - 1);
    const std::uint64_t same = _mm512_mask_cmpeq_epi32_mask(i == 0 ? 0xfffe : 0xffff, here, before);
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

// Append the places and values of one register's good lanes; what is written behind them is overwritten or never read.
// Compressed in a register: to memory is slow on Zen 4.
inline std::size_t append(__m512 sums, __mmask16 good, std::size_t first, std::uint32_t* places, float* values) {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i numbers = _mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int>(first)));
  _mm512_storeu_si512(places, _mm512_maskz_compress_epi32(good, numbers));
  _mm512_storeu_ps(values, _mm512_maskz_compress_ps(good, sums));
  return static_cast<std::size_t>(__builtin_popcount(good));
}

// Four registers at a time. Positive floats order like their bits and negative ones are negative, so that above a threshold
// > 0 the largest bits of 64 accumulators say whether one of them needs a look; then all four are looked at without asking
// which, for a branch that nobody can foresee costs more.
std::size_t collect_positive(float* accumulators, std::size_t n, float threshold, std::uint32_t* places, float* values) {
  const __m512i untouched = _mm512_castps_si512(_mm512_set1_ps(-0.0f)), least = _mm512_castps_si512(_mm512_set1_ps(threshold));
  std::size_t found = 0;
  for (std::size_t i = 0; i < n; i += 64) {
    __m512i r[4];
#pragma GCC unroll 4
    for (std::size_t part = 0; part < 4; ++part) r[part] = _mm512_loadu_si512(accumulators + i + 16 * part);
#pragma GCC unroll 4
    for (std::size_t part = 0; part < 4; ++part) _mm512_storeu_si512(accumulators + i + 16 * part, untouched);
    const __m512i largest = _mm512_max_epi32(_mm512_max_epi32(r[0], r[1]), _mm512_max_epi32(r[2], r[3]));
    if (_mm512_cmpge_epi32_mask(largest, least) == 0) continue;
#pragma GCC unroll 4
    for (std::size_t part = 0; part < 4; ++part) {
      const __m512 sums = _mm512_castsi512_ps(r[part]);
      const __mmask16 good = _mm512_cmp_ps_mask(sums, _mm512_castsi512_ps(least), _CMP_GE_OQ);
      found += append(sums, good, i + 16 * part, places + found, values + found);
    }
  }
  return found;
}

std::size_t collect_any(float* accumulators, std::size_t n, float threshold, std::uint32_t* places, float* values) {
  const __m512i untouched = _mm512_castps_si512(_mm512_set1_ps(-0.0f));
  std::size_t found = 0;
  for (std::size_t i = 0; i < n; i += 16) {
    const __m512 sums = _mm512_loadu_ps(accumulators + i);
    const __mmask16 touched = _mm512_cmpneq_epi32_mask(_mm512_castps_si512(sums), untouched);
    const __mmask16 good = _mm512_mask_cmp_ps_mask(touched, sums, _mm512_set1_ps(threshold), _CMP_GE_OQ);
    found += append(sums, good, i, places + found, values + found);
    _mm512_storeu_si512(accumulators + i, untouched);
  }
  return found;
}

std::size_t collect_avx512(float* accumulators, std::size_t n, float threshold, std::uint32_t* places, float* values) {
  const std::size_t whole = threshold > 0.0f ? n / 64 * 64 : 0;
  const std::size_t found = collect_positive(accumulators, whole, threshold, places, values);
  const std::size_t rest = collect_any(accumulators + whole, n - whole, threshold, places + found, values + found);
  for (std::size_t i = found; i < found + rest; ++i) places[i] += static_cast<std::uint32_t>(whole);
  return found + rest;
}

#include "kernels_router.hpp"
#include "kernels_vbmi.hpp"

}  // namespace

const Kernels kAvx512Kernels = {"avx512vnni", 32, int8, fp16_avx512, fp32, pq, pq_table, pq_assign, sparse, bm25, finish_avx512, collect_avx512, unpack_documents, unpack_counts, byte_products_avx512<>, logits_avx512};
const Kernels kAvx512VbmiKernels = {"avx512vnni", 32, int8, fp16_avx512, fp32, pq_vbmi, pq_table_planes, pq_assign, sparse, bm25,
                                    finish_avx512, collect_avx512, unpack_documents_vbmi, unpack_counts_vbmi, byte_products_avx512<>, logits_avx512};

}  // namespace citadel
