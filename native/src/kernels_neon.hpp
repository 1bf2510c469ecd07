// NEON kernels with and without byte dot products; included by kernels_neon.cpp and kernels_neon_dot.cpp inside their
// anonymous namespaces, after kernels_common.hpp and these two:
//
//   add_products(sums, a, q)  a · q added to four sums in any arrangement; q is never -128
//   add_groups(sums, a, b)    sums[k] + Σ_i a[4k + i] · b[4k + i], any bytes

inline float32x4_t four_halves(const std::uint8_t* bytes) {
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(bytes)));
}

inline int8x16_t load_codes(const std::uint8_t* codes) { return vreinterpretq_s8_u8(vld1q_u8(codes)); }

// One bit per lane of a comparison.
inline std::uint32_t lane_bits(uint32x4_t lanes) {
  const std::uint32_t powers[4] = {1, 2, 4, 8};
  return vaddvq_u32(vandq_u32(lanes, vld1q_u32(powers)));
}

inline int32x4_t row_sums(const std::uint8_t* codes, std::size_t d, const std::int8_t* q) {
  int32x4_t sums = vdupq_n_s32(0);
  std::size_t j = 0;
  for (; j + 16 <= d; j += 16) sums = add_products(sums, load_codes(codes + j), vld1q_s8(q + j));
  if (j == d) return sums;
  std::uint8_t rest[16] = {};
  __builtin_memcpy(rest, codes + j, d - j);
  return add_products(sums, load_codes(rest), vld1q_s8(q + j));
}

// Dot products of four rows.
inline int32x4_t four_dots(const std::uint8_t* codes, std::size_t d, const std::int8_t* q) {
  const int32x4_t low = vpaddq_s32(row_sums(codes, d, q), row_sums(codes + d, d, q));
  const int32x4_t high = vpaddq_s32(row_sums(codes + 2 * d, d, q), row_sums(codes + 3 * d, d, q));
  return vpaddq_s32(low, high);
}

void int8_neon(const std::uint8_t* codes, const std::uint8_t* scales, std::size_t n, std::size_t d, Int8Query q, float* out) {
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const int32x4_t dots = d == 32 ? four_dots(codes + i * 32, 32, q.codes) : four_dots(codes + i * d, d, q.codes);
    const float32x4_t scaled = vmulq_f32(vcvtq_f32_s32(dots), four_halves(scales + 2 * i));
    vst1q_f32(out + i, vmulq_f32(scaled, vdupq_n_f32(q.scale)));
  }
  int8_plain(codes + i * d, scales + 2 * i, n - i, d, q, out + i);
}

inline void add_sixteen(const std::uint8_t* vector, const float* q, float32x4_t sums[4]) {
  for (std::size_t part = 0; part < 4; ++part)
    sums[part] = vaddq_f32(sums[part], vmulq_f32(vld1q_f32(q + 4 * part), four_halves(vector + 8 * part)));
}

// The 16 partial sums of one row, folded to four: lane l adds dimensions l, l + 16, … in this order.
inline float32x4_t row_lanes(const std::uint8_t* vector, std::size_t d, const float* q) {
  float32x4_t sums[4] = {vdupq_n_f32(0.0f), vdupq_n_f32(0.0f), vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)};
  std::size_t j = 0;
  for (; j + kLanes <= d; j += kLanes) add_sixteen(vector + 2 * j, q + j, sums);
  if (j < d) {
    std::uint8_t rest[2 * kLanes] = {};
    __builtin_memcpy(rest, vector + 2 * j, 2 * (d - j));
    add_sixteen(rest, q + j, sums);
  }
  return vaddq_f32(vaddq_f32(sums[0], sums[2]), vaddq_f32(sums[1], sums[3]));
}

inline float32x4_t fold_pair(float32x4_t a, float32x4_t b) {
  return vaddq_f32(vcombine_f32(vget_low_f32(a), vget_low_f32(b)), vcombine_f32(vget_high_f32(a), vget_high_f32(b)));
}

void fp16_neon(const std::uint8_t* vectors, std::size_t n, std::size_t d, const float* q, float* out) {
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    float32x4_t rows[4];
    for (std::size_t row = 0; row < 4; ++row) rows[row] = row_lanes(vectors + (i + row) * d * 2, d, q);
    vst1q_f32(out + i, vpaddq_f32(fold_pair(rows[0], rows[1]), fold_pair(rows[2], rows[3])));
  }
  fp16(vectors + i * d * 2, n - i, d, q, out + i);
}

void finish_neon(const std::uint32_t* documents, float* values, std::size_t n, bool floor) {
  std::uint64_t mask[3] = {};
  std::size_t i = 1;
  for (; i + 4 <= n; i += 4) {
    const std::uint64_t equal = lane_bits(vceqq_u32(vld1q_u32(documents + i), vld1q_u32(documents + i - 1)));
    mask[i / 64] |= equal << (i % 64);
    if (i % 64 > 60) mask[i / 64 + 1] |= equal >> (64 - i % 64);
  }
  for (; i < n; ++i) mask[i / 64] |= static_cast<std::uint64_t>(documents[i] == documents[i - 1]) << (i % 64);
  fold(values, n, mask);
  normalize(values, n, floor);
}

std::size_t collect_neon(float* accumulators, std::size_t n, float threshold, std::uint32_t* offsets, float* values) {
  const float32x4_t thresholds = vdupq_n_f32(threshold);
  const uint32x4_t untouched = vdupq_n_u32(kUntouched);
  std::size_t count = 0;
  for (std::size_t i = 0; i < n; i += kLanes) {
    uint32x4_t selected[4];
    for (std::size_t part = 0; part < 4; ++part) {
      const float32x4_t sums = vld1q_f32(accumulators + i + 4 * part);
      selected[part] = vbicq_u32(vcgeq_f32(sums, thresholds), vceqq_u32(vreinterpretq_u32_f32(sums), untouched));
    }
    const uint32x4_t any = vorrq_u32(vorrq_u32(selected[0], selected[1]), vorrq_u32(selected[2], selected[3]));
    if (vmaxvq_u32(any) != 0)
      for (std::size_t part = 0; part < 4; ++part)
        for (std::uint32_t mask = lane_bits(selected[part]); mask != 0; mask &= mask - 1) {
          const auto offset = static_cast<std::uint32_t>(i + 4 * part) + static_cast<std::uint32_t>(__builtin_ctz(mask));
          offsets[count] = offset;
          values[count++] = accumulators[offset];
        }
    for (std::size_t part = 0; part < 4; ++part) vst1q_f32(accumulators + i + 4 * part, vreinterpretq_f32_u32(untouched));
  }
  return count;
}

// ---- router product ---------------------------------------------------------------------------------------------------

static_assert(kKeyBlock == 32);  // eight registers of four sums

// 128 · Σ codes of each key: what the bias of the states takes away from every sum.
inline void bias_sums(const std::int8_t* codes, std::size_t groups, std::size_t ahead, int32x4_t out[8]) {
  const int8x16_t ones = vdupq_n_s8(1);
  for (std::size_t part = 0; part < 8; ++part) out[part] = vdupq_n_s32(0);
  for (std::size_t group = 0; group < groups; ++group, codes += 128) {
    __builtin_prefetch(codes + ahead), __builtin_prefetch(codes + ahead + 64);
    for (std::size_t part = 0; part < 8; ++part) out[part] = add_groups(out[part], vld1q_s8(codes + 16 * part), ones);
  }
  for (std::size_t part = 0; part < 8; ++part) out[part] = vshlq_n_s32(out[part], 7);
}

// Two or one rows of states, biased by 128 to signed bytes. A row's next group is `group_step` words further
// on, the next row `row_step`.
template <std::size_t Rows>
inline void state_products(const std::uint32_t* states, std::size_t group_step, std::size_t row_step,
                           const std::int8_t* codes, std::size_t groups, const int32x4_t bias[8],
                           std::int32_t* sums) {
  int32x4_t totals[Rows][8];
  for (std::size_t row = 0; row < Rows; ++row)
    for (std::size_t part = 0; part < 8; ++part) totals[row][part] = bias[part];
  for (std::size_t group = 0; group < groups; ++group, states += group_step, codes += 128) {
    int8x16_t state[Rows];
    for (std::size_t row = 0; row < Rows; ++row)
      state[row] = vreinterpretq_s8_u32(vdupq_n_u32(states[row * row_step] ^ 0x80808080u));
    for (std::size_t part = 0; part < 8; ++part) {
      const int8x16_t keys = vld1q_s8(codes + 16 * part);
      for (std::size_t row = 0; row < Rows; ++row) totals[row][part] = add_groups(totals[row][part], keys, state[row]);
    }
  }
  for (std::size_t row = 0; row < Rows; ++row)
    for (std::size_t part = 0; part < 8; ++part) vst1q_s32(sums + row * kKeyBlock + 4 * part, totals[row][part]);
}

void byte_products_neon(const std::uint32_t* states, std::size_t rows, const std::int8_t* codes, std::size_t groups, std::size_t ahead,
                        std::int32_t* sums) {
  int32x4_t bias[8];
  bias_sums(codes, groups, ahead, bias);
  std::size_t row = 0;
  for (; row + 2 <= rows; row += 2)
    state_products<2>(states + row, rows, 1, codes, groups, bias, sums + row * kKeyBlock);
  if (row < rows) state_products<1>(states + row, rows, 1, codes, groups, bias, sums + row * kKeyBlock);
}

void token_products_neon(const std::uint8_t* tokens, std::size_t rows, const std::int8_t* codes,
                         std::size_t groups, std::int32_t* sums) {
  constexpr std::size_t kStep = kTokenStride / sizeof(std::uint32_t);
  const auto* states = reinterpret_cast<const std::uint32_t*>(tokens);
  int32x4_t bias[8];
  bias_sums(codes, groups, 0, bias);
  std::size_t row = 0;
  for (; row + 2 <= rows; row += 2)
    state_products<2>(states + row * kStep, 1, kStep, codes, groups, bias, sums + row * kKeyBlock);
  if (row < rows)
    state_products<1>(states + row * kStep, 1, kStep, codes, groups, bias, sums + row * kKeyBlock);
}

void logits_neon(const std::int32_t* sums, std::size_t rows, KeyParameters keys, const float* threshold, float* out, std::uint32_t* above) {
  for (std::size_t row = 0; row < rows; ++row, sums += kKeyBlock, out += kKeyBlock) {
    above[row] = 0;
    for (std::size_t key = 0; key < kKeyBlock; key += 4) {
      const float32x4_t exact = vcvtq_f32_s32(vsubq_s32(vld1q_s32(sums + key), vld1q_s32(keys.offsets + key)));
      const float32x4_t logit = vaddq_f32(vmulq_f32(exact, vld1q_f32(keys.scales + key)), vld1q_f32(keys.biases + key));
      vst1q_f32(out + key, logit);
      above[row] |= lane_bits(vcgtq_f32(logit, vdupq_n_f32(threshold[row]))) << key;
    }
  }
}
