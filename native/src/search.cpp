#include "citadel/search.hpp"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "citadel/dispatch.hpp"
#include "citadel/graph_search.hpp"
#include "citadel/parallel.hpp"
#include "citadel/plan.hpp"
#include "citadel/semantic.hpp"

namespace citadel {
namespace {

// Smaller queries finish before a second thread has started.
constexpr std::uint64_t kMinPostingsForThreads = 400'000;
constexpr std::uint64_t kMinDocumentsForThreads = 65'536;
constexpr std::uint64_t kTasksPerThread = 4;

struct Task {
  SegmentPlan* segment;
  std::uint64_t begin, end;
};

bool uses_graphs(Semantic semantic) { return semantic == Semantic::graph || semantic == Semantic::automatic; }

std::optional<StageClock> clock_for(Stages* stages) {
  if (stages == nullptr) return std::nullopt;
  return std::optional<StageClock>(std::in_place, *stages);
}

class Search {
 public:
  Search(const Snapshot& snapshot, const Query& query, const SearchOptions& options)
      : snapshot_(snapshot), options_(options), clock_(clock_for(options.stages)), prepared_(query, snapshot.segments(), kernels()),
        plans_(plan_segments(snapshot, query, options.cancel)), allowed_(snapshot.live()) {
    mark(Stage::plan);
    for (const SegmentPlan& plan : plans_) has_lists_ |= !plan.groups.empty();
    if (options.allowed != nullptr) allow(*options.allowed);
    for (const SegmentPlan& plan : plans_) postings_ += plan.postings;
  }

  Result run() {
    const std::uint64_t k = std::min(options_.k, snapshot_.documents());
    if (options_.semantic == Semantic::off) return token_result(k, false);
    if (uses_graphs(options_.semantic)) return graph_result(k);
    if (options_.semantic == Semantic::rerank && has_lists_) {
      Result reranked = rerank(k);
      if (reranked.numbers.size() >= std::min(k, allowed_)) return reranked;
      for (SegmentPlan& plan : plans_) plan.wanted.clear();
      scored_ = 0;
    }
    return token_result(k, true);
  }

 private:
  // Restrict the search: a segment without an allowed document is left out.
  void allow(const std::vector<DocumentSet>& allowed) {
    allowed_ = 0;
    for (std::size_t i = 0; i < plans_.size(); ++i) {
      plans_[i].allowed = &allowed[i], allowed_ += allowed[i].count();
      if (allowed[i].count() == 0) plans_[i].groups.clear(), plans_[i].postings = 0;
    }
  }

  Result token_result(std::uint64_t k, bool semantic) {
    TopK best = token_stage(k, semantic);
    return timed_result(std::move(best), scored_ + (semantic ? semantic_products() : 0));
  }

  // Search the segments that have a graph through it and scan the others.
  Result graph_result(std::uint64_t k) {
    TopK best(k);
    std::uint64_t dots = 0;
    const ScoringRules rules = scoring_rules();
    for (std::size_t i = 0; i < plans_.size(); ++i) {
      if (snapshot_.graph(i) == nullptr) continue;
      const GraphTask task{*snapshot_.graph(i), plans_[i], i, prepared_, rules, options_.cancel, k, options_.effort};
      const bool is_chosen = (options_.semantic == Semantic::graph && plans_[i].selected() == nullptr) || graph_pays(task);
      plans_[i].is_searched = is_chosen && search_graph(task, best, dots);
      if (plans_[i].is_searched) postings_ -= plans_[i].postings;
    }
    mark(Stage::semantic);
    if (std::all_of(plans_.begin(), plans_.end(), [](const SegmentPlan& plan) { return plan.is_searched; })) return timed_result(std::move(best), dots);
    best.merge(token_stage(k, true));
    return timed_result(std::move(best), dots + scored_ + semantic_products());
  }

  ScoringRules scoring_rules() const { return {snapshot_.floor(), snapshot_.norm_base(), snapshot_.norm_slope(), options_.weight_floor}; }

  // Semantic products of an exhaustive scan.
  std::uint64_t semantic_products() const {
    std::uint64_t products = 0;
    for (const SegmentPlan& plan : plans_) products += plan.is_searched ? 0 : plan.selected() != nullptr ? plan.selected()->count() : plan.segment->documents();
    return products;
  }

  static Result result(const std::vector<Scored>& ranked, std::uint64_t dots) {
    Result out;
    out.dots = dots;
    out.numbers.reserve(ranked.size()), out.scores.reserve(ranked.size());
    for (const Scored& hit : ranked) out.numbers.push_back(static_cast<std::int64_t>(hit.number)), out.scores.push_back(hit.score);
    return out;
  }

  Result timed_result(TopK&& best, std::uint64_t dots) {
    Result out = result(best.sorted(), dots);
    mark(Stage::sort);
    return out;
  }

  void mark(Stage stage) {
    if (clock_) (*clock_)(stage);
  }

  bool use_threads(bool semantic) const {
    if (clock_) return false;
    return postings_ >= kMinPostingsForThreads || (semantic && semantic_products() >= kMinDocumentsForThreads);
  }

  // Split the documents into pieces of whole ranges, in order.
  std::vector<Task> split(std::size_t threads) {
    const std::uint64_t pieces = threads <= 1 ? 1 : threads * kTasksPerThread;
    const std::uint64_t step = threads <= 1 ? UINT64_MAX : divide_up(divide_up(snapshot_.documents(), pieces), kRange) * kRange;
    std::vector<Task> out;
    for (SegmentPlan& plan : plans_) {
      const std::uint64_t documents = plan.is_searched ? 0 : plan.segment->documents();
      for (std::uint64_t begin = 0; begin < documents; begin += std::min(step, documents - begin))
        out.push_back({&plan, begin, begin + std::min(step, documents - begin)});
    }
    return out;
  }

  TopK token_stage(std::uint64_t k, bool semantic) {
    const std::size_t threads = use_threads(semantic) ? std::max(1u, options_.threads) : 1;
    const std::vector<Task> tasks = split(threads);
    if (threads == 1)
      for (std::size_t task = 1; task < tasks.size(); ++task)
        if (tasks[task].segment->selected() == nullptr) tasks[task - 1].segment->next = tasks[task].segment;
    const ScanPlan plan{prepared_, scoring_rules(), semantic, options_.cancel, clock_ ? &*clock_ : nullptr, threads == 1};
    std::vector<TopK> best(std::max<std::size_t>(1, std::min(threads, tasks.size())), TopK(k));
    std::atomic<std::uint64_t> scored = 0;
    parallel(tasks.size(), threads, [&](std::size_t worker, std::size_t task) {
      scored += scan(*tasks[task].segment, plan, tasks[task].begin, tasks[task].end, best[worker]);
    });
    scored_ = options_.allowed == nullptr ? postings_ : scored.load();  // tasks may score the block between them twice
    for (std::size_t worker = 1; worker < best.size(); ++worker) best[0].merge(best[worker]);
    return std::move(best[0]);
  }

  // Total scores of the top C documents of the token stage and of the probed documents.
  Result rerank(std::uint64_t k) {
    std::uint64_t dots = 0;
    const std::vector<Scored> probed = probe_stage(dots);  // (semantic score, number), by number
    request_token_scores(probed);
    mark(Stage::semantic);
    std::vector<Scored> first = token_stage(std::min(options_.candidates, snapshot_.documents()), false).sorted();
    dots += scored_;
    TopK best(k);
    auto semantic = probed.begin();  // the wanted documents are the probed ones, in the same order
    for (const SegmentPlan& plan : plans_)
      for (const Wanted& wanted : plan.wanted) best.push(wanted.token_score + (semantic++)->score, plan.base + wanted.document);
    mark(Stage::sort);
    std::sort(first.begin(), first.end(), [](const Scored& a, const Scored& b) { return a.number < b.number; });
    std::erase_if(first, [&](const Scored& hit) { return find(probed, hit.number) != probed.end(); });
    add_semantic(first);
    for (const Scored& hit : first) best.push(hit.score, hit.number);
    dots += first.size();
    mark(Stage::semantic);
    return timed_result(std::move(best), dots);
  }

  std::vector<Scored> probe_stage(std::uint64_t& dots) {
    std::vector<Scored> hits;  // ascending numbers: segments and their documents are visited in order
    for (const SegmentPlan& plan : plans_)
      dots += plan.segment->probe_lists() > 0 ? probe_lists(plan, hits) : plan.selected() != nullptr ? probe_selected(plan, hits) : probe_all(plan, hits);
    return hits;
  }

  std::uint64_t probe_lists(const SegmentPlan& plan, std::vector<Scored>& hits) {
    const std::vector<std::uint32_t> documents = probe(*plan.segment, prepared_, options_.probes, plan.allowed, options_.cancel);
    append_scored(plan, documents, hits);
    return documents.size();
  }

  std::uint64_t probe_selected(const SegmentPlan& plan, std::vector<Scored>& hits) {
    append_scored(plan, plan.selected()->members(), hits);
    return plan.selected()->count();
  }

  // Append the documents that may be returned, with their semantic scores.
  void append_scored(const SegmentPlan& plan, const std::vector<std::uint32_t>& documents, std::vector<Scored>& hits) const {
    std::vector<float> scores(documents.size());
    semantic_scores(*plan.segment, prepared_, documents, options_.cancel, scores.data());
    hits.reserve(hits.size() + documents.size());
    for (std::size_t i = 0; i < documents.size(); ++i)
      if (plan.admits(documents[i])) hits.push_back({scores[i], plan.base + documents[i]});
  }

  std::uint64_t probe_all(const SegmentPlan& plan, std::vector<Scored>& hits) {
    constexpr std::uint64_t kStep = 256;
    float scores[kStep];
    for (std::uint64_t start = 0; start < plan.segment->documents(); start += kStep) {
      poll(options_.cancel);
      const std::uint64_t n = std::min(kStep, plan.segment->documents() - start);
      semantic_scores(*plan.segment, prepared_, start, n, scores);
      for (std::uint64_t i = 0; i < n; ++i)
        if (plan.admits(start + i)) hits.push_back({scores[i], plan.base + start + i});
    }
    return plan.segment->documents();
  }

  // Request the token scores of the probed documents from the token stage.
  void request_token_scores(const std::vector<Scored>& probed) {
    for (SegmentPlan& plan : plans_)
      for (auto hit = lower(probed, plan.base); hit != probed.end() && hit->number < plan.base + plan.segment->documents(); ++hit)
        plan.wanted.push_back({static_cast<std::uint32_t>(hit->number - plan.base), 0.0f});
  }

  using Iterator = std::vector<Scored>::const_iterator;

  static Iterator lower(const std::vector<Scored>& by_number, std::uint64_t number) {
    return std::lower_bound(by_number.begin(), by_number.end(), number,
                            [](const Scored& hit, std::uint64_t value) { return hit.number < value; });
  }

  static Iterator find(const std::vector<Scored>& by_number, std::uint64_t number) {
    const Iterator at = lower(by_number, number);
    return at != by_number.end() && at->number == number ? at : by_number.end();
  }

  // Add the semantic scores of hits by ascending number.
  void add_semantic(std::vector<Scored>& hits) const {
    std::vector<std::uint32_t> documents;
    std::vector<float> scores(hits.size());
    auto hit = hits.begin();
    for (const SegmentPlan& plan : plans_) {
      documents.clear();
      for (auto next = hit; next != hits.end() && next->number < plan.base + plan.segment->documents(); ++next)
        documents.push_back(static_cast<std::uint32_t>(next->number - plan.base));
      semantic_scores(*plan.segment, prepared_, documents, options_.cancel, scores.data());
      for (std::size_t i = 0; i < documents.size(); ++i, ++hit) hit->score += scores[i];
    }
  }

  const Snapshot& snapshot_;
  const SearchOptions& options_;
  std::optional<StageClock> clock_;  // first, so that it also times the construction of the members below
  PreparedQuery prepared_;
  std::vector<SegmentPlan> plans_;
  std::uint64_t postings_ = 0, scored_ = 0;
  std::uint64_t allowed_;  // documents that may be returned
  bool has_lists_ = false;
};

}  // namespace

Snapshot::Snapshot(std::vector<std::shared_ptr<const Segment>> segments, bool floor, float norm_base, float norm_slope,
                   std::vector<std::shared_ptr<const Graph>> graphs)
    : segments_(std::move(segments)), graphs_(std::move(graphs)), bases_{0}, floor_(floor), norm_base_(norm_base), norm_slope_(norm_slope) {
  if (!graphs_.empty() && graphs_.size() != segments_.size()) throw std::invalid_argument("a snapshot needs one graph, or none, per segment");
  for (std::size_t i = 0; i < graphs_.size(); ++i)
    if (graphs_[i] != nullptr) graphs_[i]->require_fit(*segments_[i]);
  for (const auto& segment : segments_) bases_.push_back(bases_.back() + segment->documents());
}

std::uint64_t Snapshot::live() const {
  std::uint64_t live = 0;
  for (const auto& segment : segments_) live += segment->live();
  return live;
}

void Snapshot::require_whole() const {
  const std::int64_t now = mapping_clock();
  for (const auto& segment : segments_) segment->require_whole(now);
}

void Snapshot::require_whole_graphs() const {
  const std::int64_t now = mapping_clock();
  for (const auto& graph : graphs_)
    if (graph != nullptr) graph->require_whole(now);
}

Result Snapshot::search(const Query& query, const SearchOptions& options) const {
  poll(options.cancel);
  check_query(*this, query, options.semantic);
  Result result = Search(*this, query, options).run();
  if (uses_graphs(options.semantic)) require_whole_graphs();
  require_whole();
  return result;
}

std::vector<Result> Snapshot::search_batch(const std::vector<const Query*>& queries, const SearchOptions& options) const {
  std::vector<Result> results(queries.size());
  SearchOptions per_query = options;
  if (queries.size() > 1) per_query.threads = 1;
  parallel(queries.size(), std::max(1u, options.threads), [&](std::size_t, std::size_t i) { results[i] = search(*queries[i], per_query); });
  return results;
}

}  // namespace citadel
