// Best-first search of a proximity graph. Deterministic: ties go to the lower row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "citadel/cancel.hpp"

namespace citadel {

constexpr std::size_t kMaxLinks = 64;

// Rows that replace those that a filter leaves out among the links of a row, at least one for each; measured by benchmarks/graph.py.
constexpr std::size_t kReplacements = 16;

// A row of the graph and its score; a higher score is nearer.
struct Near {
  float score;
  std::uint32_t row;
  float token_score = 0.0f;  // of a search: the part of the score that is exact
};

inline constexpr auto nearer = [](const Near& a, const Near& b) { return a.score > b.score || (a.score == b.score && a.row < b.row); };
inline constexpr auto farther = [](const Near& a, const Near& b) { return nearer(b, a); };

// Rows that were scored already: a hash table, because a bitmap of the whole graph would miss the cache.
class VisitedRows {
 public:
  void clear() {
    std::fill(slots_.begin(), slots_.end(), 0u);
    count_ = 0;
  }

  // Whether the row is new.
  bool insert(std::uint32_t row) {
    if (2 * (count_ + 1) > slots_.size()) grow();
    if (!put(row + 1)) return false;
    ++count_;
    return true;
  }

 private:
  bool put(std::uint32_t entry) {
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t at = (entry * 2654435769u >> 7) & mask;; at = (at + 1) & mask) {
      if (slots_[at] == entry) return false;
      if (slots_[at] == 0) return slots_[at] = entry, true;
    }
  }

  void grow() {
    std::vector<std::uint32_t> old = std::move(slots_);
    slots_.assign(std::max<std::size_t>(4096, 2 * old.size()), 0u);
    for (const std::uint32_t entry : old)
      if (entry != 0) put(entry);
  }

  std::vector<std::uint32_t> slots_;
  std::size_t count_ = 0;
};

class GraphWalk {
 public:
  // The `width` nearest rows that `graph.admits`, in heap order in `best()`. `graph` gives the links of a row, checked
  // to be rows. It scores up to kMaxLinks rows in place and returns their number, without those that cannot reach `worst`.
  // Returns the number of rows scored.
  template <class Graph>
  std::uint64_t run(Graph& graph, std::span<const std::uint32_t> entries, std::size_t width, const Cancel* cancel) {
    return walk(graph, entries, width, cancel, [&](std::span<const std::uint32_t> rows) { visit(graph, rows, width); });
  }

  // The same, but only admitted rows are scored: a walk goes around the others by their links.
  template <class Graph>
  std::uint64_t run_admitted(Graph& graph, std::span<const std::uint32_t> entries, std::size_t width, const Cancel* cancel) {
    return walk(graph, entries, width, cancel, [&](std::span<const std::uint32_t> rows) { visit_admitted(graph, rows, width); });
  }

  std::vector<Near>& best() { return best_; }

 private:
  template <class Graph, class Visit>
  std::uint64_t walk(Graph& graph, std::span<const std::uint32_t> entries, std::size_t width, const Cancel* cancel, Visit visit) {
    visited_.clear(), frontier_.clear(), best_.clear();
    scored_ = 0;
    while (!entries.empty()) {
      const std::size_t n = std::min(entries.size(), kMaxLinks);
      visit(entries.first(n));
      entries = entries.subspan(n);
    }
    while (!frontier_.empty()) {
      poll(cancel);
      const Near next = frontier_.front();
      if (best_.size() >= width && nearer(best_.front(), next)) break;
      std::pop_heap(frontier_.begin(), frontier_.end(), farther);
      frontier_.pop_back();
      visit(graph.links(next.row));
    }
    return scored_;
  }

  template <class Graph>
  void visit(Graph& graph, std::span<const std::uint32_t> rows, std::size_t width) {
    Near fresh[kMaxLinks];
    std::size_t n = 0;
    for (const std::uint32_t row : rows)
      if (visited_.insert(row)) graph.prefetch(row), fresh[n++].row = row;
    score(graph, fresh, n, width);
  }

  // Rows that are not admitted are left out, and each of them is replaced by a few admitted ones that it links to.
  template <class Graph>
  void visit_admitted(Graph& graph, std::span<const std::uint32_t> rows, std::size_t width) {
    std::uint32_t left_out[kMaxLinks];
    Near fresh[kMaxLinks];
    std::size_t n = 0, num_left_out = 0;
    for (const std::uint32_t row : rows) {
      if (!visited_.insert(row)) continue;
      if (graph.admits(row)) graph.prefetch(row), fresh[n++].row = row;
      else graph.prefetch_links(row), left_out[num_left_out++] = row;
    }
    score(graph, fresh, n, width), n = 0;
    const std::size_t per_row = std::max<std::size_t>(1, kReplacements / std::max<std::size_t>(1, num_left_out));
    for (std::size_t i = 0; i < num_left_out; ++i) {
      n += replace(graph, left_out[i], std::min(per_row, kMaxLinks - n), fresh + n);
      if (n == kMaxLinks) score(graph, fresh, n, width), n = 0;
    }
    score(graph, fresh, n, width);
  }

  // Up to `limit` new rows that an omitted row links to.
  template <class Graph>
  std::size_t replace(Graph& graph, std::uint32_t row, std::size_t limit, Near* out) {
    std::uint32_t admitted[kMaxLinks];
    const std::size_t num_admitted = graph.admitted_links(row, admitted);
    std::size_t n = 0;
    for (std::size_t i = 0; i < num_admitted && n < limit; ++i)
      if (visited_.insert(admitted[i])) graph.prefetch(admitted[i]), out[n++] = {0.0f, admitted[i]};
    return n;
  }

  // Score new rows and keep those that can be among the nearest.
  template <class Graph>
  void score(Graph& graph, Near* rows, std::size_t n, std::size_t width) {
    scored_ += n;
    const bool is_full = best_.size() >= width;
    n = graph.score(rows, n, is_full ? best_.front().score : -std::numeric_limits<float>::infinity());
    for (std::size_t i = 0; i < n; ++i) offer(graph, rows[i], width);
  }

  template <class Graph>
  void offer(const Graph& graph, Near row, std::size_t width) {
    if (best_.size() >= width && !nearer(row, best_.front())) return;
    graph.prefetch_links(row.row);
    frontier_.push_back(row);
    std::push_heap(frontier_.begin(), frontier_.end(), farther);
    if (!graph.admits(row.row)) return;
    best_.push_back(row);
    std::push_heap(best_.begin(), best_.end(), nearer);
    if (best_.size() <= width) return;
    std::pop_heap(best_.begin(), best_.end(), nearer);
    best_.pop_back();
  }

  VisitedRows visited_;
  std::vector<Near> frontier_;  // heap, nearest first
  std::vector<Near> best_;      // heap, farthest first
  std::uint64_t scored_ = 0;
};

}  // namespace citadel
