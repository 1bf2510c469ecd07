#include "citadel/trellis.hpp"

#include <cmath>
#include <stdexcept>

#include "citadel/dispatch.hpp"
#include "citadel/kernels.hpp"

namespace citadel {

void rotate(float* rows, std::size_t n, std::size_t d) {
  const std::size_t block = d & (~d + 1);
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

std::vector<std::uint8_t> trellis_codes(const float* rows, std::size_t n, std::size_t d, const float* values, unsigned bits) {
  if (bits != 1 && bits != 2 && bits != 4) throw std::invalid_argument("a code has 1, 2 or 4 bits");
  std::vector<std::uint8_t> codes(n * d), scratch(trellis_scratch(d));
  kernels().trellis(rows, n, d, values, bits, scratch.data(), codes.data());
  return codes;
}

}  // namespace citadel
