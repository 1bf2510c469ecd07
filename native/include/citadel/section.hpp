// One section of a segment file: borrowed bytes, verified against a CRC per 1 MiB block on first access.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "citadel/bytes.hpp"
#include "citadel/cancel.hpp"

namespace citadel {

class Section {
 public:
  static constexpr std::uint64_t kCrcBlock = 1 << 20;

  Section() = default;
  Section(std::string file, std::string name, const std::uint8_t* data, std::uint64_t size,
          const std::uint8_t* crcs, std::uint64_t crc_count);

  bool present() const { return crcs_ != nullptr; }
  const std::uint8_t* data() const { return data_; }
  std::uint64_t size() const { return size_; }

  // Verify bytes [begin, end), which must lie in the section. Throws CorruptError on a CRC mismatch.
  void verify(std::uint64_t begin, std::uint64_t end, const Cancel* cancel = nullptr) const {
    if (begin >= end) return;
    const std::uint64_t last = (end - 1) / kCrcBlock;
    for (std::uint64_t block = begin / kCrcBlock; block <= last; ++block)
      if (verified_[block].load(std::memory_order_relaxed) == 0) verify_block(block, cancel);
  }

  // Element `index`, verified.
  template <typename T>
  T at(std::uint64_t index) const {
    verify(index * sizeof(T), (index + 1) * sizeof(T));
    return load<T>(data_, index);
  }

  [[noreturn]] void corrupt(const std::string& problem) const;

 private:
  void verify_block(std::uint64_t block, const Cancel* cancel) const;

  std::string file_, name_;
  const std::uint8_t* data_ = nullptr;
  std::uint64_t size_ = 0;
  const std::uint8_t* crcs_ = nullptr;
  // The only mutable state of a segment; updates are idempotent.
  std::unique_ptr<std::atomic<std::uint8_t>[]> verified_;
};

}  // namespace citadel
