#include "citadel/topk.hpp"

#include <algorithm>

namespace citadel {

void TopK::shrink() {
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
  shrink();
  std::sort(entries_.begin(), entries_.end(), better);
  return std::move(entries_);
}

}  // namespace citadel
