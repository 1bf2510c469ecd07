#include "citadel/trellis.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "citadel/dispatch.hpp"
#include "citadel/kernels.hpp"

namespace citadel {
namespace {

// The largest power of two that divides d: the dimensions that are mixed with each other.
std::size_t block_of(std::size_t d) { return d & (~d + 1); }

}  // namespace

void rotate(float* rows, std::size_t n, std::size_t d) {
  if (d == 0) return;
  const std::size_t block = block_of(d);
  const float scale = 1.0f / std::sqrt(static_cast<float>(block));
  for (float* row = rows; row < rows + n * d; row += d) {
    for (std::size_t half = 1; half < block; half *= 2)
      for (std::size_t first = 0; first < d; first += 2 * half)
        for (std::size_t i = first; i < first + half; ++i) {
          const float left = row[i], right = row[i + half];
          row[i] = left + right;
          row[i + half] = left - right;
        }
    for (std::size_t i = 0; i < d; ++i) row[i] *= scale;
  }
}

std::vector<float> rotate_scaled(float* rows, std::size_t n, std::size_t d) {
  std::vector<float> divisors(n, 1.0f);
  const float block = static_cast<float>(block_of(d));
  for (std::size_t i = 0; d != 0 && i < n; ++i) {
    float* row = rows + i * d;
    float largest = 0;
    for (std::size_t j = 0; j < d; ++j) largest = std::max(largest, std::fabs(row[j]));
    if (largest <= std::numeric_limits<float>::max() / block) continue;
    divisors[i] = block;
    for (std::size_t j = 0; j < d; ++j) row[j] /= block;
  }
  rotate(rows, n, d);
  return divisors;
}

std::vector<std::uint8_t> trellis_codes(const float* rows, std::size_t n, std::size_t d, const float* values, unsigned bits) {
  if (bits != 1 && bits != 2 && bits != 4) throw std::invalid_argument("a code has 1, 2 or 4 bits");
  if (n == 0 || d == 0) return {};
  std::vector<std::uint8_t> codes(n * d), scratch(trellis_scratch(d));
  kernels().trellis(rows, n, d, values, bits, scratch.data(), codes.data());
  return codes;
}

}  // namespace citadel
