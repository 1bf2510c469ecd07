#include "citadel/nibbles.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

#include "citadel/dispatch.hpp"
#include "citadel/quantize.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace citadel {
namespace {

constexpr std::size_t kHalf = 64;  // bytes per block, and dimensions per half of it
constexpr float kBestStep = 0.1676f;  // half a step of the best uniform 4-bit quantizer, in standard deviations of a Gaussian

void dots_portable(const std::uint8_t* const* codes, std::size_t n, std::size_t blocks, const NibbleQuery& q, std::int32_t* out) {
  for (std::size_t i = 0; i < n; ++i) {
    std::int32_t sum = 0;
    for (std::size_t block = 0; block < blocks; ++block)
      for (std::size_t j = 0; j < kHalf; ++j) {
        const std::uint8_t pair = codes[i][kHalf * block + j];
        sum += (pair & 15) * q.codes[kNibbleBlock * block + j] + (pair >> 4) * q.codes[kNibbleBlock * block + kHalf + j];
      }
    out[i] = 2 * sum - 15 * q.sum;
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void dots_avx2(const std::uint8_t* const* codes, std::size_t n, std::size_t blocks, const NibbleQuery& q,
                                               std::int32_t* out) {
  const __m256i mask = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
  for (std::size_t i = 0; i < n; ++i) {
    __m256i sums = _mm256_setzero_si256();
    for (std::size_t at = 0; at < kHalf * blocks; at += 32) {  // at most 15 · 127 · 4 per 16-bit lane
      const std::int8_t* own = q.codes + at / kHalf * kNibbleBlock + at % kHalf;
      const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes[i] + at));
      const __m256i low = _mm256_and_si256(pairs, mask), high = _mm256_and_si256(_mm256_srli_epi16(pairs, 4), mask);
      const __m256i products = _mm256_add_epi16(_mm256_maddubs_epi16(low, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(own))),
                                                _mm256_maddubs_epi16(high, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(own + kHalf))));
      sums = _mm256_add_epi32(sums, _mm256_madd_epi16(products, ones));
    }
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    out[i] = 2 * _mm_cvtsi128_si32(four) - 15 * q.sum;
  }
}

__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"))) void dots_avx512(const std::uint8_t* const* codes, std::size_t n,
                                                                                          std::size_t blocks, const NibbleQuery& q,
                                                                                          std::int32_t* out) {
  const __m512i mask = _mm512_set1_epi8(15);
  for (std::size_t i = 0; i < n; ++i) {
    __m512i low = _mm512_setzero_si512(), high = _mm512_setzero_si512();
    for (std::size_t block = 0; block < blocks; ++block) {
      const __m512i pairs = _mm512_loadu_si512(codes[i] + kHalf * block);
      low = _mm512_dpbusd_epi32(low, _mm512_and_si512(pairs, mask), _mm512_loadu_si512(q.codes + kNibbleBlock * block));
      high = _mm512_dpbusd_epi32(high, _mm512_and_si512(_mm512_srli_epi16(pairs, 4), mask),
                                 _mm512_loadu_si512(q.codes + kNibbleBlock * block + kHalf));
    }
    out[i] = 2 * _mm512_reduce_add_epi32(_mm512_add_epi32(low, high)) - 15 * q.sum;
  }
}
#elif defined(__aarch64__)
void dots_neon(const std::uint8_t* const* codes, std::size_t n, std::size_t blocks, const NibbleQuery& q, std::int32_t* out) {
  for (std::size_t i = 0; i < n; ++i) {
    int32x4_t sums = vdupq_n_s32(0);
    for (std::size_t at = 0; at < kHalf * blocks; at += 16) {  // at most 15 · 127 · 4 per 16-bit lane
      const std::int8_t* own = q.codes + at / kHalf * kNibbleBlock + at % kHalf;
      const uint8x16_t pairs = vld1q_u8(codes[i] + at);
      const int8x16_t low = vreinterpretq_s8_u8(vandq_u8(pairs, vdupq_n_u8(15))), high = vreinterpretq_s8_u8(vshrq_n_u8(pairs, 4));
      const int8x16_t first = vld1q_s8(own), second = vld1q_s8(own + kHalf);
      int16x8_t products = vmlal_high_s8(vmull_s8(vget_low_s8(low), vget_low_s8(first)), low, first);
      products = vmlal_high_s8(vmlal_s8(products, vget_low_s8(high), vget_low_s8(second)), high, second);
      sums = vpadalq_s16(sums, products);
    }
    out[i] = 2 * vaddvq_s32(sums) - 15 * q.sum;
  }
}
#endif

}  // namespace

// Codes at the best step for a Gaussian, then the step that fits these codes best.
void encode_nibbles(const float* x, std::size_t d, std::uint8_t* row) {
  double square = 0;
  for (std::size_t j = 0; j < d; ++j) square += static_cast<double>(x[j]) * x[j];
  const auto deviation = static_cast<float>(std::sqrt(square / static_cast<double>(std::max<std::size_t>(1, d))));
  const float step = kBestStep * deviation;
  std::uint8_t* codes = row + kNibbleHeader;
  std::memset(codes, 0x77, kHalf * nibble_blocks(d));
  double products = 0, squares = 0;
  for (std::size_t j = 0; j < d; ++j) {
    const float level = step > 0 ? std::nearbyint((x[j] / step + 15.0f) * 0.5f) : 7.0f;
    const auto code = static_cast<std::uint8_t>(std::clamp(level, 0.0f, 15.0f));
    const double value = 2.0 * code - 15.0;
    products += value * x[j], squares += value * value;
    const std::size_t at = j / kNibbleBlock * kHalf + j % kHalf;
    const bool is_high = j % kNibbleBlock >= kHalf;
    codes[at] = static_cast<std::uint8_t>(is_high ? (codes[at] & 0x0f) | code << 4 : (codes[at] & 0xf0) | code);
  }
  const auto fitted = static_cast<float>(squares > 0 && step > 0 ? products / squares : 0.0);
  std::memcpy(row, &fitted, sizeof fitted);
}

void NibbleVector::set(const float* x) {
  std::vector<std::int8_t> padded(divide_up(d_, 64) * 64);  // quantize_query pads to a multiple of 64
  scale_ = quantize_query(x, d_, padded.data());
  std::copy(padded.begin(), padded.begin() + static_cast<std::ptrdiff_t>(d_), codes_.begin());
  sum_ = 0;
  for (const std::int8_t code : codes_) sum_ += code;
}

NibbleDots nibble_dots() {
#if defined(__x86_64__)
  const std::string_view set = kernels().name;
  if (set == "avx512vnni") return dots_avx512;
  if (set == "avx2") return dots_avx2;
#elif defined(__aarch64__)
  if (std::string_view(kernels().name) != "portable") return dots_neon;
#endif
  return dots_portable;
}

void score_nibbles(NibbleDots dots, const std::uint8_t* const* rows, std::size_t n, std::size_t blocks, const NibbleQuery& q, float* out) {
  const std::uint8_t* codes[64];
  std::int32_t sums[64];
  for (std::size_t i = 0; i < n; ++i) codes[i] = rows[i] + kNibbleHeader;
  dots(codes, n, blocks, q, sums);
  for (std::size_t i = 0; i < n; ++i) {
    const float score = (static_cast<float>(sums[i]) * load<float>(rows[i])) * q.scale;
    out[i] = score == score ? score : -std::numeric_limits<float>::infinity();
  }
}

}  // namespace citadel
