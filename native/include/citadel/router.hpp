// The router's product and the few best keys of each token, in one pass: the activations of all V keys, which a token has
// no use for, are never written to memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "citadel/kernels.hpp"

namespace citadel {

struct BestKeys {
  std::vector<std::int64_t> keys;  // [n, most], best first, equal ones by lower key
  std::vector<float> weights;      // [n, most], φ = log(1 + relu(z))
};

// z = (Σ (state − zero) · code) · (step · scale) + bias, for states of bytes and a table of signed bytes with a scale a row.
class Router {
 public:
  // table [keys, width], scales and biases [keys]. Throws std::invalid_argument where a number is not finite or the sums
  // could leave 32 bits.
  Router(const std::int8_t* table, const float* scales, const float* biases, std::size_t keys, std::size_t width, float step,
         std::uint8_t zero);

  std::size_t width() const { return width_; }

  // states [n, width]; most is within 1 and the number of keys.
  BestKeys best(const std::uint8_t* states, std::size_t n, std::size_t most) const;

 private:
  struct alignas(64) Line {
    std::int8_t bytes[64];
  };

  std::size_t keys_, width_, groups_, blocks_;  // a group is four numbers of a state, a block 32 keys
  std::vector<Line> codes_;                     // [blocks, groups, 32, 4]
  std::vector<std::int32_t> offsets_;           // [blocks, 32]: zero · Σ code
  std::vector<float> scales_, biases_;          // [blocks, 32]; of a key that only fills a block -∞
};

}  // namespace citadel
