#include "citadel/search.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "citadel/dispatch.hpp"
#include "citadel/parallel.hpp"
#include "citadel/plan.hpp"
#include "citadel/semantic.hpp"

namespace citadel {
namespace {

// Less work than this is done before a second thread has started.
constexpr std::uint64_t kPostingsWorthThreads = 400'000;
constexpr std::uint64_t kDocumentsWorthThreads = 65'536;
constexpr std::uint64_t kTasksPerThread = 4;

struct Task {
  SegmentPlan* segment;
  std::uint64_t begin, end;
};

std::optional<StageClock> clock_for(Stages* stages) {
  if (stages == nullptr) return std::nullopt;
  return std::optional<StageClock>(std::in_place, *stages);
}

class Search {
 public:
  Search(const Snapshot& snapshot, const Query& query, const SearchOptions& options)
      : snapshot_(snapshot), options_(options), clock_(clock_for(options.stages)), prepared_(query, snapshot.segments(), kernels()),
        plans_(plan_segments(snapshot, query, options.cancel)) {
    mark(Stage::plan);
    for (const SegmentPlan& plan : plans_) postings_ += plan.postings, has_lists_ |= !plan.groups.empty();
  }

  Result run() {
    const std::uint64_t k = std::min(options_.k, snapshot_.documents());
    if (options_.semantic == Semantic::off) return timed_result(token_stage(k, false), postings_);
    if (options_.semantic == Semantic::rerank && has_lists_) {
      Result reranked = rerank(k);
      if (reranked.numbers.size() >= std::min(k, snapshot_.live())) return reranked;
      for (SegmentPlan& plan : plans_) plan.wanted.clear();
    }
    return timed_result(token_stage(k, true), postings_ + snapshot_.documents());
  }

 private:
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

  bool worth_threads(bool semantic) const {
    if (clock_) return false;
    return postings_ >= kPostingsWorthThreads || (semantic && snapshot_.documents() >= kDocumentsWorthThreads);
  }

  // Cut the documents into pieces of whole ranges, in order.
  std::vector<Task> tasks(std::size_t threads) {
    const std::uint64_t pieces = threads <= 1 ? 1 : threads * kTasksPerThread;
    const std::uint64_t step = threads <= 1 ? UINT64_MAX : divide_up(divide_up(snapshot_.documents(), pieces), kRange) * kRange;
    std::vector<Task> out;
    for (SegmentPlan& plan : plans_) {
      const std::uint64_t documents = plan.segment->documents();
      for (std::uint64_t begin = 0; begin < documents; begin += std::min(step, documents - begin))
        out.push_back({&plan, begin, begin + std::min(step, documents - begin)});
    }
    return out;
  }

  TopK token_stage(std::uint64_t k, bool semantic) {
    const std::size_t threads = worth_threads(semantic) ? std::max(1u, options_.threads) : 1;
    const std::vector<Task> pieces = tasks(threads);
    const ScanPlan plan{prepared_, {snapshot_.floor(), snapshot_.norm_base(), snapshot_.norm_slope(), options_.weight_floor},
                        semantic, options_.cancel, clock_ ? &*clock_ : nullptr};
    std::vector<TopK> best(std::max<std::size_t>(1, std::min(threads, pieces.size())), TopK(k));
    parallel(pieces.size(), threads, [&](std::size_t worker, std::size_t task) {
      scan(*pieces[task].segment, plan, pieces[task].begin, pieces[task].end, best[worker]);
    });
    for (std::size_t worker = 1; worker < best.size(); ++worker) best[0].merge(best[worker]);
    return std::move(best[0]);
  }

  // The best C of the token stage and the probed documents, each with its whole score.
  Result rerank(std::uint64_t k) {
    std::uint64_t dots = postings_;
    const std::vector<Scored> probed = probe_stage(dots);  // (semantic score, number), by number
    want(probed);
    mark(Stage::semantic);
    std::vector<Scored> first = token_stage(std::min(options_.candidates, snapshot_.documents()), false).sorted();
    TopK best(k);
    for (const SegmentPlan& plan : plans_)
      for (const Wanted& wanted : plan.wanted) best.push(wanted.token_score + semantic_of(probed, plan.base + wanted.document), plan.base + wanted.document);
    mark(Stage::sort);
    std::sort(first.begin(), first.end(), [](const Scored& a, const Scored& b) { return a.number < b.number; });
    for (const Scored& hit : first) {
      if (find(probed, hit.number) != probed.end()) continue;
      best.push(hit.score + semantic_score(hit.number), hit.number);
      ++dots;
    }
    mark(Stage::semantic);
    return timed_result(std::move(best), dots);
  }

  std::vector<Scored> probe_stage(std::uint64_t& dots) {
    std::vector<Scored> found;  // by number: segments and their documents rise
    for (const SegmentPlan& plan : plans_)
      dots += plan.segment->probe_lists() > 0 ? probe_lists(plan, found) : probe_all(plan, found);
    return found;
  }

  std::uint64_t probe_lists(const SegmentPlan& plan, std::vector<Scored>& found) {
    const std::vector<std::uint32_t> documents = probe(*plan.segment, prepared_, options_.probes, options_.cancel);
    found.reserve(found.size() + documents.size());
    for (const std::uint32_t document : documents) {
      float score;
      semantic_scores(*plan.segment, prepared_, document, 1, &score);
      if (!plan.segment->is_deleted(document)) found.push_back({score, plan.base + document});
    }
    return documents.size();
  }

  std::uint64_t probe_all(const SegmentPlan& plan, std::vector<Scored>& found) {
    constexpr std::uint64_t kStep = 256;
    float scores[kStep];
    for (std::uint64_t start = 0; start < plan.segment->documents(); start += kStep) {
      poll(options_.cancel);
      const std::uint64_t n = std::min(kStep, plan.segment->documents() - start);
      semantic_scores(*plan.segment, prepared_, start, n, scores);
      for (std::uint64_t i = 0; i < n; ++i)
        if (!plan.segment->is_deleted(start + i)) found.push_back({scores[i], plan.base + start + i});
    }
    return plan.segment->documents();
  }

  // Ask the token stage for the exact token scores of the probed documents.
  void want(const std::vector<Scored>& probed) {
    for (SegmentPlan& plan : plans_)
      for (auto hit = lower(probed, plan.base); hit != probed.end() && hit->number < plan.base + plan.segment->documents(); ++hit)
        plan.wanted.push_back({static_cast<std::uint32_t>(hit->number - plan.base), 0.0f});
  }

  using Iterator = std::vector<Scored>::const_iterator;

  static Iterator lower(const std::vector<Scored>& by_number, std::uint64_t number) {
    return std::lower_bound(by_number.begin(), by_number.end(), number,
                            [](const Scored& hit, std::uint64_t wanted) { return hit.number < wanted; });
  }

  static Iterator find(const std::vector<Scored>& by_number, std::uint64_t number) {
    const Iterator at = lower(by_number, number);
    return at != by_number.end() && at->number == number ? at : by_number.end();
  }

  static float semantic_of(const std::vector<Scored>& probed, std::uint64_t number) { return find(probed, number)->score; }

  float semantic_score(std::uint64_t number) const {
    const auto after = std::upper_bound(plans_.begin(), plans_.end(), number,
                                        [](std::uint64_t n, const SegmentPlan& plan) { return n < plan.base; });
    const SegmentPlan& plan = *std::prev(after);
    float score;
    semantic_scores(*plan.segment, prepared_, number - plan.base, 1, &score);
    return score;
  }

  const Snapshot& snapshot_;
  const SearchOptions& options_;
  std::optional<StageClock> clock_;  // before what it times
  PreparedQuery prepared_;
  std::vector<SegmentPlan> plans_;
  std::uint64_t postings_ = 0;
  bool has_lists_ = false;
};

}  // namespace

Snapshot::Snapshot(std::vector<std::shared_ptr<const Segment>> segments, bool floor, float norm_base, float norm_slope)
    : segments_(std::move(segments)), bases_{0}, floor_(floor), norm_base_(norm_base), norm_slope_(norm_slope) {
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

Result Snapshot::search(const Query& query, const SearchOptions& options) const {
  poll(options.cancel);
  check_query(*this, query, options.semantic);
  Result result = Search(*this, query, options).run();
  require_whole();
  return result;
}

std::vector<Result> Snapshot::search_batch(const std::vector<const Query*>& queries, const SearchOptions& options) const {
  std::vector<Result> results(queries.size());
  SearchOptions alone = options;
  if (queries.size() > 1) alone.threads = 1;
  parallel(queries.size(), std::max(1u, options.threads), [&](std::size_t, std::size_t i) { results[i] = search(*queries[i], alone); });
  return results;
}

}  // namespace citadel
