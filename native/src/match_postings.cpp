#include "citadel/match_postings.hpp"

#include <string_view>

#include "citadel/dispatch.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace citadel {
namespace {

std::uint64_t match_portable(const std::uint32_t* postings, std::size_t n, PostingRange range) {
  std::uint64_t matches = 0;
  for (std::size_t i = 0; i < n; ++i) matches |= std::uint64_t{postings[i] - range.first < range.length} << i;
  return matches;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) std::uint64_t match_avx2(const std::uint32_t* postings, std::size_t n, PostingRange range) {
  if (range.length == 0) return 0;
  const __m256i first = _mm256_set1_epi32(static_cast<int>(range.first)), last = _mm256_set1_epi32(static_cast<int>(range.length - 1));
  std::uint64_t matches = 0;
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256i offsets = _mm256_sub_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(postings + i)), first);
    const __m256i inside = _mm256_cmpeq_epi32(_mm256_min_epu32(offsets, last), offsets);
    matches |= static_cast<std::uint64_t>(static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(inside)))) << i;
  }
  return i == n ? matches : matches | match_portable(postings + i, n - i, range) << i;
}

__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))) std::uint64_t match_avx512(const std::uint32_t* postings, std::size_t n, PostingRange range) {
  const __m512i first = _mm512_set1_epi32(static_cast<int>(range.first)), length = _mm512_set1_epi32(static_cast<int>(range.length));
  std::uint64_t matches = 0;
  for (std::size_t i = 0; i < n; i += 16) {
    const auto valid = static_cast<__mmask16>(n - i >= 16 ? 0xffffu : (1u << (n - i)) - 1u);
    const __m512i offsets = _mm512_sub_epi32(_mm512_maskz_loadu_epi32(valid, postings + i), first);
    matches |= static_cast<std::uint64_t>(_mm512_mask_cmplt_epu32_mask(valid, offsets, length)) << i;
  }
  return matches;
}
#elif defined(__aarch64__)
std::uint64_t match_neon(const std::uint32_t* postings, std::size_t n, PostingRange range) {
  const std::uint32_t powers[4] = {1, 2, 4, 8};
  const uint32x4_t first = vdupq_n_u32(range.first), length = vdupq_n_u32(range.length), bits = vld1q_u32(powers);
  std::uint64_t matches = 0;
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const uint32x4_t inside = vcltq_u32(vsubq_u32(vld1q_u32(postings + i), first), length);
    matches |= std::uint64_t{vaddvq_u32(vandq_u32(inside, bits))} << i;
  }
  return i == n ? matches : matches | match_portable(postings + i, n - i, range) << i;
}
#endif

}  // namespace

MatchPostings match_postings() {
#if defined(__x86_64__)
  const std::string_view set = kernels().name;
  if (set == "avx512vnni") return match_avx512;
  if (set == "avx2") return match_avx2;
#elif defined(__aarch64__)
  if (std::string_view(kernels().name) != "portable") return match_neon;
#endif
  return match_portable;
}

}  // namespace citadel
