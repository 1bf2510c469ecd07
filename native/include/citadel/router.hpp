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

constexpr std::size_t kBoundLengths = 8;  // bytes of the lengths below

// Cheap upper bounds of z, for finding the few keys whose z exceeds a threshold. A state x [width] has the
// coordinates X_j = (Σ_i x_i · transform[j, i] − means[j]) · factors[j]. The first `lead` of them are rounded
// to signed bytes, and the lengths of the rest, of the rounding errors and of the whole are rounded up to
// multiples of `units`. z may exceed the threshold only if the product of these bytes and the key's codes
// exceeds the key's threshold.
struct KeyBounds {
  std::vector<std::int8_t> transform;  // [width, width]
  std::vector<float> means, factors;   // [width]
  std::size_t lead;                    // a multiple of 4
  float units[3];                      // of the lengths: rest (five bytes), errors (two), whole
  std::vector<std::int8_t> codes;      // [keys, lead + 8]
  std::vector<std::int32_t>
      thresholds;  // [keys]: exceeded by the sum of (byte + 128) · code and length · code
};

// z = (Σ (state − zero) · code) · (step · scale) + bias, for uint8 states and an int8 table with one scale
// per row.
class Router {
 public:
  // table [keys, width], scales and biases [keys]. Throws std::invalid_argument if a number is not finite or
  // the sums could overflow 32 bits.
  Router(const std::int8_t* table, const float* scales, const float* biases, std::size_t keys,
         std::size_t width, float step, std::uint8_t zero);

  std::size_t keys() const { return keys_; }
  std::size_t width() const { return width_; }

  // Prepare `best_above`; not while other threads use this router.
  void set_bounds(const KeyBounds& bounds);
  bool has_bounds() const { return !bound_codes_.empty(); }

  // states [n, width]; 1 ≤ max_keys ≤ number of keys.
  BestKeys best(const std::uint8_t* states, std::size_t n, std::size_t max_keys) const;

  // The same, but only keys with z > floor are certain to be among them; the others may be absent, with key
  // and weight 0. The floor is that of the bounds.
  BestKeys best_above(const std::uint8_t* states, std::size_t n, std::size_t max_keys) const;

 private:
  struct alignas(64) Line {
    std::int8_t bytes[64];
  };

  std::size_t keys_, width_, groups_, blocks_;  // a group is 4 dimensions, a block 32 keys
  std::vector<Line> codes_;                     // [blocks, groups, 32, 4]
  std::vector<std::int32_t> offsets_;           // [blocks, 32]: zero · Σ code
  std::vector<float> scales_, biases_;          // [blocks, 32]; the bias of a padding key is -∞

  struct Packed {
    std::vector<std::uint32_t> states;  // per tile [groups, rows]
    std::vector<bool> bounded;          // rows whose lengths fit
  };
  std::vector<Line> blocked(const std::int8_t* codes, std::size_t keys, std::size_t width) const;
  Packed bound_states(const std::uint8_t* states, std::size_t n) const;

  std::vector<Line> transform_, bound_codes_;  // in blocks like codes_
  std::vector<float> means_, factors_;
  std::vector<std::int32_t> bound_thresholds_;
  std::vector<std::int8_t> rows_;  // [keys, width]
  std::size_t lead_ = 0;
  float units_[3] = {};
};

}  // namespace citadel
