#include "citadel/graph_search.hpp"

#include <algorithm>
#include <cmath>

#include "citadel/graph_starts.hpp"
#include "citadel/graph_token_scores.hpp"
#include "citadel/graph_walk.hpp"
#include "citadel/semantic.hpp"

namespace citadel {
namespace {

// A row is left out if this share of its likely token part would not lift it above the worst result.
constexpr float kTokenShare = 0.5f;
constexpr std::uint64_t kMinWidth = 16;

// Filters, measured on 84,000 passages with random filters (docs/how-it-works/search.md).
constexpr double kWaypointShare = 0.9;   // if more is allowed, a walk leads through the documents that are not
constexpr double kMinShare = 1.0 / 32;   // if less is allowed, the allowed documents are scanned
constexpr double kFilteredWidth = 1.25;  // times width · share^3/16 rows are kept, at most the width

// Nanoseconds, measured on AMD EPYC and Intel Xeon processors with semantic vectors of 384 dimensions.
constexpr double kPerRow = 2200;       // of the result, of a walk and its token scores
constexpr double kPerFilteredRow = 2400;
constexpr double kPerDocument = 1;     // of a scan, and for every 96 dimensions
constexpr double kPerSelected = 28;    // document of a scan of few allowed documents

// The rows of the allowed documents, kept with the filter.
const std::uint64_t* admitted_rows(const GraphTask& task) {
  return task.plan.allowed->graph().rows(task.graph.rows(), [&](std::uint32_t row) { return task.plan.allowed->contains(task.graph.number(row)); });
}

// The rows of a graph as the query sees them: the semantic part estimated from 4-bit codes, the token part exact.
class QueryView {
 public:
  explicit QueryView(const GraphTask& task)
      : task_(task), graph_(task.graph), vector_(task.query.query.semantic.data(), task.graph.dimension()), query_(vector_.query()), dots_(nibble_dots()), tokens_(task) {}

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

  void estimate(Near* rows, std::size_t n) const {
    const std::uint8_t* starts[kMaxLinks];
    float scores[kMaxLinks];
    for (std::size_t i = 0; i < n; ++i) starts[i] = graph_.codes(rows[i].row);
    score_nibbles(dots_, starts, n, graph_.blocks(), query_, scores);
    for (std::size_t i = 0; i < n; ++i) rows[i].score = scores[i];
  }

  std::size_t complete(Near* rows, std::size_t n, float worst) { return tokens_.empty() ? n : tokens_.add(rows, n, worst, kTokenShare); }

  std::uint64_t dots() const { return tokens_.dots(); }  // postings

 private:
  const GraphTask& task_;
  const Graph& graph_;
  NibbleVector vector_;
  NibbleQuery query_;
  NibbleDots dots_;
  GraphTokenScores tokens_;
  bool is_filtered_ = task_.plan.allowed != nullptr && admitted_share(task_.plan) < kWaypointShare;
  const std::uint64_t* rows_ = is_filtered_ ? admitted_rows(task_) : nullptr;
  bool admits_all_ = task_.plan.allowed == nullptr && task_.plan.segment->live() == task_.plan.segment->documents();
};

// Rows that a search scores exactly; fewer where a filter leaves few documents that are better than the k-th.
std::uint64_t width_of(const GraphTask& task) {
  const std::uint64_t least = std::max(task.k, kMinWidth), width = std::max(task.effort, least);
  const double share = admitted_share(task.plan);
  if (task.plan.allowed == nullptr || share >= kWaypointShare) return width;
  const double root = std::sqrt(std::sqrt(std::sqrt(share)));  // square roots are the same on every machine
  const double part = std::min(1.0, kFilteredWidth * root * std::sqrt(root));
  return std::max(least, static_cast<std::uint64_t>(part * static_cast<double>(width)));
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
  const std::vector<std::uint32_t> entries = start_rows(task, view.is_filtered());
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
