// The best k of a stream of scores: highest first, equal scores by lower number.
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

// An object, not a function: sorting then compares without a call.
inline constexpr auto better = [](const Scored& a, const Scored& b) {
  return a.score > b.score || (a.score == b.score && a.number < b.number);
};

// Keeps some more than k entries and throws away most of those that cannot be among the best k when full: cheaper than a
// heap for large k.
class TopK {
 public:
  explicit TopK(std::size_t k) : k_(k), room_(k + k / 2 + 64) {}

  bool has_threshold() const { return threshold_ > -std::numeric_limits<float>::infinity(); }

  // What a score must reach to matter. A NaN never does.
  float threshold() const { return threshold_; }

  void push(float score, std::uint64_t number) {
    if (k_ == 0 || !(score >= threshold_)) return;
    entries_.push_back({score, number});
    if (entries_.size() >= room_) shrink();
  }

  void merge(const TopK& other);
  std::vector<Scored> sorted();

 private:
  void shrink();
  bool shrink_by_buckets();
  void keep_best();

  std::size_t k_, room_;
  float threshold_ = -std::numeric_limits<float>::infinity();
  std::vector<Scored> entries_;
};

}  // namespace citadel
