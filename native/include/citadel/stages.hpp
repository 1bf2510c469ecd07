// Stage timers of a search, used by `citadel bench latency`.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace citadel {

enum class Stage : std::size_t { plan, token, add, semantic, sort };
constexpr std::size_t kStages = 5;

struct Stages {
  std::array<double, kStages> nanoseconds{};
};

// No-op clock; compiles to a scan without timers.
struct NoClock {
  void operator()(Stage) {}
};

// Each call attributes the time since the previous call to a stage. Counts TSC ticks: reading the system
// clock takes about half as long as processing a block.
class StageClock {
 public:
  explicit StageClock(Stages& stages)
      : stages_(stages), started_(std::chrono::steady_clock::now()), first_(ticks()), last_(first_) {}
  StageClock(const StageClock&) = delete;
  StageClock& operator=(const StageClock&) = delete;

  void operator()(Stage stage) {
    const std::uint64_t now = ticks();
    spent_[static_cast<std::size_t>(stage)] += now - last_;
    last_ = now;
  }

  ~StageClock() {
    const std::chrono::duration<double, std::nano> whole = std::chrono::steady_clock::now() - started_;
    const double tick = last_ == first_ ? 0.0 : whole.count() / static_cast<double>(ticks() - first_);
    for (std::size_t i = 0; i < kStages; ++i) stages_.nanoseconds[i] += static_cast<double>(spent_[i]) * tick;
  }

 private:
  static std::uint64_t ticks() {
#if defined(__x86_64__)
    return __rdtsc();
#else
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
  }

  Stages& stages_;
  std::chrono::steady_clock::time_point started_;
  std::uint64_t first_, last_;
  std::array<std::uint64_t, kStages> spent_{};
};

}  // namespace citadel
