#include "citadel/dispatch.hpp"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace citadel {
namespace {

#if defined(__x86_64__)
bool has_f16c() {  // clang's __builtin_cpu_supports does not know it
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c >> 29 & 1) != 0;
}
#elif defined(__aarch64__)
bool has_byte_dots() {
#if defined(__linux__)
  constexpr unsigned long kDotProd = 1ul << 20;  // HWCAP_ASIMDDP
  return (getauxval(AT_HWCAP) & kDotProd) != 0;
#elif defined(__APPLE__)
  return true;  // since the M1
#else
  return false;
#endif
}
#endif

std::vector<const Kernels*> available() {
  std::vector<const Kernels*> sets{&kPortableKernels};
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && has_f16c();
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
  if (avx2) sets.push_back(&kAvx2Kernels);
  if (avx2 && avx512) sets.push_back(__builtin_cpu_supports("avx512vbmi") ? &kAvx512VbmiKernels : &kAvx512Kernels);
#elif defined(__aarch64__)
  sets.push_back(&kNeonKernels);
  if (has_byte_dots()) sets.push_back(&kNeonDotKernels);
#endif
  return sets;
}

const Kernels* find(const std::string& name) {
  for (const Kernels* set : available())
    if (set->name == name) return set;
  std::string known;
  for (const Kernels* set : available()) known += (known.empty() ? "" : ", ") + std::string(set->name);
  throw std::invalid_argument("instruction set '" + name + "' cannot be used: this machine has " + known);
}

std::atomic<const Kernels*> selected{nullptr};

}  // namespace

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const Kernels* set : available()) names.emplace_back(set->name);
  return names;
}

const Kernels& kernels() {
  const Kernels* set = selected.load(std::memory_order_acquire);
  if (set == nullptr) {
    const char* requested = std::getenv("CITADEL_ISA");
    set = requested != nullptr && *requested != '\0' ? find(requested) : available().back();
    selected.store(set, std::memory_order_release);
  }
  return *set;
}

void use_instruction_set(const std::string& name) { selected.store(find(name), std::memory_order_release); }

}  // namespace citadel
