#include "citadel/mapping.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <mutex>

#include "citadel/errors.hpp"

namespace citadel {
namespace {

constexpr std::size_t kSlotsPerPage = 256;
constexpr std::size_t kPages = 256;

struct Slot {
  std::atomic<std::uintptr_t> begin{0};  // 0: free
  std::atomic<std::uintptr_t> end{0};
  std::atomic<bool> unreadable{false};
  mutable std::atomic<std::int64_t> checked{INT64_MIN / 2};  // when the file's length was last checked
  int descriptor = -1;
  std::size_t size = 0;
};

using SlotPage = std::array<Slot, kSlotsPerPage>;

// Read by the signal handler without a lock: pages are only ever added.
std::atomic<SlotPage*> slot_pages[kPages];
std::mutex slots_mutex;
struct sigaction previous_action;

Slot* slot_at(std::size_t index) {
  if (index >= kPages * kSlotsPerPage) return nullptr;
  SlotPage* page = slot_pages[index / kSlotsPerPage].load(std::memory_order_acquire);
  return page == nullptr ? nullptr : &(*page)[index % kSlotsPerPage];
}

std::size_t slot_of(std::uintptr_t address) {
  for (std::size_t index = 0; Slot* slot = slot_at(index); ++index)
    if (slot->begin.load(std::memory_order_acquire) <= address &&
        address < slot->end.load(std::memory_order_acquire))
      return index;
  return kUnwatched;
}

// Replace the pages from `address` to the end of its mapping by zeros: everything after a truncation point is
// gone too.
bool replace_with_zeros(std::uintptr_t address) {
  const std::size_t index = slot_of(address);
  if (index == kUnwatched) return false;
  Slot& slot = *slot_at(index);
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t begin = address / page * page;
  const std::uintptr_t end = (slot.end.load(std::memory_order_acquire) + page - 1) / page * page;
  slot.unreadable.store(true, std::memory_order_release);
  void* zeros = mmap(reinterpret_cast<void*>(begin), end - begin, PROT_READ,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  return zeros != MAP_FAILED;
}

// Forward to the previously installed handler or the default action.
void pass_on(int number, siginfo_t* info, void* context) {
  if ((previous_action.sa_flags & SA_SIGINFO) != 0)
    return previous_action.sa_sigaction(number, info, context);
  if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN)
    return previous_action.sa_handler(number);
  if (previous_action.sa_handler == SIG_IGN && info->si_code <= 0)
    return;  // sent by kill(), so ignoring it is allowed
  struct sigaction fallback = {};
  fallback.sa_handler = SIG_DFL;
  sigaction(SIGBUS, &fallback, nullptr);
  if (info->si_code <= 0)
    raise(SIGBUS);  // otherwise the faulting instruction runs again and kills the process
}

void handle(int number, siginfo_t* info, void* context) {
  const int saved = errno;
  const bool replaced =
      info->si_code > 0 && replace_with_zeros(reinterpret_cast<std::uintptr_t>(info->si_addr));
  errno = saved;
  if (!replaced) pass_on(number, info, context);
}

// Called for each mapping, since another library may have replaced the handler; ours then runs first and
// forwards to it.
void install_handler() {
  struct sigaction current = {};
  if (sigaction(SIGBUS, nullptr, &current) != 0 ||
      ((current.sa_flags & SA_SIGINFO) != 0 && current.sa_sigaction == handle))
    return;
  previous_action = current;
  struct sigaction own = {};
  own.sa_sigaction = handle;
  own.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&own.sa_mask);
  sigaction(SIGBUS, &own, nullptr);
}

std::size_t free_slot() {
  for (std::size_t index = 0; index < kPages * kSlotsPerPage; ++index) {
    if (slot_at(index) == nullptr)
      slot_pages[index / kSlotsPerPage].store(std::make_unique<SlotPage>().release(),
                                              std::memory_order_release);
    if (slot_at(index)->begin.load(std::memory_order_relaxed) == 0) return index;
  }
  return kUnwatched;
}

}  // namespace

std::size_t watch_mapping(const std::uint8_t* begin, std::size_t size, int descriptor) {
  if (size == 0) return kUnwatched;
  const std::lock_guard<std::mutex> lock(slots_mutex);
  install_handler();
  const std::size_t index = free_slot();
  if (index == kUnwatched) return index;
  Slot& slot = *slot_at(index);
  slot.descriptor = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  slot.size = size;
  slot.unreadable.store(false, std::memory_order_relaxed);
  slot.checked.store(INT64_MIN / 2, std::memory_order_relaxed);
  slot.end.store(reinterpret_cast<std::uintptr_t>(begin) + size, std::memory_order_release);
  slot.begin.store(reinterpret_cast<std::uintptr_t>(begin), std::memory_order_release);
  return index;
}

void unwatch_mapping(std::size_t index) {
  const std::lock_guard<std::mutex> lock(slots_mutex);
  Slot* slot = slot_at(index);
  if (slot == nullptr || slot->begin.load(std::memory_order_relaxed) == 0) return;
  slot->end.store(0, std::memory_order_release);
  slot->begin.store(0, std::memory_order_release);
  if (slot->descriptor >= 0) close(slot->descriptor);
  slot->descriptor = -1;
}

std::size_t find_mapping(const std::uint8_t* bytes) {
  return slot_of(reinterpret_cast<std::uintptr_t>(bytes));
}

std::int64_t mapping_clock() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

MappingState mapping_state(std::size_t index, std::int64_t now) {
  const Slot* slot = slot_at(index);
  if (slot == nullptr) return MappingState::whole;
  const bool readable = !slot->unreadable.load(std::memory_order_acquire);
  if (readable && now != kCheckNow && now - slot->checked.load(std::memory_order_relaxed) < kCheckInterval)
    return MappingState::whole;
  struct stat status = {};
  const bool known = slot->descriptor >= 0 && fstat(slot->descriptor, &status) == 0;
  if (known && static_cast<std::uint64_t>(status.st_size) < slot->size) return MappingState::shorter;
  if (now != kCheckNow) slot->checked.store(now, std::memory_order_relaxed);
  return readable ? MappingState::whole : MappingState::unreadable;
}

void require_whole(std::size_t index, const std::string& file, std::int64_t now) {
  switch (mapping_state(index, now)) {
    case MappingState::whole:
      return;
    case MappingState::shorter:
      throw CorruptError(file, "file", "it became shorter while it was in use");
    case MappingState::unreadable:
      throw ReadError(file);
  }
}

}  // namespace citadel
