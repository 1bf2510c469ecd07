// Finds which of a row's postings lie in the lists of a query.
#pragma once

#include <cstddef>
#include <cstdint>

namespace citadel {

// The postings first … first + length − 1, all below 2^32.
struct PostingRange {
  std::uint32_t first, length;
};

// Bit i of the result: postings[i] lies in the range. n ≤ 64.
using MatchPostings = std::uint64_t (*)(const std::uint32_t* postings, std::size_t n, PostingRange range);

// The fastest one of the selected instruction set.
MatchPostings match_postings();

}  // namespace citadel
