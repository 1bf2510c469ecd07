// CRC-32C (Castagnoli): crc32c("123456789") = 0xE3069283.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace citadel {

// `value` is the CRC of the preceding bytes, for incremental use.
std::uint32_t crc32c(const std::uint8_t* data, std::size_t size, std::uint32_t value = 0);

// Table-driven version, used on machines without a CRC-32C instruction.
std::uint32_t crc32c_portable(const std::uint8_t* data, std::size_t size, std::uint32_t value = 0);

// One CRC per block of `block` bytes; the last block may be shorter.
std::vector<std::uint32_t> crc32c_blocks(const std::uint8_t* data, std::size_t size, std::size_t block);

}  // namespace citadel
