// The top k of a stream of scores: highest first, ties by lower number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace citadel {

struct Scored {
  float score;
  std::uint64_t number;
};

// A function object, so that std::sort inlines the comparison.
inline constexpr auto better = [](const Scored& a, const Scored& b) {
  return a.score > b.score || (a.score == b.score && a.number < b.number);
};

// Buffers a little more than k entries and, when full, drops most of those outside the top k. Cheaper than a
// heap for large k.
class TopK {
 public:
  explicit TopK(std::size_t k) : k_(k), capacity_(k + k / 2 + 64) {}

  bool has_threshold() const { return threshold_ > -std::numeric_limits<float>::infinity(); }

  // The least score that can still enter the top k. NaN never does.
  float threshold() const { return threshold_; }

  void push(float score, std::uint64_t number) {
    if (k_ == 0 || !(score >= threshold_)) return;
    entries_.push_back({score, number});
    if (entries_.size() >= capacity_) shrink();
  }

  void merge(const TopK& other);
  std::vector<Scored> sorted();

 private:
  void shrink();
  bool shrink_by_buckets();
  void keep_best();

  std::size_t k_, capacity_;
  float threshold_ = -std::numeric_limits<float>::infinity();
  std::vector<Scored> entries_;
};

}  // namespace citadel
