#include "citadel/topk.hpp"

#include <algorithm>
#include <bit>

namespace citadel {
namespace {

constexpr std::size_t kBuckets = 1024;
// For smaller k, clearing the buckets costs more than nth_element.
constexpr std::size_t kMinForBuckets = 256;

// Maps floats to integers of the same order; the bits of negative floats are in reverse order.
inline std::uint32_t order(float score) {
  const auto bits = std::bit_cast<std::uint32_t>(score);
  return bits ^ (bits >> 31 != 0 ? 0xffffffffu : 0x80000000u);
}

inline float score_at(std::uint32_t order) {
  return std::bit_cast<float>(order ^ (order >> 31 != 0 ? 0x80000000u : 0xffffffffu));
}

// The highest bucket that, together with those above it, holds at least k entries.
std::uint32_t bucket_of_kth(const std::uint32_t* counts, std::size_t k) {
  std::size_t bucket = kBuckets, above = 0;
  while (above < k) above += counts[--bucket];
  return static_cast<std::uint32_t>(bucket);
}

}  // namespace

void TopK::shrink() {
  if (k_ < kMinForBuckets || !shrink_by_buckets()) keep_best();
}

// Histogram the scores and drop entries below the bucket of the k-th. Returns false if too many remain, as
// with many ties.
bool TopK::shrink_by_buckets() {
  std::uint32_t low = UINT32_MAX, high = 0, counts[kBuckets] = {};
  for (const Scored& entry : entries_)
    low = std::min(low, order(entry.score)), high = std::max(high, order(entry.score));
  const int shift = std::max(
      0, static_cast<int>(std::bit_width(high - low)) - static_cast<int>(std::bit_width(kBuckets - 1)));
  for (const Scored& entry : entries_) ++counts[(order(entry.score) - low) >> shift];
  const std::uint32_t least = low + (bucket_of_kth(counts, k_) << shift);
  std::size_t kept = 0;
  for (const Scored entry : entries_) entries_[kept] = entry, kept += order(entry.score) >= least;
  entries_.resize(kept);
  threshold_ = std::max(threshold_, score_at(least));
  return kept <= (k_ + capacity_) / 2;
}

void TopK::keep_best() {
  if (entries_.size() <= k_) return;
  const auto last = entries_.begin() + static_cast<std::ptrdiff_t>(k_ - 1);
  std::nth_element(entries_.begin(), last, entries_.end(), better);
  threshold_ = last->score;
  entries_.resize(k_);
}

void TopK::merge(const TopK& other) {
  for (const Scored& entry : other.entries_) push(entry.score, entry.number);
}

std::vector<Scored> TopK::sorted() {
  keep_best();
  std::sort(entries_.begin(), entries_.end(), better);
  return std::move(entries_);
}

}  // namespace citadel
