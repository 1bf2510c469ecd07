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

// Rows that are followed at a time, so that one wait for memory serves the links of all.
constexpr std::size_t kFollowed = 2;

// Of the rows to start from, the nearest so many are completed first.
constexpr std::size_t kOrderedStarts = 2 * kMaxLinks;

// Rows that replace those that a filter leaves out among the links of a followed row, and how many of them each of those
// gives at least: reading the links of few rows takes less time than taking one row from each.
constexpr std::size_t kReplacements = 12;
constexpr std::size_t kPerLeftOut = 4;

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
  // to be rows; it estimates the scores of up to kMaxLinks rows in place, and completes them, leaving out those that
  // cannot reach `worst`, and returns how many are left. Returns the number of rows scored.
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
    start(graph, entries, width);
    visit(next_);
    while (take_next(graph, width)) {
      poll(cancel);
      visit(next_);
    }
    return scored_;
  }

  // Put the links of the best rows that were not followed yet into `next_`; false if they cannot be among the nearest.
  template <class Graph>
  bool take_next(const Graph& graph, std::size_t width) {
    next_.clear();
    std::size_t followed = 0;
    for (; followed < kFollowed && !frontier_.empty(); ++followed) {
      const std::uint32_t row = frontier_.front().row;
      if (best_.size() >= width && nearer(best_.front(), frontier_.front())) break;
      std::pop_heap(frontier_.begin(), frontier_.end(), farther);
      frontier_.pop_back();
      const std::span<const std::uint32_t> links = graph.links(row);
      next_.insert(next_.end(), links.begin(), links.end());
    }
    return followed > 0;
  }

  // Score the rows to start from, those with the best estimates first, so that most others need not be completed. A
  // filtered walk goes around the ones that are not admitted as it goes around others.
  template <class Graph>
  void start(Graph& graph, std::span<const std::uint32_t> entries, std::size_t width) {
    starts_.clear(), next_.clear();
    for (const std::uint32_t row : entries) {
      if (graph.is_filtered() && !graph.admits(row)) next_.push_back(row);
      else if (visited_.insert(row)) graph.prefetch(row), starts_.push_back({0.0f, row});
    }
    in_parts(starts_, [&](Near* rows, std::size_t n) { graph.estimate(rows, n); });
    if (starts_.size() > kOrderedStarts) std::partial_sort(starts_.begin(), starts_.begin() + kOrderedStarts, starts_.end(), nearer);
    scored_ += starts_.size();
    in_parts(starts_, [&](Near* rows, std::size_t n) { complete(graph, rows, n, width); });
  }

  template <class Work>
  static void in_parts(std::vector<Near>& rows, Work work) {
    for (std::size_t at = 0; at < rows.size(); at += kMaxLinks) work(rows.data() + at, std::min(kMaxLinks, rows.size() - at));
  }

  template <class Graph>
  void visit(Graph& graph, std::span<const std::uint32_t> rows, std::size_t width) {
    fresh_.clear();
    for (const std::uint32_t row : rows)
      if (visited_.insert(row)) graph.prefetch(row), fresh_.push_back({0.0f, row});
    score(graph, width);
  }

  // Rows that are not admitted are left out and replaced by admitted ones that they link to.
  template <class Graph>
  void visit_admitted(Graph& graph, std::span<const std::uint32_t> rows, std::size_t width) {
    fresh_.clear(), left_out_.clear();
    for (const std::uint32_t row : rows) {
      if (!visited_.insert(row)) continue;
      if (graph.admits(row)) graph.prefetch(row), fresh_.push_back({0.0f, row});
      else graph.prefetch_links(row), left_out_.push_back(row);
    }
    score(graph, width);
    constexpr std::size_t kWanted = kFollowed * kReplacements;
    const std::size_t per_row = std::max(kPerLeftOut, kWanted / std::max<std::size_t>(1, left_out_.size()));
    for (std::size_t i = 0; i < left_out_.size() && fresh_.size() < kWanted; ++i) replace(graph, left_out_[i], per_row);
    score(graph, width);
  }

  // Add up to `limit` new rows that an omitted row links to.
  template <class Graph>
  void replace(Graph& graph, std::uint32_t row, std::size_t limit) {
    std::uint32_t admitted[kMaxLinks];
    const std::size_t num_admitted = graph.admitted_links(row, admitted);
    std::size_t n = 0;
    for (std::size_t i = 0; i < num_admitted && n < limit; ++i)
      if (visited_.insert(admitted[i])) graph.prefetch(admitted[i]), fresh_.push_back({0.0f, admitted[i]}), ++n;
  }

  // Score the new rows and keep those that can be among the nearest.
  template <class Graph>
  void score(Graph& graph, std::size_t width) {
    scored_ += fresh_.size();
    in_parts(fresh_, [&](Near* rows, std::size_t n) { graph.estimate(rows, n); });
    complete(graph, fresh_.data(), fresh_.size(), width);
    fresh_.clear();
  }

  template <class Graph>
  void complete(Graph& graph, Near* rows, std::size_t n, std::size_t width) {
    const bool is_full = best_.size() >= width;
    n = graph.complete(rows, n, is_full ? best_.front().score : -std::numeric_limits<float>::infinity());
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
  std::vector<Near> starts_, fresh_;     // rows to start from, new rows
  std::vector<std::uint32_t> next_;      // rows that followed rows link to
  std::vector<std::uint32_t> left_out_;  // rows to start from that are not admitted
  std::vector<Near> frontier_;  // heap, nearest first
  std::vector<Near> best_;      // heap, farthest first
  std::uint64_t scored_ = 0;
};

}  // namespace citadel
