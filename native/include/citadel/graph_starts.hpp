// The rows at which a graph search starts.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace citadel {

struct GraphTask;

// The rows with the heaviest postings of a list, heaviest first.
struct HeavyRows {
  std::vector<std::uint32_t> rows;
  std::vector<std::uint8_t> weights;  // of 255 · weight / most
  float most = 0;                     // the largest weight
};

// Those of the lists that searches have read. Threads may share it.
class HeavyLists {
 public:
  // Those of a list, from `make()` unless they are kept.
  template <class Make>
  const HeavyRows& get(std::uint64_t list, Make make) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto at = lists_.find(list); at != lists_.end()) return at->second;
    }
    HeavyRows made = make();
    const std::lock_guard lock(mutex_);
    return lists_.emplace(list, std::move(made)).first->second;  // references stay valid when the table grows
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::uint64_t, HeavyRows> lists_;
};

// The graph's own entries and the rows that the query's lists lead to: those with the largest sums of weights among the heaviest
// of each list; with a filter, the heaviest allowed rows of each.
std::vector<std::uint32_t> start_rows(const GraphTask& task, bool is_filtered);

}  // namespace citadel
