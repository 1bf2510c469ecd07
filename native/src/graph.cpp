#include "citadel/graph.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

#include "citadel/graph_walk.hpp"

namespace citadel {
namespace {

constexpr std::uint32_t kNoLink = UINT32_MAX;

// Sections are aligned to 64 bytes in a file; the tests' own buffers to at least 8.
std::span<const std::uint32_t> words(const Section& section, std::uint64_t begin, std::uint64_t end) {
  section.verify(4 * begin, 4 * end);
  return {reinterpret_cast<const std::uint32_t*>(section.data()) + begin, static_cast<std::size_t>(end - begin)};
}

}  // namespace

struct Graph::RowTable {
  std::mutex mutex;
  std::atomic<bool> is_made = false;
  std::vector<std::uint32_t> rows;  // by number
};

Graph::Graph(GraphShape shape, const std::map<std::string, SectionBytes>& sections)
    : name_(std::move(shape.name)), rows_(shape.rows), dimension_(shape.dimension), postings_(shape.postings), links_per_row_(shape.links), lists_(shape.lists), seeds_per_list_(shape.seeds),
      blocks_(nibble_blocks(dimension_)), row_bytes_(graph_row_bytes(dimension_)), signature_at_(nibble_row_bytes(dimension_)), row_table_(std::make_shared<RowTable>()) {
  if (rows_ >= UINT32_MAX) throw CorruptError(name_, "META", "claims more than 2^32 - 2 rows");
  if (dimension_ == 0 || dimension_ > 65536) throw CorruptError(name_, "META", "claims a dimension of 0 or above 65536");
  if (postings_ > UINT32_MAX) throw CorruptError(name_, "META", "claims more than 2^32 - 1 postings");
  if (lists_ > UINT32_MAX || seeds_per_list_ > kMaxLinks) throw CorruptError(name_, "META", "claims too many lists or seeds per list");
  if (links_per_row_ == 0 || links_per_row_ > kMaxLinks) throw CorruptError(name_, "META", "claims no links per row, or too many");
  for (const auto& [_, bytes] : sections)
    if (bytes.size > 0 && mapping_ == kUnwatched) mapping_ = find_mapping(bytes.data);
  codes_ = take(sections, "GRAPH_ROWS", UINT64_MAX);
  if (codes_.size() == rows_ * signature_at_) row_bytes_ = signature_at_;
  if (codes_.size() != rows_ * row_bytes_) codes_.corrupt("has " + std::to_string(codes_.size()) + " bytes, not " + std::to_string(rows_ * row_bytes_));
  links_ = take(sections, "GRAPH_LINKS", 4 * rows_ * links_per_row_);
  numbers_ = take(sections, "GRAPH_NUMBERS", 4 * rows_);
  forward_ = take(sections, "GRAPH_POSTINGS", 4 * postings_);
  seeds_ = take(sections, "GRAPH_SEEDS", 4 * lists_ * seeds_per_list_);
  entries_ = take(sections, "GRAPH_ENTRIES", UINT64_MAX);
  if (entries_.size() % 4 != 0 || entries_.size() > 4 * rows_) entries_.corrupt("has a length that does not fit the rows");
}

// A section of this size, or of any size for UINT64_MAX.
Section Graph::take(const std::map<std::string, SectionBytes>& sections, const std::string& name, std::uint64_t size) const {
  const auto it = sections.find(name);
  if (it == sections.end()) throw CorruptError(name_, name, "is missing");
  const SectionBytes& bytes = it->second;
  Section section(name_, name, bytes.data, bytes.size, bytes.crcs, bytes.crc_count);
  if (size != UINT64_MAX && bytes.size != size) section.corrupt("has " + std::to_string(bytes.size) + " bytes, not " + std::to_string(size));
  return section;
}

void Graph::require_fit(const Segment& segment) const {
  const bool fits = rows_ == segment.documents() && dimension_ == segment.semantic_dimension() && postings_ == segment.postings() && lists_ == segment.lists();
  if (!fits) throw CorruptError(name_, "META", "its counts differ from the segment's");
}

std::span<const std::uint32_t> Graph::entries() const {
  const std::span<const std::uint32_t> rows = words(entries_, 0, entries_.size() / 4);
  for (const std::uint32_t row : rows)
    if (row >= rows_) entries_.corrupt("row " + std::to_string(row) + " does not exist");
  return rows;
}

// The rows up to kNoLink.
std::span<const std::uint32_t> Graph::listed(const Section& section, std::uint64_t index, std::uint64_t width) const {
  const std::span<const std::uint32_t> all = words(section, index * width, (index + 1) * width);
  std::size_t n = 0;
  for (; n < all.size() && all[n] != kNoLink; ++n)
    if (all[n] >= rows_) section.corrupt("row " + std::to_string(all[n]) + " does not exist");
  return all.first(n);
}

std::span<const std::uint32_t> Graph::links(std::uint32_t row) const { return listed(links_, row, links_per_row_); }

// Without branches, because which links lead to the bitmap's rows cannot be predicted.
std::size_t Graph::links_among(std::uint32_t row, const std::uint64_t* bitmap, std::uint32_t* out) const {
  const std::span<const std::uint32_t> all = words(links_, row * links_per_row_, (row + 1) * links_per_row_);
  const auto rows = static_cast<std::uint32_t>(rows_);
  std::size_t n = 0;
  bool is_forged = false;
  for (const std::uint32_t target : all) {
    const bool exists = target < rows;
    is_forged |= !exists && target != kNoLink;
    out[n] = target;
    n += exists & (bitmap[exists ? target >> 6 : 0] >> (target & 63));
  }
  if (is_forged) links_.corrupt("row " + std::to_string(row) + " links to a row that does not exist");
  return n;
}

std::span<const std::uint32_t> Graph::seeds(std::uint64_t list) const { return listed(seeds_, list, seeds_per_list_); }

std::uint32_t Graph::number(std::uint32_t row) const {
  const auto number = numbers_.at<std::uint32_t>(row);
  if (number >= rows_) numbers_.corrupt("number " + std::to_string(number) + " does not exist");
  return number;
}

std::uint32_t Graph::row_of(std::uint32_t number) const {
  RowTable& table = *row_table_;
  if (!table.is_made.load(std::memory_order_acquire)) {
    const std::lock_guard lock(table.mutex);
    if (!table.is_made.load(std::memory_order_relaxed)) {
      table.rows.assign(rows_, 0);
      for (std::uint32_t row = 0; row < rows_; ++row) table.rows[this->number(row)] = row;
      table.is_made.store(true, std::memory_order_release);
    }
  }
  return table.rows[number];
}

std::span<const std::uint32_t> Graph::postings(std::uint32_t row) const {
  const std::uint8_t* header = codes(row);
  const auto begin = load<std::uint32_t>(header, 1), end = load<std::uint32_t>(header, 2);
  if (begin > end || end > postings_) codes_.corrupt("the postings of row " + std::to_string(row) + " lie outside the section");
  return words(forward_, begin, end);
}

}  // namespace citadel
