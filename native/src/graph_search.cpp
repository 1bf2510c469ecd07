#include "citadel/graph_search.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "citadel/cursor.hpp"
#include "citadel/graph_walk.hpp"
#include "citadel/half.hpp"
#include "citadel/match_postings.hpp"
#include "citadel/semantic.hpp"

namespace citadel {
namespace {

// A row is left out if this share of the best token score so far would not lift it above the worst result.
constexpr float kTokenShare = 0.35f;
constexpr std::uint64_t kMinWidth = 16;

// Filters, measured by benchmarks/graph.py.
constexpr double kWaypointShare = 0.9;   // if more is allowed, a walk leads through the documents that are not
constexpr double kMinShare = 1.0 / 32;   // if less is allowed, the allowed documents are scanned
constexpr double kFilteredWidth = 0.7;   // times width / share^¼ rows are kept, at least the width
constexpr double kFilteredSeeds = 0.7;   // times seeds / share^½ are taken from each list, at least the seeds
constexpr std::size_t kMaxSeeds = 256;

// Nanoseconds, measured by benchmarks/graph.py on an AMD EPYC (Zen 4) with semantic vectors of 384 dimensions.
constexpr double kPerRow = 2200;       // of the result, of a walk and its token scores
constexpr double kPerFilteredRow = 2900;
constexpr double kPerDocument = 1;     // of a scan, and for every 96 dimensions
constexpr double kPerSelected = 24;    // document of a scan of few allowed documents

// The exact score of one stored posting.
float posting_score(const GraphTask& task, const Group& group, std::uint64_t posting, std::size_t token) {
  const Segment& segment = *task.plan.segment;
  const Kernels& run = task.query.kernels;
  float out;
  if (segment.kind() == Kind::sparse) {
    run.sparse(segment.values.data() + 2 * posting, 1, task.query.query.weights[token], &out);
    return out;
  }
  const std::uint8_t* codes = segment.codes.data() + posting * segment.code_bytes();
  if (segment.codec() == Codec::int8) {
    run.int8(codes, segment.scales.data() + 2 * posting, 1, segment.dimension(), task.query.tokens.int8(token), &out);
  } else if (segment.codec() == Codec::fp16) {
    run.fp16(codes, 1, segment.dimension(), task.query.tokens.floats(token), &out);
  } else {
    const Codebook* book = segment.codebook().get();
    run.pq(codes, 1, book->subvectors(), task.query.table(book, token), group.scale, &out);
  }
  return out;
}

// Adds the values of a group's tokens for a row with these postings in the group's list.
float add_group(const GraphTask& task, const Group& group, std::span<const std::uint32_t> postings, float sum, std::uint64_t& dots) {
  for (std::size_t token = group.first_token; token < group.first_token + group.tokens; ++token) {
    float value = -std::numeric_limits<float>::infinity();
    bool is_matched = false;
    for (const std::uint32_t posting : postings) {
      const Section& weights = task.plan.segment->weights;
      if (task.rules.weight_floor > 0 && weights.present() && weights.data()[posting] <= task.rules.weight_floor) continue;
      const float score = posting_score(task, group, posting, token);
      value = score > value ? score : value;
      is_matched = true;
      ++dots;
    }
    if (!is_matched) continue;
    sum += task.rules.floor && !(value > 0.0f) ? 0.0f : value + 0.0f;
  }
  return sum;
}

std::uint64_t admitted(const SegmentPlan& plan) { return plan.allowed != nullptr ? plan.allowed->count() : plan.segment->live(); }

double admitted_share(const SegmentPlan& plan) {
  return static_cast<double>(admitted(plan)) / static_cast<double>(std::max<std::uint64_t>(1, plan.segment->documents()));
}

// The rows of the allowed documents, kept with the filter.
const std::uint64_t* admitted_rows(const GraphTask& task) {
  return task.plan.allowed->graph().rows(task.graph.rows(), [&](std::uint32_t row) { return task.plan.allowed->contains(task.graph.number(row)); });
}

// The rows of a graph as the query sees them: the semantic part estimated from 4-bit codes, the token part exact.
class QueryView {
 public:
  explicit QueryView(const GraphTask& task)
      : task_(task), graph_(task.graph), vector_(task.query.query.semantic.data(), task.graph.dimension()), query_(vector_.query()), dots_(nibble_dots()) {
    for (const Group& group : task.plan.groups)
      ranges_.push_back({static_cast<std::uint32_t>(group.list.first), static_cast<std::uint32_t>(group.list.last - group.list.first)});
  }

  // Whether a filter leaves out so many documents that a walk goes around them.
  bool is_filtered() const { return is_filtered_; }

  std::span<const std::uint32_t> links(std::uint32_t row) const { return graph_.links(row); }
  bool admits(std::uint32_t row) const {
    if (admits_all_) return true;
    if (rows_ != nullptr) return (rows_[row >> 6] >> (row & 63) & 1) != 0;
    return task_.plan.admits(graph_.number(row));
  }
  std::size_t admitted_links(std::uint32_t row, std::uint32_t* out) const { return graph_.links_among(row, rows_, out); }
  void prefetch_links(std::uint32_t row) const { graph_.prefetch_links(row); }
  void prefetch(std::uint32_t row) const { graph_.prefetch(row); }

  std::size_t score(Near* rows, std::size_t n, float worst) {
    const std::uint8_t* starts[kMaxLinks];
    float scores[kMaxLinks];
    for (std::size_t i = 0; i < n; ++i) starts[i] = graph_.codes(rows[i].row);
    score_nibbles(dots_, starts, n, graph_.blocks(), query_, scores);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < n; ++i)
      if (!(scores[i] + kTokenShare * best_token_score_ < worst)) rows[kept++] = {scores[i], rows[i].row};
    if (!ranges_.empty()) add_token_scores(rows, kept);
    return kept;
  }

  // Put the rows whose semantic part is largest first, so that the token parts of most others need not be computed.
  void order(std::vector<std::uint32_t>& rows) {
    constexpr std::size_t kOrdered = 2 * kMaxLinks;
    if (rows.size() <= kOrdered) return;
    std::sort(rows.begin(), rows.end());
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
    for (const std::uint32_t row : rows) graph_.prefetch(row);
    estimates_.resize(rows.size());
    for (std::size_t start = 0; start < rows.size(); start += kMaxLinks) estimate({rows.data() + start, std::min(kMaxLinks, rows.size() - start)}, estimates_.data() + start);
    const std::size_t ordered = std::min(kOrdered, rows.size());
    std::partial_sort(estimates_.begin(), estimates_.begin() + static_cast<std::ptrdiff_t>(ordered), estimates_.end(), nearer);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = estimates_[i].row;
  }

  std::uint64_t dots() const { return scored_; }  // postings

 private:
  // Postings of one row in one group's list: matches_[begin] … matches_[end − 1].
  struct Run {
    std::uint32_t row, group;
    std::size_t begin, end;
  };

  // The semantic parts of up to kMaxLinks rows.
  void estimate(std::span<const std::uint32_t> rows, Near* out) const {
    const std::uint8_t* starts[kMaxLinks];
    float scores[kMaxLinks];
    for (std::size_t i = 0; i < rows.size(); ++i) starts[i] = graph_.codes(rows[i]);
    score_nibbles(dots_, starts, rows.size(), graph_.blocks(), query_, scores);
    for (std::size_t i = 0; i < rows.size(); ++i) out[i] = {scores[i], rows[i]};
  }

  // In three passes, each of which waits for the memory that the one before has prefetched.
  void add_token_scores(Near* rows, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) graph_.prefetch_postings(rows[i].row);
    runs_.clear(), matches_.clear();
    for (std::size_t i = 0; i < n; ++i) find_runs(rows[i].row, static_cast<std::uint32_t>(i));
    for (const Run& run : runs_) {
      const Group& group = task_.plan.groups[run.group];
      rows[run.row].token_score = add_group(task_, group, {matches_.data() + run.begin, matches_.data() + run.end}, rows[run.row].token_score, scored_);
    }
    for (std::size_t i = 0; i < n; ++i) {
      rows[i].score += rows[i].token_score;
      best_token_score_ = std::max(best_token_score_, rows[i].token_score);
    }
  }

  void find_runs(std::uint32_t row, std::uint32_t position) {
    const std::span<const std::uint32_t> all = graph_.postings(row);
    for (std::uint32_t group = 0; group < ranges_.size(); ++group) {
      const std::size_t begin = matches_.size();
      for (std::size_t start = 0; start < all.size(); start += 64) {
        const std::size_t n = std::min<std::size_t>(64, all.size() - start);
        for (std::uint64_t bits = match_(all.data() + start, n, ranges_[group]); bits != 0; bits &= bits - 1)
          add_match(all[start + static_cast<std::size_t>(std::countr_zero(bits))]);
      }
      if (matches_.size() > begin) runs_.push_back({position, group, begin, matches_.size()});
    }
  }

  void add_match(std::uint32_t posting) {
    const Segment& segment = *task_.plan.segment;
    matches_.push_back(posting);
    if (segment.kind() == Kind::sparse) return __builtin_prefetch(segment.values.data() + 2 * std::uint64_t{posting});
    const std::uint8_t* codes = segment.codes.data() + posting * segment.code_bytes();
    for (std::uint64_t at = 0; at < segment.code_bytes(); at += 64) __builtin_prefetch(codes + at);
    if (segment.scales.present()) __builtin_prefetch(segment.scales.data() + 2 * std::uint64_t{posting});
  }

  const GraphTask& task_;
  const Graph& graph_;
  NibbleVector vector_;
  NibbleQuery query_;
  NibbleDots dots_;
  MatchPostings match_ = match_postings();
  std::vector<PostingRange> ranges_;  // of the plan's groups
  std::vector<Near> estimates_;
  std::vector<Run> runs_;
  std::vector<std::uint32_t> matches_;
  bool is_filtered_ = task_.plan.allowed != nullptr && admitted_share(task_.plan) < kWaypointShare;
  const std::uint64_t* rows_ = is_filtered_ ? admitted_rows(task_) : nullptr;
  bool admits_all_ = task_.plan.allowed == nullptr && task_.plan.segment->live() == task_.plan.segment->documents();
  float best_token_score_ = 0.0f;
  std::uint64_t scored_ = 0;
};

// How much a posting can add to a score, as far as the segment says without its vector.
float posting_weight(const Segment& segment, std::uint64_t posting) {
  if (segment.weights.present()) return segment.weights.at<std::uint8_t>(posting);
  for (const Section* section : {&segment.values, &segment.scales})
    if (section->present()) {
      const float weight = half_to_float(section->at<std::uint16_t>(posting));
      return weight == weight ? weight : 0.0f;  // NaN would break the order
    }
  return 0.0f;
}

// The rows with the heaviest of a list's postings in allowed documents; ties go to the lower document.
std::vector<std::uint32_t> heaviest_rows(const GraphTask& task, const Group& group) {
  const auto list = Cursor(*task.plan.segment, group, task.query, task.rules, task.cancel, task.plan.allowed).select_list();
  std::vector<Scored> heaviest;
  for (std::size_t i = 0; i < list->documents.size(); ++i)
    heaviest.push_back({posting_weight(*task.plan.segment, group.list.first + list->postings[i]), list->documents[i]});
  const double wanted = std::max(1.0, kFilteredSeeds / std::sqrt(admitted_share(task.plan))) * static_cast<double>(task.graph.seeds_per_list());
  const std::size_t n = std::min({heaviest.size(), static_cast<std::size_t>(wanted), kMaxSeeds});
  std::partial_sort(heaviest.begin(), heaviest.begin() + static_cast<std::ptrdiff_t>(n), heaviest.end(), better);
  std::vector<std::uint32_t> rows;
  for (std::size_t i = 0; i < n; ++i) rows.push_back(task.graph.row_of(static_cast<std::uint32_t>(heaviest[i].number)));
  return rows;
}

std::span<const std::uint32_t> allowed_seeds(const GraphTask& task, const Group& group) {
  return task.plan.allowed->graph().seeds(group.number, [&] { return heaviest_rows(task, group); });
}

// The graph's own entries, and the rows with the heaviest postings of the query's lists.
std::vector<std::uint32_t> entry_rows(const GraphTask& task, const QueryView& view) {
  const std::span<const std::uint32_t> own = task.graph.entries();
  std::vector<std::uint32_t> rows(own.begin(), own.end());
  for (const Group& group : task.plan.groups) {
    const std::span<const std::uint32_t> seeds = view.is_filtered() ? allowed_seeds(task, group) : task.graph.seeds(group.number);
    rows.insert(rows.end(), seeds.begin(), seeds.end());
  }
  return rows;
}

// Rows that a search scores exactly; more if a filter thins out the graph.
std::uint64_t width_of(const GraphTask& task) {
  const std::uint64_t width = std::max({task.effort, task.k, kMinWidth});
  const double share = admitted_share(task.plan);
  if (task.plan.allowed == nullptr || share >= kWaypointShare) return width;
  return std::max(width, static_cast<std::uint64_t>(kFilteredWidth * static_cast<double>(width) / std::sqrt(std::sqrt(share))));
}

GraphWalk& workspace() {
  thread_local GraphWalk walk;
  return walk;
}

}  // namespace

bool graph_pays(const GraphTask& task) {
  const auto documents = static_cast<double>(task.plan.segment->documents()), allowed = static_cast<double>(admitted(task.plan));
  const bool is_filtered = task.plan.allowed != nullptr;
  if (is_filtered && admitted_share(task.plan) < kMinShare) return false;
  const double dimensions = static_cast<double>(task.graph.dimension());
  const double scan = task.plan.selected() != nullptr ? kPerSelected * allowed : kPerDocument * (1 + dimensions / 96) * documents;
  return (is_filtered ? kPerFilteredRow : kPerRow) * static_cast<double>(width_of(task)) < scan;
}

bool search_graph(const GraphTask& task, TopK& best, std::uint64_t& dots) {
  QueryView view(task);
  GraphWalk& walk = workspace();
  std::vector<std::uint32_t> entries = entry_rows(task, view);
  view.order(entries);
  const std::uint64_t width = width_of(task);
  dots += view.is_filtered() ? walk.run_admitted(view, entries, width, task.cancel) : walk.run(view, entries, width, task.cancel);
  std::vector<Scored> hits;
  hits.reserve(walk.best().size());
  dots += view.dots() + walk.best().size();
  for (const Near& near : walk.best()) hits.push_back({near.token_score, task.graph.number(near.row)});
  std::sort(hits.begin(), hits.end(), [](const Scored& a, const Scored& b) { return a.number < b.number; });
  const auto repeated = [](const Scored& a, const Scored& b) { return a.number == b.number; };
  hits.erase(std::unique(hits.begin(), hits.end(), repeated), hits.end());  // a forged file may give two rows one number
  // With a filter, the rows that the walk went around may have cut off others.
  if (hits.size() < std::min(view.is_filtered() ? width : task.k, admitted(task.plan))) return false;
  for (const Scored& hit : hits) {
    float semantic;
    semantic_scores(*task.plan.segment, task.query, hit.number, 1, &semantic);
    best.push(hit.score + semantic, task.plan.base + hit.number);
  }
  return true;
}

}  // namespace citadel
