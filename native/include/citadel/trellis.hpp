// Residuals of token vectors: their rotation, and codes along a trellis.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace citadel {

// Multiply rows [n, d] by a Hadamard matrix, in blocks of the largest power of two that divides d. It is its own inverse.
void rotate(float* rows, std::size_t n, std::size_t d);

// The same for any finite rows: a row whose sums could overflow is divided by a power of two first. Returns these divisors [n], 1 for
// most rows.
std::vector<float> rotate_scaled(float* rows, std::size_t n, std::size_t d);

// The codes [n, d] of `bits` bits with the least squared error of rows [n, d]. A dimension takes the value [64] of the six bits that
// end with its own, which are the highest; before the first dimension all bits are 0. Throws std::invalid_argument for other bits than
// 1, 2 and 4.
std::vector<std::uint8_t> trellis_codes(const float* rows, std::size_t n, std::size_t d, const float* values, unsigned bits);

}  // namespace citadel
