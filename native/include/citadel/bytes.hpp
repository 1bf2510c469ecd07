// Unaligned little-endian loads and overflow-safe arithmetic for untrusted section data.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace citadel {

static_assert(std::endian::native == std::endian::little,
              "index files are read in place, which needs a little-endian machine");

template <typename T>
inline T load(const std::uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

template <typename T>
inline T load(const std::uint8_t* bytes, std::size_t index) {
  return load<T>(bytes + index * sizeof(T));
}

// a · b, or UINT64_MAX on overflow, which no section size equals.
inline std::uint64_t saturating_product(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

inline std::uint64_t divide_up(std::uint64_t a, std::uint64_t b) { return a / b + (a % b != 0); }

}  // namespace citadel
