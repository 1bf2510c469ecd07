// The graph file of a segment: a proximity graph over its semantic vectors, and each row's postings.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "citadel/graph_starts.hpp"
#include "citadel/nibbles.hpp"
#include "citadel/segment.hpp"

namespace citadel {

// The lists of a row's postings as a Bloom filter with one hash function. It rules out most lists without a posting of the
// row before the row's postings are read. It follows the codes, and the row is filled to whole cache lines.
constexpr std::size_t kSignatureWords = 6;
constexpr std::size_t kSignatureBits = 64 * kSignatureWords;

constexpr std::uint32_t signature_bit(std::uint32_t list) {
  return static_cast<std::uint32_t>(std::uint64_t{list * 2654435769u} * kSignatureBits >> 32);
}

constexpr std::size_t graph_row_bytes(std::size_t d) { return (nibble_row_bytes(d) + 8 * kSignatureWords + 63) / 64 * 64; }

struct GraphShape {
  std::string name;
  std::uint64_t rows = 0;
  std::uint64_t dimension = 0;  // of the semantic vectors
  std::uint64_t postings = 0;
  std::uint64_t links = 0;      // per row
  std::uint64_t lists = 0;
  std::uint64_t seeds = 0;      // per list
};

// Section sizes are checked on construction, contents on every use, so that forged contents cannot lead outside.
class Graph {
 public:
  // The sections' bytes must outlive the graph.
  Graph(GraphShape shape, const std::map<std::string, SectionBytes>& sections);

  std::uint64_t rows() const { return rows_; }
  std::uint64_t dimension() const { return dimension_; }
  std::uint64_t postings() const { return postings_; }
  std::size_t blocks() const { return blocks_; }
  std::uint64_t seeds_per_list() const { return seeds_per_list_; }

  // Files from before there were signatures have none.
  bool has_signatures() const { return row_bytes_ != signature_at_; }

  // Rows to start from.
  std::span<const std::uint32_t> entries() const;

  // Rows to start from for a query that reads a list; throws CorruptError if one does not exist.
  std::span<const std::uint32_t> seeds(std::uint64_t list) const;

  // What searches keep of the lists that they have read.
  HeavyLists& heavy_lists() const { return *heavy_lists_; }

  // The links of a row; throws CorruptError if one leads outside.
  std::span<const std::uint32_t> links(std::uint32_t row) const;

  // The links of a row that lead to rows of a bitmap; out has room for kMaxLinks.
  std::size_t links_among(std::uint32_t row, const std::uint64_t* bitmap, std::uint32_t* out) const;

  // Where the codes of a row begin.
  const std::uint8_t* codes(std::uint32_t row) const {
    const std::uint64_t at = row * row_bytes_;
    codes_.verify(at, at + row_bytes_);
    return codes_.data() + at;
  }

  // The signature of a row, kSignatureWords · 8 bytes; `codes(row)` has checked the row.
  const std::uint8_t* signature(std::uint32_t row) const { return codes_.data() + row * row_bytes_ + signature_at_; }

  // The number of a row in the segment.
  std::uint32_t number(std::uint32_t row) const;

  // The row of a number, from a table that is made at the first call: 4 bytes per row. 0 for a number that no row of a
  // forged file has.
  std::uint32_t row_of(std::uint32_t number) const;

  // The postings of a row, ascending in a file that was not forged.
  std::span<const std::uint32_t> postings(std::uint32_t row) const;

  void prefetch(std::uint32_t row) const {
    const std::uint8_t* bytes = codes_.data() + row * row_bytes_;
    for (std::uint64_t at = 0; at < row_bytes_; at += 64) __builtin_prefetch(bytes + at);
  }

  void prefetch_links(std::uint32_t row) const {
    const std::uint8_t* bytes = links_.data() + 4 * row * links_per_row_;
    for (std::uint64_t at = 0; at < 4 * links_per_row_; at += 64) __builtin_prefetch(bytes + at);
  }

  void prefetch_postings(std::uint32_t row) const {
    constexpr std::uint32_t kMaxPrefetched = 128;
    const std::uint8_t* header = codes_.data() + row * row_bytes_;
    const auto begin = load<std::uint32_t>(header, 1), end = load<std::uint32_t>(header, 2);
    for (std::uint64_t at = begin; at < std::min<std::uint64_t>(end, std::uint64_t{begin} + kMaxPrefetched); at += 16)
      __builtin_prefetch(forward_.data() + 4 * at);
  }

  // Throws CorruptError if the graph is of another segment.
  void require_fit(const Segment& segment) const;

  void require_whole(std::int64_t now) const { citadel::require_whole(mapping_, name_, now); }

 private:
  std::span<const std::uint32_t> listed(const Section& section, std::uint64_t index, std::uint64_t width) const;
  Section take(const std::map<std::string, SectionBytes>& sections, const std::string& name, std::uint64_t size) const;

  std::string name_;
  std::uint64_t rows_, dimension_, postings_, links_per_row_, lists_, seeds_per_list_;
  std::size_t blocks_, row_bytes_, signature_at_;
  std::size_t mapping_ = kUnwatched;
  struct RowTable;
  std::shared_ptr<RowTable> row_table_;
  std::shared_ptr<HeavyLists> heavy_lists_ = std::make_shared<HeavyLists>();
  Section codes_, links_, entries_, numbers_, forward_, seeds_;
};

}  // namespace citadel
