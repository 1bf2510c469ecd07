// Run tasks 0 … n-1 on several threads. The first exception stops the remaining tasks and is rethrown.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace citadel {

// Calls work(worker, task) with worker < threads. Each worker gets its tasks in ascending order.
template <typename Work>
void parallel(std::size_t tasks, std::size_t threads, Work work) {
  threads = std::min(threads, tasks);
  if (threads <= 1) {
    for (std::size_t task = 0; task < tasks; ++task) work(std::size_t{0}, task);
    return;
  }
  std::atomic<std::size_t> next{0};
  std::exception_ptr failure;
  std::mutex guard;
  const auto loop = [&](std::size_t worker) {
    try {
      for (std::size_t task; (task = next.fetch_add(1)) < tasks;) work(worker, task);
    } catch (...) {
      const std::lock_guard lock(guard);
      if (!failure) failure = std::current_exception();
      next.store(tasks);
    }
  };
  std::vector<std::thread> pool;
  for (std::size_t worker = 1; worker < threads; ++worker) {
    try {
      pool.emplace_back(loop, worker);
    } catch (...) {
      break;  // cannot start more threads; the existing ones do all the work
    }
  }
  loop(0);
  for (std::thread& thread : pool) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace citadel
