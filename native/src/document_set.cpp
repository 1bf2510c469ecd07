#include "citadel/document_set.hpp"

#include <bit>
#include <cstring>

namespace citadel {
namespace {

// One document in so many, measured by benchmarks/filter.py.
constexpr std::uint64_t kSelective = 8, kListed = 24;

std::uint64_t load_word(const std::uint8_t* bitmap, std::uint64_t word, std::uint64_t bytes) {
  std::uint64_t value = 0;  // little-endian, as every bitmap of an index
  std::memcpy(&value, bitmap + 8 * word, 8 * word + 8 <= bytes ? 8 : bytes - 8 * word);
  return value;
}

}  // namespace

DocumentSet::DocumentSet(const std::uint8_t* bitmap, const std::uint8_t* deleted, std::uint64_t documents) {
  const std::uint64_t words = (documents + 63) / 64, bytes = (documents + 7) / 8;
  words_.resize(words + 1), summary_.resize(words / 64 + 1);
  for (std::uint64_t word = 0; word < words; ++word) {
    std::uint64_t bits = load_word(bitmap, word, bytes);
    if (deleted != nullptr) bits &= ~load_word(deleted, word, bytes);
    if (word == words - 1 && documents % 64 != 0) bits &= (std::uint64_t{1} << documents % 64) - 1;
    words_[word] = bits;
    summary_[word >> 6] |= std::uint64_t{bits != 0} << (word & 63);
    count_ += static_cast<std::uint64_t>(std::popcount(bits));
  }
  is_selective_ = count_ * kSelective <= documents;
  if (count_ * kListed <= documents) list_members();
}

void DocumentSet::list_members() {
  ranks_.resize(words_.size());
  members_.reserve(count_);
  for (std::uint64_t word = 0; word < words_.size(); ++word) {
    ranks_[word] = static_cast<std::uint32_t>(members_.size());
    for (std::uint64_t bits = words_[word]; bits != 0; bits &= bits - 1)
      members_.push_back(static_cast<std::uint32_t>(64 * word + static_cast<std::uint64_t>(std::countr_zero(bits))));
  }
}

std::uint64_t DocumentSet::next(std::uint64_t document) const {
  std::uint64_t word = document >> 6;
  if (word >= words_.size()) return kEnd;
  const std::uint64_t rest = words_[word] >> (document & 63);
  if (rest != 0) return document + static_cast<std::uint64_t>(std::countr_zero(rest));
  word = next_word(word + 1);
  return word == kEnd ? kEnd : 64 * word + static_cast<std::uint64_t>(std::countr_zero(words_[word]));
}

std::uint64_t DocumentSet::next_word(std::uint64_t word) const {
  std::uint64_t group = word >> 6;
  if (group >= summary_.size()) return kEnd;
  std::uint64_t bits = summary_[group] & (~std::uint64_t{0} << (word & 63));
  while (bits == 0) {
    if (++group == summary_.size()) return kEnd;
    bits = summary_[group];
  }
  return 64 * group + static_cast<std::uint64_t>(std::countr_zero(bits));
}

}  // namespace citadel
