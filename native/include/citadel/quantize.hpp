// Vector quantization: int8 with a scale per vector, and product quantization.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace citadel {

struct Int8Vectors {
  std::vector<std::int8_t> codes;     // [n, d]
  std::vector<std::uint16_t> scales;  // [n], fp16
};

// Of `tries` fp16 scales, from the smallest that fits upwards, a vector gets the one that keeps its product
// with itself best. Throws std::invalid_argument, naming the row, if a value is not finite or too large for
// an fp16 scale.
Int8Vectors quantize_int8(const float* vectors, std::size_t n, std::size_t d, std::size_t tries = 1);

// Writes a query vector's codes (zero-padded to a multiple of 64) and returns its scale. Where the scale is infinite, codes are 0, or
// −127 for infinity and NaN.
float quantize_query(const float* x, std::size_t d, std::int8_t* codes);

// centroids [S, 256, sub] → codes [n, S]; ties to the lower centroid.
std::vector<std::uint8_t> pq_assign(const float* vectors, std::size_t n, const float* centroids,
                                    std::size_t subvectors, std::size_t sub);

// [S, 256, sub] → [S, sub, 256]
std::vector<float> transpose_centroids(const float* centroids, std::size_t subvectors, std::size_t sub);

}  // namespace citadel
