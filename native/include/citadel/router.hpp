// The router: matrix product and top keys of each token in one pass, so that the activations of all V keys
// are never written to memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "citadel/kernels.hpp"

namespace citadel {

struct BestKeys {
  std::vector<std::int64_t> keys;  // [n, max_keys], best first, ties by lower key
  std::vector<float> weights;      // [n, max_keys], φ = log(1 + relu(z))
};

// z = (Σ (state − zero) · code) · (step · scale) + bias, for uint8 states and an int8 table with one scale
// per row.
class Router {
 public:
  // table [keys, width], scales and biases [keys]. Throws std::invalid_argument if a number is not finite or
  // the sums could overflow 32 bits.
  Router(const std::int8_t* table, const float* scales, const float* biases, std::size_t keys,
         std::size_t width, float step, std::uint8_t zero);

  std::size_t width() const { return width_; }

  // states [n, width]; 1 ≤ max_keys ≤ number of keys.
  BestKeys best(const std::uint8_t* states, std::size_t n, std::size_t max_keys) const;

 private:
  struct alignas(64) Line {
    std::int8_t bytes[64];
  };

  std::size_t keys_, width_, groups_, blocks_;  // a group is 4 dimensions, a block 32 keys
  std::vector<Line> codes_;                     // [blocks, groups, 32, 4]
  std::vector<std::int32_t> offsets_;           // [blocks, 32]: zero · Σ code
  std::vector<float> scales_, biases_;          // [blocks, 32]; the bias of a padding key is -∞
};

}  // namespace citadel
