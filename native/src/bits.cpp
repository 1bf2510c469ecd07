#include "citadel/bits.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "citadel/bytes.hpp"

namespace citadel {
namespace {

void put_block(const std::uint32_t* values, std::size_t count, unsigned bits, std::uint8_t* out) {
  std::uint64_t pending = 0;
  unsigned held = 0;
  for (std::size_t i = 0; i < count; ++i) {
    pending |= std::uint64_t{values[i]} << held;
    held += bits;
    if (held >= 32) {
      const auto word = static_cast<std::uint32_t>(pending);
      std::memcpy(out, &word, sizeof word);
      out += sizeof word, pending >>= 32, held -= 32;
    }
  }
  for (; held > 0; held -= std::min(held, 8u), pending >>= 8) *out++ = static_cast<std::uint8_t>(pending);
}

void check_starts(const std::uint64_t* starts, std::size_t lists, std::uint64_t count) {
  if (starts[0] != 0 || starts[lists] != count)
    throw std::invalid_argument("starts must run from 0 to the number of values");
  for (std::size_t i = 0; i < lists; ++i)
    if (starts[i] > starts[i + 1])
      throw std::invalid_argument("starts decrease at list " + std::to_string(i));
}

std::uint64_t count_blocks(const std::uint64_t* starts, std::size_t lists) {
  std::uint64_t blocks = 0;
  for (std::size_t i = 0; i < lists; ++i) blocks += divide_up(starts[i + 1] - starts[i], kBlock);
  return blocks;
}

// Collects packed blocks in a buffer that grows by doubling.
class Packer {
 public:
  explicit Packer(std::uint64_t blocks) { offsets_.reserve(blocks + 1); }

  void add(const std::uint32_t* values, std::size_t count) {
    std::uint32_t all = 0;
    for (std::size_t i = 0; i < count; ++i) all |= values[i];
    const auto bits = static_cast<unsigned>(std::bit_width(all));
    const std::uint64_t bytes = packed_bytes(count, bits);
    if (bytes_.size() < size_ + bytes + kPadding)
      bytes_.resize(std::max<std::size_t>(2 * bytes_.size(), size_ + bytes + 4096));
    offsets_.push_back(size_ | std::uint64_t{bits} << kBitsShift);
    put_block(values, count, bits, bytes_.data() + size_);
    size_ += bytes;
  }

  std::pair<std::vector<std::uint64_t>, std::vector<std::uint8_t>> finish() {
    offsets_.push_back(size_);
    bytes_.resize(size_);
    bytes_.resize(size_ + kPadding);
    return {std::move(offsets_), std::move(bytes_)};
  }

 private:
  std::vector<std::uint64_t> offsets_;
  std::vector<std::uint8_t> bytes_;
  std::uint64_t size_ = 0;
};

template <typename Visit>
void each_block(const std::uint64_t* starts, std::size_t lists, Visit visit) {
  for (std::size_t list = 0; list < lists; ++list)
    for (std::uint64_t at = starts[list]; at < starts[list + 1]; at += kBlock)
      visit(list, at, static_cast<std::size_t>(std::min<std::uint64_t>(kBlock, starts[list + 1] - at)));
}

struct Documents {  // prefix sums of deltas
  std::uint64_t last;
  std::uint32_t operator()(std::uint64_t value) { return static_cast<std::uint32_t>(last += value); }
};

struct Counts {
  std::uint32_t operator()(std::uint64_t value) { return static_cast<std::uint32_t>(value + 1); }
};

template <unsigned Bits, std::size_t Index>
std::uint64_t value_in_group(const std::uint8_t* in, std::uint64_t word) {
  constexpr std::uint64_t mask = (std::uint64_t{1} << Bits) - 1;
  if constexpr (Bits <= 8)
    return word >> (Index * Bits) & mask;
  else
    return load<std::uint64_t>(in + Index * Bits / 8) >> (Index * Bits % 8) & mask;
}

// Eight values of `Bits` bits fill exactly `Bits` bytes, so every shift is a compile-time constant.
template <unsigned Bits, typename Sink>
void unpack_groups(const std::uint8_t* in, std::size_t groups, Sink& sink, std::uint32_t* out) {
  for (std::size_t group = 0; group < groups; ++group, in += Bits, out += 8) {
    const std::uint64_t word = load<std::uint64_t>(in);
    [&]<std::size_t... Index>(std::index_sequence<Index...>) {
      ((out[Index] = sink(value_in_group<Bits, Index>(in, word))), ...);
    }(std::make_index_sequence<8>{});
  }
}

template <typename Sink>
using Unpack = void (*)(const std::uint8_t*, std::size_t, Sink&, std::uint32_t*);

template <typename Sink>
constexpr std::array<Unpack<Sink>, 33> kUnpack = []<std::size_t... Bits>(std::index_sequence<Bits...>) {
  return std::array<Unpack<Sink>, 33>{&unpack_groups<Bits, Sink>...};
}(std::make_index_sequence<33>{});

// Unpacks whole groups if their 8-byte loads stay in bounds, then the remaining values one by one.
template <typename Sink>
void unpack(const std::uint8_t* in, std::uint64_t readable, unsigned bits, std::size_t count, Sink& sink,
            std::uint32_t* out) {
  std::size_t done = 0;
  if (readable >= count / 8 * bits + kPadding) {
    kUnpack<Sink>[bits](in, count / 8, sink, out);
    done = count / 8 * 8;
  }
  const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
  for (; done < count; ++done) {
    const std::uint64_t bit = std::uint64_t{done} * bits;
    out[done] = sink(load<std::uint64_t>(in + bit / 8) >> (bit % 8) & mask);
  }
}

}  // namespace

PackedDocuments pack_documents(const std::uint32_t* values, std::uint64_t count, const std::uint64_t* starts,
                               std::size_t lists) {
  check_starts(starts, lists, count);
  PackedDocuments packed;
  Packer packer(count_blocks(starts, lists));
  packed.firsts.reserve(count_blocks(starts, lists));
  each_block(starts, lists, [&](std::size_t list, std::uint64_t at, std::size_t n) {
    const std::uint32_t* block = values + at;
    bool decreases = at > starts[list] && block[0] < block[-1];
    std::uint32_t deltas[kBlock];
    for (std::size_t i = 1; i < n; ++i)
      decreases |= block[i] < block[i - 1], deltas[i - 1] = block[i] - block[i - 1];
    if (decreases) throw std::invalid_argument("document numbers decrease in list " + std::to_string(list));
    packed.firsts.push_back(block[0]);
    packer.add(deltas, n - 1);
  });
  std::tie(packed.offsets, packed.bytes) = packer.finish();
  return packed;
}

PackedCounts pack_counts(const std::uint32_t* values, std::uint64_t count, const std::uint64_t* starts,
                         std::size_t lists) {
  check_starts(starts, lists, count);
  Packer packer(count_blocks(starts, lists));
  each_block(starts, lists, [&](std::size_t list, std::uint64_t at, std::size_t n) {
    bool has_zero = false;
    std::uint32_t stored[kBlock];
    for (std::size_t i = 0; i < n; ++i) has_zero |= values[at + i] == 0, stored[i] = values[at + i] - 1;
    if (has_zero) throw std::invalid_argument("a count is 0 in list " + std::to_string(list));
    packer.add(stored, n);
  });
  PackedCounts packed;
  std::tie(packed.offsets, packed.bytes) = packer.finish();
  return packed;
}

std::uint64_t unpack_documents(const std::uint8_t* in, std::uint64_t readable, unsigned bits,
                               std::uint32_t first, std::size_t count, std::uint32_t* out) {
  Documents documents{first};
  out[0] = first;
  unpack(in, readable, bits, count, documents, out + 1);
  return documents.last;
}

void unpack_counts(const std::uint8_t* in, std::uint64_t readable, unsigned bits, std::size_t count,
                   std::uint32_t* out) {
  Counts counts;
  unpack(in, readable, bits, count, counts, out);
}

}  // namespace citadel
