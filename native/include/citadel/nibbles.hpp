// Vectors as 4-bit codes: value = (2 · code − 15) · step. Blocks of 128 dimensions take 64 bytes; byte i of a block holds
// dimension i in its low half and dimension i + 64 in its high half. A row is a header, then its blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "citadel/bytes.hpp"

namespace citadel {

constexpr std::size_t kNibbleBlock = 128;
constexpr std::size_t kNibbleHeader = 12;  // step (f32), then the row's first posting and the end of its postings (u32)

constexpr std::size_t nibble_blocks(std::size_t d) { return (d + kNibbleBlock - 1) / kNibbleBlock; }
constexpr std::size_t nibble_row_bytes(std::size_t d) { return kNibbleHeader + 64 * nibble_blocks(d); }

// Write step and codes of a vector. Dimensions after the last have code 7 or 8 and meet zeros in every query.
void encode_nibbles(const float* x, std::size_t d, std::uint8_t* row);

// The int8 codes of a vector that is multiplied with rows.
struct NibbleQuery {
  const std::int8_t* codes;  // [128 · blocks], zeros after the last dimension
  std::int32_t sum;          // of the codes
  float scale;
};

// Owns the codes of one query.
class NibbleVector {
 public:
  explicit NibbleVector(std::size_t d) : d_(d), codes_(kNibbleBlock * nibble_blocks(d)) {}
  NibbleVector(const float* x, std::size_t d) : NibbleVector(d) { set(x); }

  void set(const float* x);
  NibbleQuery query() const { return {codes_.data(), sum_, scale_}; }

 private:
  std::size_t d_;
  std::vector<std::int8_t> codes_;
  std::int32_t sum_ = 0;
  float scale_ = 0;
};

// out[i] = Σ (2 · code − 15) · q over row i, exact; the same on every instruction set. Rows are where their codes begin.
using NibbleDots = void (*)(const std::uint8_t* const* codes, std::size_t n, std::size_t blocks, const NibbleQuery& q, std::int32_t* out);

// The fastest one of the selected instruction set.
NibbleDots nibble_dots();

// Scores of n ≤ 64 rows: dot product · step · scale of the query. NaN, which a damaged step can give, becomes −∞.
void score_nibbles(NibbleDots dots, const std::uint8_t* const* rows, std::size_t n, std::size_t blocks, const NibbleQuery& q, float* out);

}  // namespace citadel
