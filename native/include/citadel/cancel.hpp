// A cancellation flag: one thread sets it, a running search polls it.
#pragma once

#include <atomic>

#include "citadel/errors.hpp"

namespace citadel {

class Cancel {
 public:
  void set() { flag_.store(true, std::memory_order_relaxed); }
  bool is_set() const { return flag_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> flag_{false};
};

inline void poll(const Cancel* cancel) {
  if (cancel != nullptr && cancel->is_set()) throw CancelledError();
}

}  // namespace citadel
