// Registry of memory-mapped files. Reading a page that was truncated away or that the disk cannot read raises
// SIGBUS, which kills the process. For registered mappings the page is replaced by zeros and the mapping
// marked unreadable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace citadel {

constexpr std::size_t kUnwatched = SIZE_MAX;

enum class MappingState { whole, shorter, unreadable };

// Register bytes mapped from an open file and return the slot. The descriptor is duplicated.
std::size_t watch_mapping(const std::uint8_t* begin, std::size_t size, int descriptor);

// Call before the bytes are unmapped.
void unwatch_mapping(std::size_t slot);

// The slot of the mapping that contains these bytes, or kUnwatched.
std::size_t find_mapping(const std::uint8_t* bytes);

// Monotonic milliseconds.
std::int64_t mapping_clock();

// Whether all reads of the mapping have succeeded and the file still has its length. The length has to be
// checked because truncation within a page zeroes the rest of the page without a fault; a check is valid for
// kCheckInterval milliseconds.
constexpr std::int64_t kCheckInterval = 10;
inline constexpr std::int64_t kCheckNow = INT64_MAX;
MappingState mapping_state(std::size_t slot, std::int64_t now);

// Throws CorruptError or ReadError if the mapping is no longer whole.
void require_whole(std::size_t slot, const std::string& file, std::int64_t now);

}  // namespace citadel
