#include "citadel/quantize.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "citadel/dispatch.hpp"
#include "citadel/half.hpp"

namespace citadel {
namespace {

// Rounds half to even for |x| < 2^22, like nearbyint, but with two additions that every compiler vectorizes.
inline float nearest(float x) { return (x + 12582912.0f) - 12582912.0f; }

struct Extent {
  float largest;  // max |x|
  bool finite;
};

Extent extent(const float* x, std::size_t d) {
  float lanes[16] = {}, poison[16] = {};
  std::size_t j = 0;
  for (; j + 16 <= d; j += 16)
    for (std::size_t l = 0; l < 16; ++l) {
      const float magnitude = std::fabs(x[j + l]);
      lanes[l] = lanes[l] < magnitude ? magnitude : lanes[l];
      poison[l] += x[j + l] * 0.0f;  // becomes NaN if any value is not finite
    }
  for (; j < d; ++j) lanes[0] = std::max(lanes[0], std::fabs(x[j])), poison[0] += x[j] * 0.0f;
  float poisoned = 0;
  for (const float p : poison) poisoned += p;
  return {*std::max_element(lanes, lanes + 16), poisoned == 0.0f};
}

void round_codes(const float* x, std::size_t d, float scale, std::int8_t* codes) {
  for (std::size_t j = 0; j < d; ++j) {
    float code = nearest(x[j] / scale);
    code = code > -127.0f ? code : -127.0f;  // also for NaN, which has no integer
    code = code < 127.0f ? code : 127.0f;
    codes[j] = static_cast<std::int8_t>(static_cast<std::int32_t>(code));
  }
}

// Σ value · x, in 16 sums on every machine.
template <typename T>
float product(const T* values, const float* x, std::size_t d) {
  float lanes[16] = {};
  std::size_t j = 0;
  for (; j + 16 <= d; j += 16)
    for (std::size_t l = 0; l < 16; ++l) lanes[l] += static_cast<float>(values[j + l]) * x[j + l];
  for (; j < d; ++j) lanes[j % 16] += static_cast<float>(values[j]) * x[j];
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

// Codes with the best of `tries` scales from `scale` on, which is returned.
std::uint16_t best_codes(const float* x, std::size_t d, std::uint16_t scale, std::size_t tries,
                         std::int8_t* codes) {
  const float own = product(x, x, d);
  std::vector<std::int8_t> other(d);
  std::uint16_t best = scale;
  round_codes(x, d, half_to_float(scale), codes);
  float least = std::fabs(half_to_float(scale) * product(codes, x, d) - own);
  for (std::size_t i = 1; i < tries && scale + i < 0x7c00u; ++i) {
    const auto larger = static_cast<std::uint16_t>(scale + i);
    round_codes(x, d, half_to_float(larger), other.data());
    const float error = std::fabs(half_to_float(larger) * product(other.data(), x, d) - own);
    if (!(error < least)) continue;
    least = error, best = larger;
    std::copy(other.begin(), other.end(), codes);
  }
  return best;
}

}  // namespace

Int8Vectors quantize_int8(const float* vectors, std::size_t n, std::size_t d, std::size_t tries) {
  Int8Vectors out{std::vector<std::int8_t>(n * d), std::vector<std::uint16_t>(n)};
  for (std::size_t row = 0; row < n; ++row) {
    const float* x = vectors + row * d;
    const Extent bounds = extent(x, d);
    if (!bounds.finite)
      throw std::invalid_argument("row " + std::to_string(row) + " has a value that is not finite");
    const std::uint16_t scale = half_at_or_above(bounds.largest / 127.0f);
    if (scale == 0x7c00u)
      throw std::invalid_argument("row " + std::to_string(row) + " is too large for an fp16 scale");
    out.scales[row] = scale;
    if (scale != 0 && tries > 1)
      out.scales[row] = best_codes(x, d, scale, tries, out.codes.data() + row * d);
    else if (scale != 0)
      round_codes(x, d, half_to_float(scale), out.codes.data() + row * d);
  }
  return out;
}

float quantize_query(const float* x, std::size_t d, std::int8_t* codes) {
  const float scale = extent(x, d).largest / 127.0f;
  if (scale > 0) round_codes(x, d, scale, codes);
  return scale;
}

std::vector<float> transpose_centroids(const float* centroids, std::size_t subvectors, std::size_t sub) {
  std::vector<float> out(subvectors * sub * kCentroids);
  for (std::size_t s = 0; s < subvectors; ++s)
    for (std::size_t c = 0; c < kCentroids; ++c)
      for (std::size_t j = 0; j < sub; ++j)
        out[(s * sub + j) * kCentroids + c] = centroids[(s * kCentroids + c) * sub + j];
  return out;
}

std::vector<std::uint8_t> pq_assign(const float* vectors, std::size_t n, const float* centroids,
                                    std::size_t subvectors, std::size_t sub) {
  const std::vector<float> transposed = transpose_centroids(centroids, subvectors, sub);
  std::vector<std::uint8_t> codes(n * subvectors);
  kernels().pq_assign(vectors, n, transposed.data(), subvectors, sub, codes.data());
  return codes;
}

}  // namespace citadel
