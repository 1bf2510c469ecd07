#include "citadel/graph_builder.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "citadel/parallel.hpp"
#include "citadel/quantize.hpp"

namespace citadel {
namespace {

constexpr std::uint64_t kGrowth = 16, kMaxBatch = 8192;  // a batch is at most a sixteenth of the graph
constexpr std::uint64_t kRowsPerTask = 16;
constexpr std::uint64_t kEntries = 16;

// Call work(worker, item) for items 0 … n − 1.
template <class Work>
void for_each(std::uint64_t n, std::size_t threads, const Cancel* cancel, Work work) {
  parallel(divide_up(n, kRowsPerTask), threads, [&](std::size_t worker, std::size_t task) {
    poll(cancel);
    const std::uint64_t end = std::min(n, (task + 1) * kRowsPerTask);
    for (std::uint64_t item = task * kRowsPerTask; item < end; ++item) work(worker, item);
  });
}

}  // namespace

// Scores rows by their distance to the row that is being inserted: 2⟨p, x⟩ − |x|².
struct GraphBuilder::View {
  const GraphBuilder& builder;
  NibbleQuery query;

  std::span<const std::uint32_t> links(std::uint32_t row) const { return builder.links(row); }
  bool is_filtered() const { return false; }
  bool admits(std::uint32_t) const { return true; }
  void prefetch_links(std::uint32_t row) const {
    const std::uint32_t* own = builder.arrays_.links + row * kBuildLinks;
    for (std::size_t at = 0; at < kBuildLinks; at += 16) __builtin_prefetch(own + at);
  }
  void prefetch(std::uint32_t row) const {
    const std::uint8_t* bytes = builder.nibbles(row);
    for (std::size_t at = 0; at < builder.row_bytes_; at += 64) __builtin_prefetch(bytes + at);
  }
  void estimate(Near* rows, std::size_t n) const {
    const std::uint8_t* starts[kMaxLinks];
    float scores[kMaxLinks];
    for (std::size_t i = 0; i < n; ++i) starts[i] = builder.nibbles(rows[i].row);
    score_nibbles(builder.dots_, starts, n, builder.blocks_, query, scores);
    for (std::size_t i = 0; i < n; ++i) rows[i].score = 2.0f * scores[i] - builder.arrays_.norms[rows[i].row];
  }
  std::size_t complete(Near*, std::size_t n, float) const { return n; }
};

GraphBuilder::GraphBuilder(GraphArrays arrays, GraphRules rules)
    : arrays_(arrays), rules_(rules), blocks_(nibble_blocks(arrays.dimension)), row_bytes_(nibble_row_bytes(arrays.dimension)), dots_(nibble_dots()) {
  if (rules.links == 0 || rules.links > kBuildLinks || rules.width < rules.links)
    throw std::invalid_argument("a graph needs 1 to " + std::to_string(kBuildLinks) + " links per row, and a width of at least as many");
  if (arrays.rows >= kNoLink) throw std::invalid_argument("a graph holds at most 2^32 - 2 rows");
  std::fill(arrays.links, arrays.links + arrays.rows * kBuildLinks, kNoLink);
}

void GraphBuilder::put(const std::uint32_t* rows, const float* vectors, std::size_t n) {
  const std::size_t d = arrays_.dimension, width = kNibbleBlock * blocks_;
  NibbleVector own(d);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t row = rows[i];
    if (row >= arrays_.rows) throw std::invalid_argument("row " + std::to_string(row) + " does not exist");
    const float* x = vectors + i * d;
    own.set(x);
    const NibbleQuery coded = own.query();
    std::memcpy(arrays_.codes + row * width, coded.codes, width);
    arrays_.scales[row] = coded.scale, arrays_.sums[row] = coded.sum;
    double square = 0;
    for (std::size_t j = 0; j < d; ++j) square += static_cast<double>(x[j]) * x[j];
    arrays_.norms[row] = static_cast<float>(square);
    encode_nibbles(x, d, arrays_.nibbles + row * row_bytes_);
  }
}

std::span<const std::uint32_t> GraphBuilder::links(std::uint32_t row) const {
  const std::uint32_t* own = arrays_.links + row * kBuildLinks;
  return {own, static_cast<std::size_t>(std::find(own, own + kBuildLinks, kNoLink) - own)};
}

void GraphBuilder::set_links(std::uint32_t row, const std::vector<std::uint32_t>& targets) {
  std::uint32_t* own = arrays_.links + row * kBuildLinks;
  std::copy(targets.begin(), targets.end(), own);
  std::fill(own + targets.size(), own + kBuildLinks, kNoLink);
}

// The links of a finished graph and what becomes of its rows.
struct GraphBuilder::OldGraph {
  const std::uint32_t* all;
  const std::uint32_t* new_rows;
  std::uint64_t n;
  std::size_t per_row;

  std::span<const std::uint32_t> links(std::uint32_t row) const {
    const std::uint32_t* own = all + row * per_row;
    const std::span<const std::uint32_t> listed(own, static_cast<std::size_t>(std::find(own, own + per_row, kNoLink) - own));
    if (std::any_of(listed.begin(), listed.end(), [&](std::uint32_t target) { return target >= n; }))
      throw std::invalid_argument("row " + std::to_string(row) + " of the old graph links to a row that does not exist");
    return listed;
  }

  // The number of rows that are kept.
  std::uint64_t kept(std::uint64_t limit) const {
    std::vector<bool> is_used(std::min(n, limit));
    std::uint64_t count = 0;
    for (std::uint64_t i = 0; i < n; ++i) {
      if (new_rows[i] == kNoLink) continue;
      if (new_rows[i] >= is_used.size() || is_used[new_rows[i]]) throw std::invalid_argument("two rows of the old graph become one, or one does not exist");
      is_used[new_rows[i]] = true, ++count;
    }
    if (std::find(is_used.begin(), is_used.begin() + static_cast<std::ptrdiff_t>(count), false) != is_used.begin() + static_cast<std::ptrdiff_t>(count))
      throw std::invalid_argument("the kept rows of the old graph do not become the first rows");
    return count;
  }
};

void GraphBuilder::adopt(const std::uint32_t* links, const std::uint32_t* new_rows, std::uint64_t n, std::size_t per_row, std::size_t threads, const Cancel* cancel) {
  if (inserted_ != 0) throw std::logic_error("the graph has rows already");
  const OldGraph old{links, new_rows, n, per_row};
  const std::uint64_t kept = old.kept(arrays_.rows);
  scratch_.resize(std::max<std::size_t>(1, threads));
  for_each(n, threads, cancel, [&](std::size_t worker, std::uint64_t item) {
    adopt_row(static_cast<std::uint32_t>(item), old, scratch_[worker].candidates);
  });
  inserted_ = kept;
  relink_isolated_rows(cancel);
}

void GraphBuilder::adopt_row(std::uint32_t old_row, const OldGraph& old, std::vector<Near>& candidates) {
  const std::uint32_t row = old.new_rows[old_row];
  const std::span<const std::uint32_t> own = old.links(old_row);
  if (row == kNoLink) return;
  std::vector<std::uint32_t> targets;
  bool has_dropped = false;
  const auto add = [&](std::uint32_t target) {
    if (target != kNoLink && target != row && std::find(targets.begin(), targets.end(), target) == targets.end()) targets.push_back(target);
  };
  for (const std::uint32_t target : own) {
    add(old.new_rows[target]);
    if (old.new_rows[target] != kNoLink) continue;
    has_dropped = true;
    for (const std::uint32_t next : old.links(target)) add(old.new_rows[next]);
  }
  if (!has_dropped && targets.size() <= kBuildLinks) return set_links(row, targets);
  candidates.resize(targets.size());
  near_of(row, targets, candidates.data());
  prune(row, candidates, rules_.links);
}

// Insert rows anew whose links and their links were all dropped.
void GraphBuilder::relink_isolated_rows(const Cancel* cancel) {
  for (std::uint32_t row = 0; row < inserted_; ++row) {
    if (!links(row).empty()) continue;
    poll(cancel);
    link_row(row, scratch_[0], cancel);
    for (const Link& link : reverse_links(row, row + 1)) add_reverse_links(link.row, {&link, 1}, scratch_[0]);
  }
}

std::vector<std::uint32_t> GraphBuilder::entries() const {
  std::vector<std::uint32_t> rows(std::min(kEntries, arrays_.rows));
  for (std::uint32_t i = 0; i < rows.size(); ++i) rows[i] = i;
  return rows;
}

void GraphBuilder::insert_batch(std::size_t threads, const Cancel* cancel) {
  if (inserted_ >= arrays_.rows) return;
  const std::uint64_t first = inserted_;
  const std::uint64_t last = std::min(arrays_.rows, first + std::clamp<std::uint64_t>(first / kGrowth, 1, kMaxBatch));
  scratch_.resize(std::max<std::size_t>(1, threads));
  for_each(last - first, threads, cancel, [&](std::size_t worker, std::uint64_t item) {
    link_row(static_cast<std::uint32_t>(first + item), scratch_[worker], cancel);
  });
  const std::vector<Link> added = reverse_links(first, last);
  std::vector<std::size_t> starts;
  for (std::size_t i = 0; i < added.size(); ++i)
    if (i == 0 || added[i].row != added[i - 1].row) starts.push_back(i);
  starts.push_back(added.size());
  // Not cancelled in between: a part of the reverse links would make the graph depend on when that happened.
  for_each(starts.size() - 1, threads, nullptr, [&](std::size_t worker, std::uint64_t item) {
    const std::span<const Link> own{added.data() + starts[item], added.data() + starts[item + 1]};
    add_reverse_links(own[0].row, own, scratch_[worker]);
  });
  inserted_ = last;
}

void GraphBuilder::link_row(std::uint32_t row, Scratch& scratch, const Cancel* cancel) {
  if (inserted_ == 0) return;
  View view{*this, query(row)};
  std::vector<std::uint32_t> entries = this->entries();
  entries.resize(std::min<std::size_t>(entries.size(), inserted_));
  scratch.walk.run(view, entries, rules_.width, cancel);
  scratch.candidates = scratch.walk.best();
  prune(row, scratch.candidates, rules_.links);
}

// The links of rows first … last − 1, turned around, by row and then by target.
std::vector<GraphBuilder::Link> GraphBuilder::reverse_links(std::uint64_t first, std::uint64_t last) const {
  std::vector<Link> added;
  for (std::uint64_t row = first; row < last; ++row)
    for (const std::uint32_t target : links(static_cast<std::uint32_t>(row))) added.push_back({target, static_cast<std::uint32_t>(row)});
  std::sort(added.begin(), added.end(), [](const Link& a, const Link& b) { return a.row != b.row ? a.row < b.row : a.target < b.target; });
  return added;
}

void GraphBuilder::add_reverse_links(std::uint32_t row, std::span<const Link> added, Scratch& scratch) {
  const std::span<const std::uint32_t> own = links(row);
  std::vector<std::uint32_t> targets(own.begin(), own.end());
  for (const Link& link : added) targets.push_back(link.target);
  if (targets.size() <= kBuildLinks) return set_links(row, targets);
  scratch.candidates.resize(targets.size());
  near_of(row, targets, scratch.candidates.data());
  prune(row, scratch.candidates, rules_.links);
}

// Other rows with their scores as seen from `row`, as View gives them.
void GraphBuilder::near_of(std::uint32_t row, std::span<const std::uint32_t> others, Near* out) const {
  const View view{*this, query(row)};
  for (std::size_t i = 0; i < others.size(); ++i) out[i].row = others[i];
  for (std::size_t start = 0; start < others.size(); start += kMaxLinks) view.estimate(out + start, std::min(kMaxLinks, others.size() - start));
}

// Link a row to its nearest candidates, leaving out those that a nearer linked row leads to.
void GraphBuilder::prune(std::uint32_t row, std::vector<Near>& candidates, std::size_t limit) {
  std::sort(candidates.begin(), candidates.end(), nearer);
  std::vector<std::uint32_t> selected;
  std::vector<bool> is_occluded(candidates.size());
  const float own = arrays_.norms[row];
  for (std::size_t i = 0; i < candidates.size() && selected.size() < limit; ++i) {
    const std::uint32_t chosen = candidates[i].row;
    if (is_occluded[i] || chosen == row) continue;
    selected.push_back(chosen);
    const View view{*this, query(chosen)};
    Near rest[kMaxLinks];
    std::size_t positions[kMaxLinks], n = 0;
    const auto test = [&] {
      view.estimate(rest, n);
      for (std::size_t j = 0; j < n; ++j) {
        const float to_chosen = arrays_.norms[chosen] - rest[j].score, to_row = own - candidates[positions[j]].score;
        if (to_chosen * rules_.reach < to_row || rest[j].row == chosen) is_occluded[positions[j]] = true;
      }
      n = 0;
    };
    for (std::size_t j = i + 1; j < candidates.size(); ++j) {
      if (is_occluded[j]) continue;
      rest[n].row = candidates[j].row, positions[n++] = j;
      if (n == kMaxLinks) test();
    }
    test();
  }
  set_links(row, selected);
}

void GraphBuilder::finish(std::size_t threads, const Cancel* cancel) {
  if (inserted_ < arrays_.rows) throw std::logic_error("the graph has rows that were not inserted");
  scratch_.resize(std::max<std::size_t>(1, threads));
  for_each(arrays_.rows, threads, cancel, [&](std::size_t worker, std::uint64_t item) {
    const auto row = static_cast<std::uint32_t>(item);
    const std::span<const std::uint32_t> own = links(row);
    if (own.size() <= rules_.links) return;
    std::vector<Near>& candidates = scratch_[worker].candidates;
    candidates.resize(own.size());
    near_of(row, own, candidates.data());
    prune(row, candidates, rules_.links);
  });
  connect(threads, cancel);
}

std::vector<bool> GraphBuilder::reached() const {
  std::vector<bool> is_reached(arrays_.rows);
  for (const std::uint32_t row : breadth_first()) is_reached[row] = true;
  return is_reached;
}

// Link to rows that no path leads to, from a row that they link to.
void GraphBuilder::connect(std::size_t, const Cancel* cancel) {
  constexpr int kRounds = 8;
  for (int round = 0; round < kRounds; ++round) {
    poll(cancel);
    const std::vector<bool> is_reached = reached();
    bool attached = false;
    for (std::uint32_t row = 0; row < arrays_.rows; ++row)
      if (!is_reached[row]) attached |= attach(row, is_reached);
    if (!attached) return;
  }
}

bool GraphBuilder::attach(std::uint32_t row, const std::vector<bool>& is_reached) {
  for (const std::uint32_t target : links(row)) {
    if (!is_reached[target]) continue;
    std::vector<std::uint32_t> own(links(target).begin(), links(target).end());
    if (own.size() >= rules_.links) continue;
    own.push_back(row);
    set_links(target, own);
    return true;
  }
  return false;
}

std::vector<std::uint32_t> GraphBuilder::layout() const {
  std::vector<std::uint32_t> order = breadth_first();
  const std::vector<bool> is_reached = reached();
  for (std::uint32_t row = 0; row < arrays_.rows; ++row)
    if (!is_reached[row]) order.push_back(row);
  return order;
}

std::vector<std::uint32_t> GraphBuilder::breadth_first() const {
  std::vector<std::uint32_t> order = entries();
  order.reserve(arrays_.rows);
  std::vector<bool> is_listed(arrays_.rows);
  for (const std::uint32_t row : order) is_listed[row] = true;
  for (std::size_t at = 0; at < order.size(); ++at)
    for (const std::uint32_t target : links(order[at]))
      if (!is_listed[target]) is_listed[target] = true, order.push_back(target);
  return order;
}

}  // namespace citadel
