#include "citadel/radix.hpp"

#include <array>
#include <numeric>
#include <stdexcept>

namespace citadel {
namespace {

constexpr unsigned kDigit = 11;
constexpr std::size_t kBuckets = 1 << kDigit;

struct Row {
  std::uint32_t key, index;
};

std::size_t digit(std::uint32_t key, unsigned pass) { return key >> (pass * kDigit) & (kBuckets - 1); }

// One stable pass by a digit. Returns false, moving nothing, if all keys share that digit.
bool scatter(const std::vector<Row>& from, std::vector<Row>& to, unsigned pass) {
  std::array<std::size_t, kBuckets> positions{};
  for (const Row& row : from) ++positions[digit(row.key, pass)];
  if (positions[digit(from[0].key, pass)] == from.size()) return false;
  std::exclusive_scan(positions.begin(), positions.end(), positions.begin(), std::size_t{0});
  for (const Row& row : from) to[positions[digit(row.key, pass)]++] = row;
  return true;
}

}  // namespace

std::vector<std::uint32_t> sort_by_key(const std::uint32_t* keys, std::size_t count) {
  if (count > UINT32_MAX) throw std::invalid_argument("cannot sort more than 2^32 - 1 keys at once");
  std::vector<Row> rows(count), other(count);
  for (std::size_t i = 0; i < count; ++i) rows[i] = {keys[i], static_cast<std::uint32_t>(i)};
  for (unsigned pass = 0; count > 1 && pass < 3; ++pass)
    if (scatter(rows, other, pass)) rows.swap(other);
  std::vector<std::uint32_t> order(count);
  for (std::size_t i = 0; i < count; ++i) order[i] = rows[i].index;
  return order;
}

}  // namespace citadel
