// The postings of a list that belong to the documents of a filter, kept for later searches with the same filter.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace citadel {

struct SelectedPostings {
  std::vector<std::uint32_t> documents;  // ascending
  std::vector<std::uint32_t> postings;   // positions in the list
  std::vector<std::uint32_t> counts;     // of bm25

  std::uint64_t bytes() const { return 4 * (documents.size() + postings.size() + counts.size()); }
};

// Lists by number, up to a number of bytes. Threads may share it.
class SelectedLists {
 public:
  explicit SelectedLists(std::uint64_t max_bytes) : left_(max_bytes) {}

  // The postings of a list; null if they are not kept.
  std::shared_ptr<const SelectedPostings> find(std::uint64_t list) const {
    const std::lock_guard lock(mutex_);
    const auto at = lists_.find(list);
    return at == lists_.end() ? nullptr : at->second;
  }

  // Whether postings of so many bytes would be kept.
  bool has_room(std::uint64_t bytes) const {
    const std::lock_guard lock(mutex_);
    return bytes < left_;
  }

  // Without room for the postings, no further lists are kept.
  void keep(std::uint64_t list, std::shared_ptr<const SelectedPostings> postings) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t bytes = postings->bytes();
    if (bytes >= left_) left_ = 0;
    else if (lists_.emplace(list, std::move(postings)).second) left_ -= bytes;
  }

  // Keep no further lists.
  void close() {
    const std::lock_guard lock(mutex_);
    left_ = 0;
  }

 private:
  mutable std::mutex mutex_;
  std::uint64_t left_;
  std::unordered_map<std::uint64_t, std::shared_ptr<const SelectedPostings>> lists_;
};

}  // namespace citadel
