// Kernels that need byte permutations (AVX-512 VBMI); included by kernels_avx512.cpp.

#define CITADEL_VBMI __attribute__((target("avx512vbmi")))

// ---- packed document numbers ----------------------------------------------------------------------------------------

constexpr unsigned kMaxBits = 25;  // such a value spans at most 4 bytes, and 127 of them sum to less than 2^32

struct UnpackPlan {
  alignas(64) std::uint8_t bytes[kMaxBits + 1][64];    // byte permutation for 16 values
  alignas(64) std::uint32_t shifts[kMaxBits + 1][16];
};

constexpr UnpackPlan make_unpack_plan() {
  UnpackPlan plan{};
  for (unsigned bits = 0; bits <= kMaxBits; ++bits)
    for (unsigned value = 0; value < 16; ++value) {
      plan.shifts[bits][value] = value * bits % 8;
      for (unsigned byte = 0; byte < 4; ++byte) plan.bytes[bits][4 * value + byte] = static_cast<std::uint8_t>(value * bits / 8 + byte);
    }
  return plan;
}

constexpr UnpackPlan kUnpackPlan = make_unpack_plan();

// 16 values of `bits` bits, which take 2 · bits bytes; 64 bytes are read.
CITADEL_VBMI inline __m512i sixteen_values(const std::uint8_t* in, unsigned bits) {
  const __m512i bytes = _mm512_permutexvar_epi8(_mm512_load_si512(kUnpackPlan.bytes[bits]), _mm512_loadu_si512(in));
  const __m512i shifted = _mm512_srlv_epi32(bytes, _mm512_load_si512(kUnpackPlan.shifts[bits]));
  return _mm512_and_si512(shifted, _mm512_set1_epi32(static_cast<int>((1u << bits) - 1)));
}

inline __m512i prefix_sums(__m512i x) {
  const __m512i zero = _mm512_setzero_si512();
  x = _mm512_add_epi32(x, _mm512_alignr_epi32(x, zero, 15));
  x = _mm512_add_epi32(x, _mm512_alignr_epi32(x, zero, 14));
  x = _mm512_add_epi32(x, _mm512_alignr_epi32(x, zero, 12));
  return _mm512_add_epi32(x, _mm512_alignr_epi32(x, zero, 8));
}

// Whether groups of 16 values can be read: each group loads 64 bytes.
inline bool groups_readable(std::uint64_t readable, unsigned bits, std::size_t groups) {
  return bits <= kMaxBits && readable >= (groups - 1) * 2 * bits + 64;
}

CITADEL_VBMI std::uint64_t unpack_documents_vbmi(const std::uint8_t* in, std::uint64_t readable, unsigned bits, std::uint32_t first,
                                                 std::size_t count, std::uint32_t* out) {
  if (count + 1 != kBlock || !groups_readable(readable, bits, kBlock / 16)) return unpack_documents(in, readable, bits, first, count, out);
  const __m512i last = _mm512_set1_epi32(15);
  __m512i previous = _mm512_set1_epi32(static_cast<int>(first));
  out[0] = first;
  for (std::size_t i = 0; i < kBlock; i += 16, in += 2 * bits) {
    const __m512i numbers = _mm512_add_epi32(previous, prefix_sums(sixteen_values(in, bits)));
    if (i + 16 < kBlock) _mm512_storeu_si512(out + 1 + i, numbers);
    else _mm512_mask_storeu_epi32(out + 1 + i, 0x7fff, numbers);  // a block has 127 deltas
    previous = _mm512_permutexvar_epi32(last, numbers);
  }
  return first + std::uint64_t{out[kBlock - 1] - first};
}

CITADEL_VBMI void unpack_counts_vbmi(const std::uint8_t* in, std::uint64_t readable, unsigned bits, std::size_t count, std::uint32_t* out) {
  if (count != kBlock || !groups_readable(readable, bits, kBlock / 16)) return unpack_counts(in, readable, bits, count, out);
  for (std::size_t i = 0; i < kBlock; i += 16, in += 2 * bits)
    _mm512_storeu_si512(out + i, _mm512_add_epi32(sixteen_values(in, bits), _mm512_set1_epi32(1)));
}

// ---- product quantization -------------------------------------------------------------------------------------------

// A lookup in 256 two-byte entries is two lookups in 256 bytes, each done for 64 postings at once by byte permutations.
// The planes of low and high bytes [S, 2, 256] follow the entries.
float pq_table_planes(const float* centroids, std::size_t subvectors, std::size_t sub, const float* q, float* scratch,
                      std::int16_t* entries) {
  const float step = pq_table(centroids, subvectors, sub, q, scratch, entries);
  auto* planes = reinterpret_cast<std::uint8_t*>(entries + subvectors * kCentroids);
  for (std::size_t s = 0; s < subvectors; ++s)
    for (std::size_t c = 0; c < kCentroids; c += 32) {
      const __m512i pairs = _mm512_loadu_si512(entries + s * kCentroids + c);
      std::uint8_t* plane = planes + 2 * s * kCentroids + c;
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(plane), _mm512_cvtepi16_epi8(pairs));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(plane + kCentroids), _mm512_cvtepi16_epi8(_mm512_srli_epi16(pairs, 8)));
    }
  return step;
}

// out[r] = lane r of each of the four registers.
inline void transpose_lanes(__m512i a, __m512i b, __m512i c, __m512i d, __m512i out[4]) {
  const __m512i ab_low = _mm512_shuffle_i32x4(a, b, 0x44), ab_high = _mm512_shuffle_i32x4(a, b, 0xee);
  const __m512i cd_low = _mm512_shuffle_i32x4(c, d, 0x44), cd_high = _mm512_shuffle_i32x4(c, d, 0xee);
  out[0] = _mm512_shuffle_i32x4(ab_low, cd_low, 0x88);
  out[1] = _mm512_shuffle_i32x4(ab_low, cd_low, 0xdd);
  out[2] = _mm512_shuffle_i32x4(ab_high, cd_high, 0x88);
  out[3] = _mm512_shuffle_i32x4(ab_high, cd_high, 0xdd);
}

template <std::size_t Subvectors>
struct CodeOrder {  // permutation that groups a register's codes by sub-vector
  alignas(64) std::uint8_t bytes[64];
  constexpr CodeOrder() : bytes{} {
    constexpr std::size_t kRows = 64 / Subvectors;
    for (std::size_t s = 0; s < Subvectors; ++s)
      for (std::size_t row = 0; row < kRows; ++row) bytes[s * kRows + row] = static_cast<std::uint8_t>(row * Subvectors + s);
  }
};

template <std::size_t Subvectors>
constexpr CodeOrder<Subvectors> kCodeOrder{};

// Codes of 64 postings [64, S] → S registers of 64 codes each, S = 8 or 4.
template <std::size_t Subvectors>
CITADEL_VBMI inline void transpose_codes(const std::uint8_t* codes, __m512i* out) {
  __m512i r[Subvectors];
  for (std::size_t i = 0; i < Subvectors; ++i)
    r[i] = _mm512_permutexvar_epi8(_mm512_load_si512(kCodeOrder<Subvectors>.bytes), _mm512_loadu_si512(codes + 64 * i));
  if constexpr (Subvectors == 4) return transpose_lanes(r[0], r[1], r[2], r[3], out);
  else {
    __m512i even[4], odd[4];
    transpose_lanes(_mm512_unpacklo_epi64(r[0], r[1]), _mm512_unpacklo_epi64(r[2], r[3]), _mm512_unpacklo_epi64(r[4], r[5]),
                    _mm512_unpacklo_epi64(r[6], r[7]), even);
    transpose_lanes(_mm512_unpackhi_epi64(r[0], r[1]), _mm512_unpackhi_epi64(r[2], r[3]), _mm512_unpackhi_epi64(r[4], r[5]),
                    _mm512_unpackhi_epi64(r[6], r[7]), odd);
    for (std::size_t i = 0; i < 4; ++i) out[2 * i] = even[i], out[2 * i + 1] = odd[i];
  }
}

// Look up one byte of each code's entry.
CITADEL_VBMI inline __m512i plane_bytes(__m512i codes, __mmask64 high, const std::uint8_t* plane) {
  const __m512i low_half = _mm512_permutex2var_epi8(_mm512_loadu_si512(plane), codes, _mm512_loadu_si512(plane + 64));
  const __m512i high_half = _mm512_permutex2var_epi8(_mm512_loadu_si512(plane + 128), codes, _mm512_loadu_si512(plane + 192));
  return _mm512_mask_mov_epi8(low_half, high, high_half);
}

// Add the entries of 64 codes in one table. Lane l of sums[0] holds postings 16·l … 16·l + 7, sums[1] the next eight.
CITADEL_VBMI inline void add_entries(__m512i codes, const std::uint8_t* planes, __m512i sums[2]) {
  const __mmask64 high = _mm512_movepi8_mask(codes);
  const __m512i low_bytes = plane_bytes(codes, high, planes), high_bytes = plane_bytes(codes, high, planes + kCentroids);
  sums[0] = _mm512_add_epi16(sums[0], _mm512_unpacklo_epi8(low_bytes, high_bytes));
  sums[1] = _mm512_add_epi16(sums[1], _mm512_unpackhi_epi8(low_bytes, high_bytes));
}

inline void store_scaled(__m256i sums, float step, float scale, float* out) {
  const __m512 exact = _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(sums));
  _mm512_storeu_ps(out, _mm512_mul_ps(_mm512_mul_ps(exact, _mm512_set1_ps(step)), _mm512_set1_ps(scale)));
}

// Scale and store the sums of add_entries in posting order.
inline void store_in_order(const __m512i sums[2], float step, float scale, float* out) {
  const __m512i first = _mm512_permutex2var_epi64(sums[0], _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), sums[1]);
  const __m512i second = _mm512_permutex2var_epi64(sums[0], _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), sums[1]);
  store_scaled(_mm512_castsi512_si256(first), step, scale, out);
  store_scaled(_mm512_extracti64x4_epi64(first, 1), step, scale, out + 16);
  store_scaled(_mm512_castsi512_si256(second), step, scale, out + 32);
  store_scaled(_mm512_extracti64x4_epi64(second, 1), step, scale, out + 48);
}

template <std::size_t Subvectors>
CITADEL_VBMI void pq_block(const std::uint8_t* codes, PqTable table, float scale, float* out) {
  const auto* planes = reinterpret_cast<const std::uint8_t*>(table.entries + Subvectors * kCentroids);
  __m512i columns[2][Subvectors], sums[2][2] = {};
  for (std::size_t half = 0; half < 2; ++half) transpose_codes<Subvectors>(codes + 64 * Subvectors * half, columns[half]);
  for (std::size_t s = 0; s < Subvectors; ++s)
    for (std::size_t half = 0; half < 2; ++half) add_entries(columns[half][s], planes + 2 * kCentroids * s, sums[half]);
  for (std::size_t half = 0; half < 2; ++half) store_in_order(sums[half], table.step, scale, out + 64 * half);
}

void pq_vbmi(const std::uint8_t* codes, std::size_t n, std::size_t subvectors, PqTable table, float scale, float* out) {
  if (n == 128 && subvectors == 8) return pq_block<8>(codes, table, scale, out);
  if (n == 128 && subvectors == 4) return pq_block<4>(codes, table, scale, out);
  pq(codes, n, subvectors, table, scale, out);
}

// ---- codes along a trellis ------------------------------------------------------------------------------------------

struct WindowPlan {
  alignas(64) std::uint8_t bytes[64];   // eight dimensions: the byte before their codes, and the bytes of these
  alignas(64) std::uint8_t shifts[64];  // of the windows in these bytes
};

constexpr WindowPlan make_window_plan(unsigned bits) {
  WindowPlan plan{};
  for (unsigned i = 0; i < 64; ++i) {
    plan.bytes[i] = static_cast<std::uint8_t>(i / 8 * bits + i % 8);
    plan.shifts[i] = static_cast<std::uint8_t>(2 + bits + bits * (i % 8));
  }
  return plan;
}

constexpr WindowPlan kWindowPlans[] = {make_window_plan(1), make_window_plan(2), make_window_plan(4)};

CITADEL_VBMI void unpack_tokens_vbmi(const std::uint8_t* codes, std::size_t rows, std::size_t width, const TokenValues& values,
                                     std::uint8_t* out) {
  if (values.memory == 0) return unpack_tokens_avx512(codes, rows, width, values, out);
  const WindowPlan& plan = kWindowPlans[values.bits / 2];
  const __m512i table = _mm512_loadu_si512(values.buckets), bytes = _mm512_load_si512(plan.bytes), shifts = _mm512_load_si512(plan.shifts);
  const std::size_t step = 8 * values.bits;
  for (std::size_t row = 0; row < rows; ++row, codes += width, out += kTokenStride)
    for (std::size_t at = 0; at < width; at += step) {
      const std::size_t own = width - at < step ? width - at : step;
      const std::uint64_t mask = ((std::uint64_t{2} << own) - 1) & ~std::uint64_t{at == 0};
      const __m512i loaded = _mm512_permutexvar_epi8(bytes, _mm512_maskz_loadu_epi8(mask, codes + at - 1));
      _mm512_storeu_si512(out + at * (8 / values.bits), _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(shifts, loaded), table));
    }
}
