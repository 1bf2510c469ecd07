// Mapped files that are watched: reading one that was cut short, or that the disk cannot give, would end the process
// with SIGBUS. Here such a page becomes zeros, and the mapping is remembered as unreadable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace citadel {

constexpr std::size_t kUnwatched = SIZE_MAX;

enum class MappingState { whole, shorter, unreadable };

// Watch bytes that are mapped from an open file; the descriptor is duplicated. Gives the mapping's slot.
std::size_t watch_mapping(const std::uint8_t* begin, std::size_t size, int descriptor);

// To be called before the bytes are unmapped.
void unwatch_mapping(std::size_t slot);

// The slot of the mapping that holds these bytes, or kUnwatched.
std::size_t find_mapping(const std::uint8_t* bytes);

// Milliseconds of a clock that only goes forward.
std::int64_t mapping_clock();

// Whether all bytes of the mapping could be read so far, and are still in the file. The length of the file is looked at
// when the last look is kLookMilliseconds old: a cut within a page makes zeros of its rest without any fault.
constexpr std::int64_t kLookMilliseconds = 10;
MappingState mapping_state(std::size_t slot, std::int64_t now);
inline constexpr std::int64_t kLookNow = INT64_MAX;

// Throws CorruptError or ReadError where the mapping is not whole any more.
void require_whole(std::size_t slot, const std::string& file, std::int64_t now);

}  // namespace citadel
