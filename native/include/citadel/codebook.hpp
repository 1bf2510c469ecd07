// A product quantizer: centroids per sub-vector and a scale per key.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "citadel/quantize.hpp"

namespace citadel {

class Codebook {
 public:
  Codebook(const float* centroids, std::size_t subvectors, std::size_t sub,
           std::vector<std::uint32_t> scale_keys, std::vector<float> key_scales, float global_scale)
      : subvectors_(subvectors),
        sub_(sub),
        centroids_(transpose_centroids(centroids, subvectors, sub)),
        scale_keys_(std::move(scale_keys)),
        key_scales_(std::move(key_scales)),
        global_scale_(global_scale) {}

  std::size_t subvectors() const { return subvectors_; }
  std::size_t sub() const { return sub_; }
  std::size_t dimension() const { return subvectors_ * sub_; }
  const float* centroids() const { return centroids_.data(); }  // [S, sub, 256]

  float scale(std::uint32_t key) const {
    const auto it = std::lower_bound(scale_keys_.begin(), scale_keys_.end(), key);
    const bool known = it != scale_keys_.end() && *it == key;
    return known ? key_scales_[static_cast<std::size_t>(it - scale_keys_.begin())] : global_scale_;
  }

 private:
  std::size_t subvectors_, sub_;
  std::vector<float> centroids_;
  std::vector<std::uint32_t> scale_keys_;
  std::vector<float> key_scales_;
  float global_scale_;
};

}  // namespace citadel
