// fp16 ↔ fp32 conversion by bits. Internal linkage, because kernels include it under different compiler
// flags.
#pragma once

#include <cstdint>
#include <cstring>

namespace citadel {
namespace {

[[maybe_unused]] inline float half_to_float(std::uint16_t half) {
#if defined(__aarch64__)
  __fp16 value;
  std::memcpy(&value, &half, sizeof value);
  return static_cast<float>(value);
#else
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(half & 0x7fffu) << 13;
  // Exponent and mantissa at their fp32 positions. Multiplying by 2^112 corrects the bias and normalizes
  // subnormals exactly.
  std::uint32_t bits = magnitude;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  value *= 5.192296858534828e33f;
  std::memcpy(&bits, &value, sizeof bits);
  // Inf and NaN, branch-free, so that loops vectorize.
  const std::uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
  bits |= special | sign;
  std::memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

// The smallest fp16 number ≥ x, for finite x ≥ 0; 0x7c00 (Inf) if there is none.
[[maybe_unused]] inline std::uint16_t half_at_or_above(float x) {
  if (x > 65504.0f) return 0x7c00u;
  std::uint32_t low = 0, high = 0x7bffu;  // non-negative fp16 numbers sort like their bits
  if (x >= 6.103515625e-5f) {             // normal: truncate the mantissa, then round up if needed
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    low = (bits - 0x38000000u) >> 13;
    return static_cast<std::uint16_t>(half_to_float(static_cast<std::uint16_t>(low)) < x ? low + 1 : low);
  }
  high = 0x0400u;
  while (low < high) {
    const std::uint32_t middle = (low + high) / 2;
    if (half_to_float(static_cast<std::uint16_t>(middle)) < x)
      low = middle + 1;
    else
      high = middle;
  }
  return static_cast<std::uint16_t>(low);
}

}  // namespace
}  // namespace citadel
