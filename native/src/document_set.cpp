#include "citadel/document_set.hpp"

#include <bit>
#include <cstring>

namespace citadel {
namespace {

// One document in so many, measured by benchmarks/filter.py.
constexpr std::uint64_t kSelective = 8, kListed = 24;

constexpr std::uint64_t kMaxKept = 8 << 20;  // bytes of selected postings

std::uint64_t load_word(const std::uint8_t* bitmap, std::uint64_t word, std::uint64_t bytes) {
  std::uint64_t value = 0;  // little-endian, as every bitmap of an index
  std::memcpy(&value, bitmap + 8 * word, 8 * word + 8 <= bytes ? 8 : bytes - 8 * word);
  return value;
}

}  // namespace

DocumentSet::DocumentSet(const std::uint8_t* bitmap, const std::uint8_t* deleted, std::uint64_t documents)
    : lists_(std::make_shared<SelectedLists>(kMaxKept)) {
  const std::uint64_t words = (documents + 63) / 64, bytes = (documents + 7) / 8;
  words_.resize(words + 8), summary_.resize(words / 64 + 1);
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
  members_ = members();
  ranks_.resize(words_.size());
  std::size_t rank = 0;
  for (std::size_t word = 0; word < words_.size(); ++word) {
    ranks_[word] = static_cast<std::uint32_t>(rank);
    rank += static_cast<std::size_t>(std::popcount(words_[word]));
  }
}

std::vector<std::uint32_t> DocumentSet::members() const {
  if (is_listed()) return members_;
  std::vector<std::uint32_t> out;
  out.reserve(count_);
  for (std::uint64_t word = next_word(0); word != kEnd; word = next_word(word + 1))
    for (std::uint64_t bits = words_[word]; bits != 0; bits &= bits - 1)
      out.push_back(static_cast<std::uint32_t>(64 * word + static_cast<std::uint64_t>(std::countr_zero(bits))));
  return out;
}

std::uint64_t DocumentSet::next_after(std::uint64_t word) const {
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
