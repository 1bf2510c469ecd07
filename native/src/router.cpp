#include "citadel/router.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "citadel/bytes.hpp"
#include "citadel/dispatch.hpp"

namespace citadel {
namespace {

constexpr std::size_t kMaxWidth = 1 << 16;  // 255 · 128 · 2^16 < 2^31
constexpr std::size_t kGroup = 4;
constexpr std::size_t kLengthBytes[] = {5, 2, 1};  // of a state's three lengths
constexpr std::size_t kBlocksAhead = 2;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

void require_finite(const float* values, std::size_t n, const std::string& what) {
  for (std::size_t i = 0; i < n; ++i)
    if (!std::isfinite(values[i]))
      throw std::invalid_argument("the " + what + " " + std::to_string(i) + " is not finite");
}

// The fewest tiles that hold all rows, of equal size except for the last.
std::size_t rows_per_tile(std::size_t n) { return n == 0 ? 1 : divide_up(n, divide_up(n, kTileRows)); }

// [n, width] → per tile [groups, rows], four bytes each; states are zero-padded to whole groups.
std::vector<std::uint32_t> pack_states(const std::uint8_t* states, std::size_t n, std::size_t width,
                                       std::size_t groups) {
  std::vector<std::uint32_t> packed(n * groups);
  const std::size_t tile = rows_per_tile(n);
  for (std::size_t row = 0; row < n; ++row) {
    const std::size_t first = row / tile * tile, rows = std::min(tile, n - first);
    for (std::size_t group = 0; group < groups; ++group) {
      const std::size_t at = group * kGroup;
      __builtin_memcpy(&packed[first * groups + group * rows + (row - first)], states + row * width + at,
                       std::min(kGroup, width - at));
    }
  }
  return packed;
}

// The best keys of each row so far.
class TopKeys {
 public:
  TopKeys(std::size_t n, std::size_t max_keys)
      : max_keys_(max_keys),
        best_{std::vector<std::int64_t>(n * max_keys), std::vector<float>(n * max_keys, kMinusInfinity)},
        thresholds_(n, kMinusInfinity) {}

  // A logit must exceed the threshold of its row.
  const float* thresholds(std::size_t row) const { return &thresholds_[row]; }
  BestKeys& best() { return best_; }

  // Offer the keys of a block whose bits are set in `mask`. Keys come in ascending order, so ties go to the
  // lower key.
  void offer(std::size_t row, std::size_t first_key, std::uint32_t mask, const float* logits) {
    for (; mask != 0; mask &= mask - 1) {
      const auto lane = static_cast<std::size_t>(std::countr_zero(mask));
      offer(row, first_key + lane, logits[lane]);
    }
  }

  void offer(std::size_t row, std::size_t key, float logit) {
    if (logit > thresholds_[row]) insert(row, logit, static_cast<std::int64_t>(key));
  }

 private:
  void insert(std::size_t row, float logit, std::int64_t key) {
    float* logits = &best_.weights[row * max_keys_];
    std::int64_t* keys = &best_.keys[row * max_keys_];
    std::size_t i = max_keys_ - 1;
    for (; i > 0 && logit > logits[i - 1]; --i) logits[i] = logits[i - 1], keys[i] = keys[i - 1];
    logits[i] = logit, keys[i] = key;
    thresholds_[row] = logits[max_keys_ - 1];
  }

  std::size_t max_keys_;
  BestKeys best_;
  std::vector<float> thresholds_;
};

// In double, as in the ONNX graph: the result of a vectorized fp32 log depends on an element's index in its
// array.
float activation(float logit) {
  return static_cast<float>(std::log(static_cast<double>(std::max(logit, 0.0f)) + 1.0));
}

// Write a state's lengths, from their squares, as bytes; false if one does not fit. They are enlarged by more
// than fp32 can lose.
bool length_bytes(const float* squares, const float* units, std::uint8_t* out) {
  for (std::size_t i = 0; i < 3; ++i) {
    const float steps = std::ceil((std::sqrt(squares[i]) * 1.0001f + 0.001f) / units[i]);
    if (!(steps <= 255.0f * static_cast<float>(kLengthBytes[i]))) return false;
    auto left = static_cast<std::size_t>(steps);
    for (std::size_t byte = 0; byte < kLengthBytes[i]; ++byte, ++out)
      *out = static_cast<std::uint8_t>(std::min<std::size_t>(left, 255)), left -= *out;
  }
  return true;
}

}  // namespace

Router::Router(const std::int8_t* table, const float* scales, const float* biases, std::size_t keys,
               std::size_t width, float step, std::uint8_t zero)
    : keys_(keys), width_(width), groups_(divide_up(width, kGroup)), blocks_(divide_up(keys, kKeyBlock)) {
  if (keys == 0 || width == 0)
    throw std::invalid_argument("the router table needs at least one key and one dimension");
  if (width > kMaxWidth)
    throw std::invalid_argument("states of " + std::to_string(width) + " dimensions are too wide: at most " +
                                std::to_string(kMaxWidth));
  codes_ = blocked(table, keys, width);
  offsets_.resize(blocks_ * kKeyBlock);
  scales_.resize(blocks_ * kKeyBlock);
  biases_.resize(blocks_ * kKeyBlock, kMinusInfinity);
  for (std::size_t key = 0; key < keys; ++key) {
    std::int32_t sum = 0;
    for (std::size_t i = 0; i < width; ++i) sum += table[key * width + i];
    offsets_[key] = zero * sum, scales_[key] = step * scales[key], biases_[key] = biases[key];
  }
  require_finite(scales_.data(), keys, "scale of key");
  require_finite(biases_.data(), keys, "bias of key");
}

// [keys, width] → [blocks, groups, 32, 4], zero-padded.
std::vector<Router::Line> Router::blocked(const std::int8_t* codes, std::size_t keys,
                                          std::size_t width) const {
  const std::size_t stride = divide_up(width, kGroup) * kKeyBlock * kGroup;
  std::vector<Line> lines(divide_up(keys, kKeyBlock) * stride / sizeof(Line));
  for (std::size_t key = 0; key < keys; ++key) {
    std::int8_t* column = lines.front().bytes + key / kKeyBlock * stride + key % kKeyBlock * kGroup;
    for (std::size_t i = 0; i < width; ++i)
      column[i / kGroup * kKeyBlock * kGroup + i % kGroup] = codes[key * width + i];
  }
  return lines;
}

void Router::set_bounds(const KeyBounds& bounds) {
  if (bounds.lead == 0 || bounds.lead % kGroup != 0 || bounds.lead > width_)
    throw std::invalid_argument("the bounds need a multiple of 4 coordinates, at most " +
                                std::to_string(width_));
  require_finite(bounds.means.data(), width_, "mean of coordinate");
  require_finite(bounds.factors.data(), width_, "factor of coordinate");
  for (const float unit : bounds.units)
    if (!(unit > 0.0f && std::isfinite(unit))) throw std::invalid_argument("the units must be positive");
  transform_ = blocked(bounds.transform.data(), width_, width_);
  means_ = bounds.means, factors_ = bounds.factors, lead_ = bounds.lead;
  std::copy(bounds.units, bounds.units + 3, units_);
  bound_thresholds_.assign(blocks_ * kKeyBlock, std::numeric_limits<std::int32_t>::max());
  std::copy(bounds.thresholds.begin(), bounds.thresholds.end(), bound_thresholds_.begin());
  rows_.resize(keys_ * width_);
  for (std::size_t key = 0; key < keys_; ++key) {
    const std::int8_t* column =
        codes_.front().bytes + key / kKeyBlock * groups_ * kKeyBlock * kGroup + key % kKeyBlock * kGroup;
    for (std::size_t i = 0; i < width_; ++i)
      rows_[key * width_ + i] = column[i / kGroup * kKeyBlock * kGroup + i % kGroup];
  }
  bound_codes_ = blocked(bounds.codes.data(), keys_, bounds.lead + kBoundLengths);
}

// The bytes of the bounds for each state.
Router::Packed Router::bound_states(const std::uint8_t* states, std::size_t n) const {
  const Kernels& set = kernels();
  const std::size_t bytes = lead_ + kBoundLengths, tile = rows_per_tile(n),
                    lines = groups_ * kKeyBlock * kGroup / sizeof(Line);
  const std::vector<std::uint32_t> packed = pack_states(states, n, width_, groups_);
  std::vector<std::uint8_t> result(n * bytes);
  std::vector<bool> bounded(n);
  const std::size_t blocks = divide_up(width_, kKeyBlock);
  std::vector<std::int32_t> products(kTileRows * blocks * kKeyBlock);
  alignas(64) std::int32_t sums[kTileRows * kKeyBlock];
  for (std::size_t first = 0; first < n; first += tile) {
    const std::size_t rows = std::min(tile, n - first);
    for (std::size_t block = 0; block < blocks; ++block) {
      set.byte_products(packed.data() + first * groups_, rows, transform_[block * lines].bytes, groups_, 0,
                        sums);
      for (std::size_t row = 0; row < rows; ++row)
        std::copy(sums + row * kKeyBlock, sums + (row + 1) * kKeyBlock,
                  &products[(row * blocks + block) * kKeyBlock]);
    }
    for (std::size_t row = 0; row < rows; ++row) {
      std::uint8_t* own = &result[(first + row) * bytes];
      float squares[3];
      set.bound_bytes(&products[row * blocks * kKeyBlock], means_.data(), factors_.data(), lead_, width_, own,
                      squares);
      bounded[first + row] = length_bytes(squares, units_, own + lead_);
    }
  }
  return {pack_states(result.data(), n, bytes, bytes / kGroup), std::move(bounded)};
}

BestKeys Router::best_above(const std::uint8_t* states, std::size_t n, std::size_t max_keys) const {
  if (max_keys == 0 || max_keys > keys_)
    throw std::invalid_argument("max_keys must be from 1 to " + std::to_string(keys_));
  if (!has_bounds()) throw std::invalid_argument("this router has no bounds");
  const Kernels& set = kernels();
  const auto [packed, bounded] = bound_states(states, n);
  const std::size_t tile = rows_per_tile(n), groups = (lead_ + kBoundLengths) / kGroup;
  const std::size_t lines = groups * kKeyBlock * kGroup / sizeof(Line);  // per block
  TopKeys top(n, max_keys);
  alignas(64) std::int32_t sums[kTileRows * kKeyBlock];
  std::uint32_t above[kTileRows];
  for (std::size_t block = 0; block < blocks_; ++block) {
    const std::size_t key = block * kKeyBlock;
    const std::size_t ahead = block + kBlocksAhead < blocks_ ? kBlocksAhead * lines * sizeof(Line) : 0;
    for (std::size_t at = (key + kKeyBlock) * width_; at < std::min(key + 2 * kKeyBlock, keys_) * width_;
         at += sizeof(Line))
      __builtin_prefetch(&rows_[at]);  // a batch needs most rows of the next block
    for (std::size_t first = 0; first < n; first += tile) {
      const std::size_t rows = std::min(tile, n - first);
      set.byte_products(packed.data() + first * groups, rows, bound_codes_[block * lines].bytes, groups,
                        first == 0 ? ahead : 0, sums);
      set.exceeding(sums, rows, &bound_thresholds_[key], above);
      for (std::size_t row = first; row < first + rows; ++row)
        for (std::uint32_t mask = above[row - first]; mask != 0; mask &= mask - 1) {
          const std::size_t at = key + static_cast<std::size_t>(std::countr_zero(mask));
          const std::int32_t sum = set.byte_product(states + row * width_, &rows_[at * width_], width_);
          top.offer(row, at, static_cast<float>(sum - offsets_[at]) * scales_[at] + biases_[at]);
        }
    }
  }
  std::vector<float>& weights = top.best().weights;
  std::transform(weights.begin(), weights.end(), weights.begin(), activation);
  for (std::size_t row = 0; row < n; ++row)
    if (!bounded[row]) {  // rare: the state is unlike those that the bounds were fitted to
      const BestKeys exact = best(states + row * width_, 1, max_keys);
      std::copy(exact.keys.begin(), exact.keys.end(),
                top.best().keys.begin() + static_cast<std::ptrdiff_t>(row * max_keys));
      std::copy(exact.weights.begin(), exact.weights.end(),
                weights.begin() + static_cast<std::ptrdiff_t>(row * max_keys));
    }
  return std::move(top.best());
}

BestKeys Router::best(const std::uint8_t* states, std::size_t n, std::size_t max_keys) const {
  if (max_keys == 0 || max_keys > keys_)
    throw std::invalid_argument("max_keys must be from 1 to " + std::to_string(keys_));
  const Kernels& set = kernels();
  const std::vector<std::uint32_t> packed = pack_states(states, n, width_, groups_);
  const std::size_t tile = rows_per_tile(n);
  const std::size_t lines = groups_ * kKeyBlock * kGroup / sizeof(Line);  // per block
  TopKeys top(n, max_keys);
  alignas(64) std::int32_t sums[kTileRows * kKeyBlock];
  alignas(64) float logits[kTileRows * kKeyBlock];
  std::uint32_t above[kTileRows];
  for (std::size_t block = 0; block < blocks_; ++block) {
    const std::size_t key = block * kKeyBlock;
    const std::size_t ahead = block + kBlocksAhead < blocks_ ? kBlocksAhead * lines * sizeof(Line) : 0;
    for (std::size_t first = 0; first < n; first += tile) {
      const std::size_t rows = std::min(tile, n - first);
      // Only the first tile prefetches; the others find the block in the cache.
      set.byte_products(packed.data() + first * groups_, rows, codes_[block * lines].bytes, groups_,
                        first == 0 ? ahead : 0, sums);
      set.logits(sums, rows, {&offsets_[key], &scales_[key], &biases_[key]}, top.thresholds(first), logits,
                 above);
      for (std::size_t row = 0; row < rows; ++row)
        top.offer(first + row, key, above[row], logits + row * kKeyBlock);
    }
  }
  std::vector<float>& weights = top.best().weights;
  std::transform(weights.begin(), weights.end(), weights.begin(), activation);
  return std::move(top.best());
}

}  // namespace citadel
