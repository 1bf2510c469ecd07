// The nearest of many centroids for each of many vectors, as int8 products.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "citadel/kernels.hpp"

namespace citadel {

// Rows of int8 codes in blocks of 32, as the kernels of token products read them, with half of each row's
// squared length.
class CodedRows {
 public:
  // codes [n, d], scales (fp16) [n]
  CodedRows(const std::int8_t* codes, const std::uint16_t* scales, std::size_t n, std::size_t d);

  std::size_t blocks() const { return scales_.size() / kKeyBlock; }
  const std::int8_t* codes(std::size_t block) const { return lines_[block * groups_ * 2].bytes; }
  const std::int32_t* offsets(std::size_t block) const { return offsets_.data() + block * kKeyBlock; }
  const float* scales(std::size_t block) const { return scales_.data() + block * kKeyBlock; }
  const float* biases(std::size_t block) const { return biases_.data() + block * kKeyBlock; }

 private:
  struct alignas(64) Line {
    std::int8_t bytes[64];
  };

  std::size_t groups_;
  std::vector<Line> lines_;            // [blocks, groups, 32, 4]
  std::vector<std::int32_t> offsets_;  // 128 · Σ code
  std::vector<float> scales_;
  std::vector<float> biases_;  // −½ · |row|²; −∞ after the last row, which no vector is near
};

class NearestCentroids {
 public:
  // codes [n, d] and scales (fp16) [n] of the centroids, of which members[starts[g] … starts[g + 1] − 1],
  // ascending, are group g; the same of the groups' heads. A vector's nearest centroid is searched in its
  // `probes` nearest groups.
  NearestCentroids(const std::int8_t* codes, const std::uint16_t* scales, std::size_t n, std::size_t d,
                   const std::int8_t* head_codes, const std::uint16_t* head_scales,
                   std::vector<std::uint32_t> starts, std::vector<std::uint32_t> members, std::size_t probes);

  std::size_t dimension() const { return dimension_; }

  // vectors [n, d] → the nearest centroid of each; ties go to the lower one.
  std::vector<std::uint32_t> nearest(const float* vectors, std::size_t n) const;

 private:
  struct Best {
    float value;
    std::uint32_t centroid;
  };
  struct Tokens;  // a chunk of vectors as codes

  void add_groups(const Tokens& tokens, std::vector<std::vector<std::uint32_t>>& near) const;
  void search_group(const Tokens& tokens, std::size_t group, const std::vector<std::uint32_t>& near,
                    Best* best) const;

  std::size_t dimension_, groups_, probes_;
  CodedRows heads_;
  std::vector<CodedRows> lists_;  // the centroids of each group
  std::vector<std::uint32_t> starts_, members_;
};

}  // namespace citadel
