// Packed document numbers and counts: blocks of 128 values of b bits each, lowest bit first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace citadel {

constexpr std::size_t kBlock = 128;  // postings per block
constexpr std::size_t kPadding = 8;  // zero bytes after the last block, so that 8-byte loads stay in bounds
constexpr unsigned kBitsShift = 56;  // a block's entry is offset | bits << 56
constexpr std::uint64_t kOffsetMask = (std::uint64_t{1} << kBitsShift) - 1;

struct PackedDocuments {
  std::vector<std::uint32_t> firsts;   // [B]
  std::vector<std::uint64_t> offsets;  // [B + 1]
  std::vector<std::uint8_t> bytes;
};

struct PackedCounts {
  std::vector<std::uint64_t> offsets;  // [B + 1]
  std::vector<std::uint8_t> bytes;
};

// List i is values[starts[i]:starts[i + 1]]. Throws std::invalid_argument if a list decreases.
PackedDocuments pack_documents(const std::uint32_t* values, std::uint64_t count, const std::uint64_t* starts,
                               std::size_t lists);

// The same for counts ≥ 1, stored as count - 1.
PackedCounts pack_counts(const std::uint32_t* values, std::uint64_t count, const std::uint64_t* starts,
                         std::size_t lists);

// Decode `first` and the `count` deltas that follow it into out [count + 1]. Returns the last number as 64
// bits: if it is below 2^32, so are all others. `readable` is the number of bytes at `in`, at least
// packed_bytes(count, bits) + kPadding.
std::uint64_t unpack_documents(const std::uint8_t* in, std::uint64_t readable, unsigned bits,
                               std::uint32_t first, std::size_t count, std::uint32_t* out);

// Decode `count` counts.
void unpack_counts(const std::uint8_t* in, std::uint64_t readable, unsigned bits, std::size_t count,
                   std::uint32_t* out);

inline std::uint64_t packed_bytes(std::uint64_t count, unsigned bits) { return (count * bits + 7) / 8; }

}  // namespace citadel
