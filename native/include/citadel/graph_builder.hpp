// Builds a proximity graph over centred vectors by inserting rows in batches. The rows of a batch search the graph of the
// batches before, so that the result depends on the order of the rows and not on the number of threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "citadel/cancel.hpp"
#include "citadel/graph_walk.hpp"
#include "citadel/nibbles.hpp"

namespace citadel {

constexpr std::size_t kBuildLinks = 48;  // a row's links while building; pruned when they would exceed this
constexpr std::uint32_t kNoLink = UINT32_MAX;

// The arrays of a graph that is being built, owned by the caller; they may be mapped files.
struct GraphArrays {
  std::uint64_t rows = 0;
  std::size_t dimension = 0;
  std::uint8_t* nibbles = nullptr;   // [rows, nibble_row_bytes(dimension)]
  std::int8_t* codes = nullptr;      // [rows, 128 · blocks], the vectors as int8
  float* scales = nullptr;           // [rows], of the int8 codes
  std::int32_t* sums = nullptr;      // [rows], of the int8 codes
  float* norms = nullptr;            // [rows], squared lengths
  std::uint32_t* links = nullptr;    // [rows, kBuildLinks], kNoLink after the last
};

struct GraphRules {
  std::size_t links = 32;   // of a row in the finished graph
  std::size_t width = 64;   // rows that an insertion searches for
  float reach = 1.2f;       // a link is dropped if another linked row is nearer to its end by this factor, squared
};

class GraphBuilder {
 public:
  GraphBuilder(GraphArrays arrays, GraphRules rules);

  // Store the centred vectors of some rows. Throws std::invalid_argument if a row does not exist.
  void put(const std::uint32_t* rows, const float* vectors, std::size_t n);

  // Begin with the links of a finished graph instead of an empty one, before any batch. `links` is [n, per_row] in the
  // old graph's rows, kNoLink after the last; new_rows[i] is the row that old row i becomes, kNoLink if it is dropped.
  // A row that linked to a dropped one chooses anew among its links and those of the dropped one. Throws
  // std::invalid_argument unless the kept rows become 0 … kept − 1, each once, and links lead to old rows.
  void adopt(const std::uint32_t* links, const std::uint32_t* new_rows, std::uint64_t n, std::size_t per_row, std::size_t threads, const Cancel* cancel);

  std::uint64_t inserted() const { return inserted_; }

  // Insert the next batch of rows. After CancelledError the graph holds the batches before.
  void insert_batch(std::size_t threads, const Cancel* cancel);

  // Prune the links of all rows to the number in the finished graph and make every row reachable.
  void finish(std::size_t threads, const Cancel* cancel);

  std::vector<std::uint32_t> entries() const;

  // All rows, in the order in which a breadth-first search from the entries meets them; unreachable ones last.
  std::vector<std::uint32_t> layout() const;

  // What GraphWalk needs.
  struct View;

 private:
  struct Link {
    std::uint32_t row, target;
  };
  struct Scratch {
    GraphWalk walk;
    std::vector<Near> candidates;
  };

  struct OldGraph;
  void adopt_row(std::uint32_t old_row, const OldGraph& old, std::vector<Near>& candidates);
  void relink_isolated_rows(const Cancel* cancel);
  void link_row(std::uint32_t row, Scratch& scratch, const Cancel* cancel);
  void add_reverse_links(std::uint32_t row, std::span<const Link> added, Scratch& scratch);
  void prune(std::uint32_t row, std::vector<Near>& candidates, std::size_t limit);
  void near_of(std::uint32_t row, std::span<const std::uint32_t> others, Near* out) const;
  std::vector<Link> reverse_links(std::uint64_t first, std::uint64_t last) const;
  std::vector<std::uint32_t> breadth_first() const;
  std::vector<bool> reached() const;
  void connect(std::size_t threads, const Cancel* cancel);
  bool attach(std::uint32_t row, const std::vector<bool>& is_reached);

  std::span<const std::uint32_t> links(std::uint32_t row) const;
  void set_links(std::uint32_t row, const std::vector<std::uint32_t>& targets);
  NibbleQuery query(std::uint32_t row) const {
    return {arrays_.codes + row * kNibbleBlock * blocks_, arrays_.sums[row], arrays_.scales[row]};
  }
  const std::uint8_t* nibbles(std::uint32_t row) const { return arrays_.nibbles + row * row_bytes_; }

  GraphArrays arrays_;
  GraphRules rules_;
  std::size_t blocks_, row_bytes_;
  NibbleDots dots_;
  std::uint64_t inserted_ = 0;
  std::vector<Scratch> scratch_;
};

}  // namespace citadel
