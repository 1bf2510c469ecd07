#include "citadel/section.hpp"

#include <algorithm>

#include "citadel/crc32c.hpp"

namespace citadel {

Section::Section(std::string file, std::string name, const std::uint8_t* data, std::uint64_t size,
                 const std::uint8_t* crcs, std::uint64_t crc_count)
    : file_(std::move(file)), name_(std::move(name)), data_(data), size_(size), crcs_(crcs) {
  static const std::uint8_t kNoBytes[8] = {};
  if (crcs_ == nullptr) crcs_ = kNoBytes;  // an empty section has no CRCs but is present
  if (data_ == nullptr) data_ = kNoBytes;
  if (crc_count != divide_up(size, kCrcBlock)) corrupt("has the wrong number of checksums");
  verified_ = std::make_unique<std::atomic<std::uint8_t>[]>(crc_count);
}

void Section::corrupt(const std::string& problem) const { throw CorruptError(file_, name_, problem); }

void Section::verify_block(std::uint64_t block, const Cancel* cancel) const {
  poll(cancel);
  const std::uint64_t start = block * kCrcBlock;
  const std::uint64_t length = std::min(kCrcBlock, size_ - start);
  if (crc32c(data_ + start, length) != load<std::uint32_t>(crcs_, block))
    corrupt("the checksum of bytes " + std::to_string(start) + " to " + std::to_string(start + length) +
            " does not match");
  verified_[block].store(1, std::memory_order_relaxed);
}

}  // namespace citadel
