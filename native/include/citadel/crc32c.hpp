// CRC-32C (Castagnoli): crc32c("123456789") = 0xE3069283.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace citadel {

// `value` is the CRC of the bytes before, so that parts can be summed one after the other.
std::uint32_t crc32c(const std::uint8_t* data, std::size_t size, std::uint32_t value = 0);

// The same by table alone; what a machine without the instruction computes.
std::uint32_t crc32c_portable(const std::uint8_t* data, std::size_t size, std::uint32_t value = 0);

// One CRC for each `block` bytes, the last one shorter.
std::vector<std::uint32_t> crc32c_blocks(const std::uint8_t* data, std::size_t size, std::size_t block);

}  // namespace citadel
