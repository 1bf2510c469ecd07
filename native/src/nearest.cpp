#include "citadel/nearest.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <stdexcept>

#include "citadel/dispatch.hpp"
#include "citadel/half.hpp"
#include "citadel/quantize.hpp"

namespace citadel {
namespace {

constexpr std::size_t kChunk = 4096;  // vectors whose codes are in memory at a time
constexpr std::size_t kGroup = 4;     // bytes

std::size_t groups_of(std::size_t dimension) { return (dimension + kGroup - 1) / kGroup; }

}  // namespace

CodedRows::CodedRows(const std::int8_t* codes, const std::uint16_t* scales, std::size_t n, std::size_t d)
    : groups_(groups_of(d)),
      lines_((n + kKeyBlock - 1) / kKeyBlock * groups_ * 2),
      offsets_(lines_.size() / (groups_ * 2) * kKeyBlock),
      scales_(offsets_.size()),
      biases_(offsets_.size(), -std::numeric_limits<float>::infinity()) {
  for (std::size_t row = 0; row < n; ++row) {
    std::int32_t sum = 0, squares = 0;
    for (std::size_t i = 0; i < d; ++i) {
      const std::int8_t code = codes[row * d + i];
      const std::size_t at = (row / kKeyBlock * groups_ + i / kGroup) * kKeyBlock * kGroup +
                             row % kKeyBlock * kGroup + i % kGroup;
      lines_[at / sizeof(Line)].bytes[at % sizeof(Line)] = code;
      sum += code, squares += code * code;
    }
    offsets_[row] = 128 * sum;
    scales_[row] = half_to_float(scales[row]);
    biases_[row] = -0.5f * ((static_cast<float>(squares) * scales_[row]) * scales_[row]);
  }
}

// The codes are biased by 128: [n, width]
struct NearestCentroids::Tokens {
  Tokens(const float* vectors, std::size_t n, std::size_t d)
      : width(groups_of(d) * kGroup), codes(n * width), scales(n) {
    std::vector<std::int8_t> row((d + kQueryPadding - 1) / kQueryPadding * kQueryPadding + kQueryPadding);
    for (std::size_t token = 0; token < n; ++token) {
      scales[token] = quantize_query(vectors + token * d, d, row.data());
      for (std::size_t i = 0; i < width; ++i)
        codes[token * width + i] = static_cast<std::uint8_t>(row[i]) ^ 0x80u;
    }
  }

  std::size_t size() const { return scales.size(); }

  void copy(std::size_t token, std::uint8_t* out) const {
    std::copy_n(codes.data() + token * width, width, out);
  }

  std::size_t width;
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
};

NearestCentroids::NearestCentroids(const std::int8_t* codes, const std::uint16_t* scales, std::size_t n,
                                   std::size_t d, const std::int8_t* head_codes,
                                   const std::uint16_t* head_scales, std::vector<std::uint32_t> starts,
                                   std::vector<std::uint32_t> members, std::size_t probes)
    : dimension_(d),
      groups_(starts.size() - 1),
      probes_(probes),
      heads_(head_codes, head_scales, groups_, d),
      starts_(std::move(starts)),
      members_(std::move(members)) {
  if (d == 0 || d > kMaxTokenBytes) throw std::invalid_argument("a centroid has 1 to 1024 dimensions");
  if (probes_ == 0 || probes_ > groups_)
    throw std::invalid_argument("probe one group or more, and no more than there are");
  std::vector<std::int8_t> own;
  std::vector<std::uint16_t> own_scales;
  for (std::size_t group = 0; group < groups_; ++group) {
    own.clear(), own_scales.clear();
    for (std::size_t i = starts_[group]; i < starts_[group + 1]; ++i) {
      if (members_.at(i) >= n) throw std::invalid_argument("a group has a centroid that does not exist");
      own.insert(own.end(), codes + members_[i] * d, codes + (members_[i] + 1) * d);
      own_scales.push_back(scales[members_[i]]);
    }
    lists_.emplace_back(own.data(), own_scales.data(), own_scales.size(), d);
  }
}

std::vector<std::uint32_t> NearestCentroids::nearest(const float* vectors, std::size_t n) const {
  std::vector<std::uint32_t> out(n);
  std::vector<Best> best;
  std::vector<std::vector<std::uint32_t>> near(groups_);
  for (std::size_t first = 0; first < n; first += kChunk) {
    const Tokens tokens(vectors + first * dimension_, std::min(kChunk, n - first), dimension_);
    best.assign(tokens.size(), {-std::numeric_limits<float>::infinity(), 0});
    for (std::vector<std::uint32_t>& list : near) list.clear();
    add_groups(tokens, near);
    for (std::size_t group = 0; group < groups_; ++group)
      search_group(tokens, group, near[group], best.data());
    for (std::size_t token = 0; token < tokens.size(); ++token) out[first + token] = best[token].centroid;
  }
  return out;
}

// Add each token to its nearest groups.
void NearestCentroids::add_groups(const Tokens& tokens, std::vector<std::vector<std::uint32_t>>& near) const {
  const Kernels& set = kernels();
  const std::size_t width = heads_.blocks() * kKeyBlock;
  alignas(64) std::uint8_t rows_of_codes[kTileRows * kTokenStride];
  alignas(64) std::int32_t sums[kTileRows * kKeyBlock];
  alignas(64) float products[kTileRows * kKeyBlock];
  std::vector<float> values(kTileRows * width), ordered(groups_);
  for (std::size_t first = 0; first < tokens.size(); first += kTileRows) {
    const std::size_t rows = std::min(kTileRows, tokens.size() - first);
    for (std::size_t row = 0; row < rows; ++row) tokens.copy(first + row, rows_of_codes + row * kTokenStride);
    for (std::size_t block = 0; block < heads_.blocks(); ++block) {
      set.token_products(rows_of_codes, rows, heads_.codes(block), groups_of(dimension_), sums);
      set.scaled_products(sums, rows, tokens.scales.data() + first, heads_.offsets(block),
                          heads_.scales(block), products);
      for (std::size_t row = 0; row < rows; ++row)
        for (std::size_t key = 0; key < kKeyBlock; ++key)
          values[row * width + block * kKeyBlock + key] =
              products[row * kKeyBlock + key] + heads_.biases(block)[key];
    }
    for (std::size_t row = 0; row < rows; ++row) {
      const float* own = values.data() + row * width;
      std::copy_n(own, groups_, ordered.begin());
      const auto last = ordered.begin() + static_cast<std::ptrdiff_t>(probes_ - 1);
      std::nth_element(ordered.begin(), last, ordered.end(), std::greater<>());
      for (std::size_t group = 0; group < groups_; ++group)
        if (own[group] >= *last) near[group].push_back(static_cast<std::uint32_t>(first + row));
    }
  }
}

void NearestCentroids::search_group(const Tokens& tokens, std::size_t group,
                                    const std::vector<std::uint32_t>& near, Best* best) const {
  const Kernels& set = kernels();
  const CodedRows& list = lists_[group];
  alignas(64) std::uint8_t rows_of_codes[kTileRows * kTokenStride];
  alignas(64) std::int32_t sums[kTileRows * kKeyBlock];
  alignas(64) float values[kTileRows * kKeyBlock];
  alignas(64) std::int32_t positions[kTileRows * kKeyBlock];
  float scales[kTileRows];
  for (std::size_t first = 0; first < near.size(); first += kTileRows) {
    const std::size_t rows = std::min(kTileRows, near.size() - first);
    for (std::size_t row = 0; row < rows; ++row) {
      tokens.copy(near[first + row], rows_of_codes + row * kTokenStride);
      scales[row] = tokens.scales[near[first + row]];
    }
    std::fill_n(values, rows * kKeyBlock, -std::numeric_limits<float>::infinity());
    for (std::size_t block = 0; block < list.blocks(); ++block) {
      set.token_products(rows_of_codes, rows, list.codes(block), groups_of(dimension_), sums);
      set.nearest_rows(sums, rows, scales, {list.offsets(block), list.scales(block), list.biases(block)},
                       static_cast<std::int32_t>(block * kKeyBlock), values, positions);
    }
    for (std::size_t row = 0; row < rows; ++row) {
      Best& own = best[near[first + row]];
      const float* lanes = values + row * kKeyBlock;
      const float largest = *std::max_element(lanes, lanes + kKeyBlock);
      if (!(largest >= own.value) || largest == -std::numeric_limits<float>::infinity()) continue;
      for (std::size_t lane = 0; lane < kKeyBlock; ++lane) {
        if (lanes[lane] != largest) continue;
        const std::uint32_t centroid =
            members_[starts_[group] + static_cast<std::size_t>(positions[row * kKeyBlock + lane])];
        if (largest > own.value || centroid < own.centroid) own = {largest, centroid};
      }
    }
  }
}

}  // namespace citadel
