// The documents of one segment that a search may return: a bitmap with a summary, to find the next member quickly.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "citadel/graph_filter.hpp"
#include "citadel/selected_postings.hpp"

namespace citadel {

class DocumentSet {
 public:
  static constexpr std::uint64_t kEnd = UINT64_MAX;

  // Bit d of `bitmap` (at least ⌈documents / 8⌉ bytes) allows document d, unless its bit in `deleted` (may be null) is set.
  DocumentSet(const std::uint8_t* bitmap, const std::uint8_t* deleted, std::uint64_t documents);

  std::uint64_t count() const { return count_; }
  bool contains(std::uint64_t document) const { return (words_[document >> 6] >> (document & 63) & 1) != 0; }

  // The first member ≥ `document`; kEnd for none.
  std::uint64_t next(std::uint64_t document) const {
    const std::uint64_t word = document >> 6;
    if (word >= words_.size()) return kEnd;
    const std::uint64_t rest = words_[word] >> (document & 63);
    return rest != 0 ? document + static_cast<std::uint64_t>(std::countr_zero(rest)) : next_after(word);
  }

  std::vector<std::uint32_t> members() const;  // ascending

  // Members are so rare that scoring their postings alone beats scoring whole blocks.
  bool is_selective() const { return is_selective_; }

  const std::uint64_t* words() const { return words_.data(); }

  // What searches keep of the lists that they have read.
  SelectedLists& lists() const { return *lists_; }

  // What searches keep of the segment's graph.
  GraphFilter& graph() const { return *graph_; }

  // Members are listed if they are few. `between` is for those only: the members from `first` to `last`, both included.
  bool is_listed() const { return !ranks_.empty(); }
  std::span<const std::uint32_t> between(std::uint64_t first, std::uint64_t last) const {
    return {members_.data() + rank(first), members_.data() + rank(last + 1)};
  }

 private:
  // Members below `document`.
  std::size_t rank(std::uint64_t document) const {
    const std::uint64_t below = words_[document >> 6] & ((std::uint64_t{1} << (document & 63)) - 1);
    return ranks_[document >> 6] + static_cast<std::size_t>(std::popcount(below));
  }

  void list_members();
  std::uint64_t next_after(std::uint64_t word) const;  // the first member after a word; kEnd for none
  std::uint64_t next_word(std::uint64_t word) const;   // the first word ≥ `word` with a member; kEnd for none

  std::vector<std::uint64_t> words_;    // [⌈documents / 64⌉ + 8], so that kernels may load a whole register
  std::vector<std::uint64_t> summary_;  // bit w: words_[w] has a member
  std::vector<std::uint32_t> members_;  // ascending, if they are few
  std::vector<std::uint32_t> ranks_;    // members before each word
  std::shared_ptr<SelectedLists> lists_;
  std::shared_ptr<GraphFilter> graph_ = std::make_shared<GraphFilter>();
  std::uint64_t count_ = 0;
  bool is_selective_ = false;
};

}  // namespace citadel
