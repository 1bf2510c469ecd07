// A query, and its precomputed form for the kernels.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "citadel/codebook.hpp"
#include "citadel/kernels.hpp"
#include "citadel/segment.hpp"

namespace citadel {

struct Query {
  std::size_t segments = 0, tokens = 0, dimension = 0;
  std::vector<std::int64_t> lists;  // [segments, n]
  std::vector<float> weights;       // [n]
  std::vector<float> vectors;       // [n, d] or empty
  std::vector<float> semantic;      // [s] or empty

  std::int64_t list(std::size_t segment, std::size_t token) const { return lists[segment * tokens + token]; }
};

// Vectors as int8 codes and as padded fp32.
class PreparedVectors {
 public:
  PreparedVectors() = default;
  PreparedVectors(const float* vectors, std::size_t n, std::size_t d);

  Int8Query int8(std::size_t i) const { return {codes_.data() + i * code_width_, sums_[i], scales_[i]}; }
  const float* floats(std::size_t i) const { return floats_.data() + i * float_width_; }

 private:
  std::size_t code_width_ = 0, float_width_ = 0;
  std::vector<std::int8_t> codes_;
  std::vector<std::int32_t> sums_;
  std::vector<float> scales_, floats_;
};

// Computed once per query, then read by all threads.
class PreparedQuery {
 public:
  PreparedQuery(const Query& query, const std::vector<std::shared_ptr<const Segment>>& segments,
                const Kernels& kernels);

  PqTable table(const Codebook* codebook, std::size_t token) const;

  const Query& query;
  const Kernels& kernels;
  PreparedVectors tokens, semantic;

 private:
  struct Tables {
    std::vector<std::int16_t> entries;  // [tokens, 2, S, 256]
    std::vector<float> steps;           // [tokens]
  };
  std::map<const Codebook*, Tables> tables_;
};

}  // namespace citadel
