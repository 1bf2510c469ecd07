// What searches of a graph keep with a filter: the rows it allows, and where to start for the lists that were read.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace citadel {

// Each part is made when a search first needs it. Threads may share it.
class GraphFilter {
 public:
  // A bitmap of the rows for which `contains(row)`.
  template <class Contains>
  const std::uint64_t* rows(std::uint64_t rows, Contains contains) {
    if (!has_rows_.load(std::memory_order_acquire)) make_rows(rows, contains);
    return rows_.data();
  }

  // The rows to start from for a list, from `make()` unless they are kept.
  template <class Make>
  std::span<const std::uint32_t> seeds(std::uint64_t list, Make make) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto at = seeds_.find(list); at != seeds_.end()) return at->second;
    }
    std::vector<std::uint32_t> made = make();
    const std::lock_guard lock(mutex_);
    return seeds_.emplace(list, std::move(made)).first->second;  // references stay valid when the table grows
  }

 private:
  template <class Contains>
  void make_rows(std::uint64_t rows, Contains contains) {
    const std::lock_guard lock(mutex_);
    if (has_rows_.load(std::memory_order_relaxed)) return;
    rows_.assign(rows / 64 + 1, 0);
    for (std::uint64_t row = 0; row < rows; ++row) rows_[row >> 6] |= std::uint64_t{contains(static_cast<std::uint32_t>(row))} << (row & 63);
    has_rows_.store(true, std::memory_order_release);
  }

  std::mutex mutex_;
  std::atomic<bool> has_rows_ = false;
  std::vector<std::uint64_t> rows_;
  std::unordered_map<std::uint64_t, std::vector<std::uint32_t>> seeds_;
};

}  // namespace citadel
