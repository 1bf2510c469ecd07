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

constexpr std::size_t kWidest = 1 << 16;  // 255 · 128 · 2^16 < 2^31
constexpr std::size_t kGroup = 4;
constexpr std::size_t kBlocksAhead = 2;
constexpr float kNever = -std::numeric_limits<float>::infinity();

void require_finite(const float* values, std::size_t n, const std::string& what) {
  for (std::size_t i = 0; i < n; ++i)
    if (!std::isfinite(values[i])) throw std::invalid_argument("the " + what + " of key " + std::to_string(i) + " is not finite");
}

// As few tiles as hold all rows, and these of one size but for the last.
std::size_t rows_a_tile(std::size_t n) { return n == 0 ? 1 : divide_up(n, divide_up(n, kTileRows)); }

// [n, width] → tile by tile [groups, rows of the tile], four bytes each; a state's end is filled with zeros.
std::vector<std::uint32_t> pack_states(const std::uint8_t* states, std::size_t n, std::size_t width, std::size_t groups) {
  std::vector<std::uint32_t> packed(n * groups);
  const std::size_t tile = rows_a_tile(n);
  for (std::size_t row = 0; row < n; ++row) {
    const std::size_t first = row / tile * tile, rows = std::min(tile, n - first);
    for (std::size_t group = 0; group < groups; ++group) {
      const std::size_t at = group * kGroup;
      __builtin_memcpy(&packed[first * groups + group * rows + (row - first)], states + row * width + at, std::min(kGroup, width - at));
    }
  }
  return packed;
}

// The best keys of each row so far.
class Leaders {
 public:
  Leaders(std::size_t n, std::size_t most)
      : most_(most), found_{std::vector<std::int64_t>(n * most), std::vector<float>(n * most, kNever)}, least_(n, kNever) {}

  const float* least(std::size_t row) const { return &least_[row]; }  // a logit must be above it
  BestKeys& found() { return found_; }

  // Those of a block's keys whose bits are set; they come in rising order, so that the lower of two equal ones stays ahead.
  void offer(std::size_t row, std::size_t first_key, std::uint32_t good, const float* logits) {
    for (; good != 0; good &= good - 1) {
      const auto lane = static_cast<std::size_t>(std::countr_zero(good));
      if (logits[lane] > least_[row]) insert(row, logits[lane], static_cast<std::int64_t>(first_key + lane));
    }
  }

 private:
  void insert(std::size_t row, float logit, std::int64_t key) {
    float* logits = &found_.weights[row * most_];
    std::int64_t* keys = &found_.keys[row * most_];
    std::size_t place = most_ - 1;
    for (; place > 0 && logit > logits[place - 1]; --place) logits[place] = logits[place - 1], keys[place] = keys[place - 1];
    logits[place] = logit, keys[place] = key;
    least_[row] = logits[most_ - 1];
  }

  std::size_t most_;
  BestKeys found_;
  std::vector<float> least_;
};

// In double, as the graph has it: a vectorised fp32 log depends on a number's place in its array.
float activation(float logit) { return static_cast<float>(std::log(static_cast<double>(std::max(logit, 0.0f)) + 1.0)); }

}  // namespace

Router::Router(const std::int8_t* table, const float* scales, const float* biases, std::size_t keys, std::size_t width, float step,
               std::uint8_t zero)
    : keys_(keys), width_(width), groups_(divide_up(width, kGroup)), blocks_(divide_up(keys, kKeyBlock)) {
  if (keys == 0 || width == 0) throw std::invalid_argument("a table has at least one key and one number");
  if (width > kWidest) throw std::invalid_argument("a state of " + std::to_string(width) + " numbers is too wide");
  codes_.resize(blocks_ * groups_ * kKeyBlock * kGroup / sizeof(Line));
  offsets_.resize(blocks_ * kKeyBlock);
  scales_.resize(blocks_ * kKeyBlock);
  biases_.resize(blocks_ * kKeyBlock, kNever);
  for (std::size_t key = 0; key < keys; ++key) {
    std::int8_t* column = codes_.front().bytes + key / kKeyBlock * groups_ * kKeyBlock * kGroup + key % kKeyBlock * kGroup;
    std::int32_t sum = 0;
    for (std::size_t i = 0; i < width; ++i) {
      column[i / kGroup * kKeyBlock * kGroup + i % kGroup] = table[key * width + i];
      sum += table[key * width + i];
    }
    offsets_[key] = zero * sum, scales_[key] = step * scales[key], biases_[key] = biases[key];
  }
  require_finite(scales_.data(), keys, "scale");
  require_finite(biases_.data(), keys, "bias");
}

BestKeys Router::best(const std::uint8_t* states, std::size_t n, std::size_t most) const {
  if (most == 0 || most > keys_) throw std::invalid_argument("a token can have 1 to " + std::to_string(keys_) + " keys");
  const Kernels& set = kernels();
  const std::vector<std::uint32_t> packed = pack_states(states, n, width_, groups_);
  const std::size_t tile = rows_a_tile(n), lines = groups_ * kKeyBlock * kGroup / sizeof(Line);  // of a block
  Leaders leaders(n, most);
  alignas(64) std::int32_t sums[kTileRows * kKeyBlock];
  alignas(64) float logits[kTileRows * kKeyBlock];
  std::uint32_t good[kTileRows];
  for (std::size_t block = 0; block < blocks_; ++block) {
    const std::size_t key = block * kKeyBlock, ahead = block + kBlocksAhead < blocks_ ? kBlocksAhead * lines * sizeof(Line) : 0;
    for (std::size_t first = 0; first < n; first += tile) {
      const std::size_t rows = std::min(tile, n - first);
      // The first tile asks for a block to come; for the others this one is in the cache.
      set.byte_products(packed.data() + first * groups_, rows, codes_[block * lines].bytes, groups_, first == 0 ? ahead : 0, sums);
      set.logits(sums, rows, {&offsets_[key], &scales_[key], &biases_[key]}, leaders.least(first), logits, good);
      for (std::size_t row = 0; row < rows; ++row) leaders.offer(first + row, key, good[row], logits + row * kKeyBlock);
    }
  }
  std::vector<float>& weights = leaders.found().weights;
  std::transform(weights.begin(), weights.end(), weights.begin(), activation);
  return std::move(leaders.found());
}

}  // namespace citadel
