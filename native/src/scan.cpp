#include "citadel/scan.hpp"

#include <algorithm>
#include <bit>
#include <memory>

#include "citadel/semantic.hpp"

namespace citadel {
namespace {

constexpr std::size_t kSparse = 2048;   // up to so many touched documents of a range are listed
constexpr std::size_t kChunk = 1024;    // accumulators between two looks at the threshold
constexpr std::size_t kFirstChunk = 64;  // the same while there is none yet: everything touched is offered

struct Workspace {
  Workspace() { clear(); }
  void clear() { std::fill(std::begin(accumulators), std::end(accumulators), -0.0f), dirty = false; }

  alignas(64) float accumulators[kRange];
  std::uint32_t touched[kSparse + 2 * kBlock];
  std::uint32_t found[kChunk + kLanes];
  float semantic[kChunk + kLanes];
  bool dirty = false;  // a scan that threw left accumulators behind
};

Workspace& workspace() {
  thread_local std::unique_ptr<Workspace> space;
  if (space == nullptr) space = std::make_unique<Workspace>();
  if (space->dirty) space->clear();
  space->dirty = true;
  return *space;
}

template <class Clock>
class Scan {
 public:
  Scan(SegmentPlan& segment, const ScanPlan& plan, std::uint64_t begin, std::uint64_t end, TopK& best, Clock& clock)
      : segment_(segment), plan_(plan), end_(end), best_(best), clock_(clock), space_(workspace()) {
    cursors_.reserve(segment.groups.size());
    for (const Group& group : segment.groups) {
      cursors_.emplace_back(*segment.segment, group, plan.query, plan.rules, plan.cancel);
      if (begin > 0) cursors_.back().seek(begin);
    }
    wanted_ = std::lower_bound(segment.wanted.begin(), segment.wanted.end(), begin,
                               [](const Wanted& wanted, std::uint64_t document) { return wanted.document < document; });
    const double expected = static_cast<double>(segment.postings) * kRange / static_cast<double>(std::max<std::uint64_t>(1, segment.segment->documents()));
    dense_ = expected > kSparse;
  }

  void run(std::uint64_t begin) {
    for (std::uint64_t base = first_range(begin); base < end_; base = first_range(base + kRange)) {
      poll(plan_.cancel);
      clock_(Stage::token);
      range(base, std::min(base + kRange, end_));
      clock_(Stage::sort);
    }
    clock_(Stage::token);
    space_.dirty = false;
  }

 private:
  // The range at or behind `from` that has something to score.
  std::uint64_t first_range(std::uint64_t from) {
    if (plan_.semantic) return from;
    std::uint64_t next = Cursor::kEnd;
    for (Cursor& cursor : cursors_) next = std::min(next, cursor.next_document());
    return next == Cursor::kEnd ? Cursor::kEnd : next / kRange * kRange;
  }

  void range(std::uint64_t base, std::uint64_t limit) {
    std::size_t count = 0;
    const std::size_t capacity = dense_ || plan_.semantic ? 0 : kSparse;
    for (Cursor& cursor : cursors_) count = cursor.add(space_.accumulators, base, limit, space_.touched, count, capacity, clock_);
    look_up_wanted(base, limit);
    if (count < capacity) return collect_touched(base, count);
    for (std::uint64_t start = base; start < limit;) {
      const std::size_t most = best_.has_threshold() ? kChunk : kFirstChunk;
      const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(most, limit - start));
      if (plan_.semantic) {
        add_semantic(start, start - base, n);
        clock_(Stage::semantic);
      }
      collect_chunk(start, start - base, n);
      clock_(Stage::sort);
      start += n;
    }
  }

  void look_up_wanted(std::uint64_t base, std::uint64_t limit) {
    while (wanted_ != segment_.wanted.end() && wanted_->document < base) ++wanted_;
    for (; wanted_ != segment_.wanted.end() && wanted_->document < limit; ++wanted_)
      wanted_->token_score = space_.accumulators[wanted_->document - base] + 0.0f;
  }

  void collect_touched(std::uint64_t base, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t place = space_.touched[i];
      offer(space_.accumulators[place], base + place);
      space_.accumulators[place] = -0.0f;
    }
  }

  // Untouched is -0.0 and becomes +0.0 first, so that no total is -0.0 and every document counts as touched.
  void add_semantic(std::uint64_t start, std::uint64_t offset, std::size_t n) {
    poll(plan_.cancel);
    semantic_scores(*segment_.segment, plan_.query, start, n, space_.semantic);
    float* accumulators = space_.accumulators + offset;
    for (std::size_t i = 0; i < n; ++i) accumulators[i] = (accumulators[i] + 0.0f) + space_.semantic[i];
  }

  void collect_chunk(std::uint64_t start, std::uint64_t offset, std::size_t n) {
    float* accumulators = space_.accumulators + offset;
    const std::size_t whole = (n + kLanes - 1) / kLanes * kLanes;  // those behind the last document are untouched
    const std::size_t found = plan_.query.kernels.collect(accumulators, whole, best_.threshold(), space_.found, space_.semantic);
    for (std::size_t i = 0; i < found; ++i) offer(space_.semantic[i], start + space_.found[i]);
  }

  void offer(float score, std::uint64_t document) {
    if (score >= best_.threshold() && !segment_.segment->is_deleted(document)) best_.push(score, segment_.base + document);
  }

  SegmentPlan& segment_;
  const ScanPlan& plan_;
  std::uint64_t end_;
  TopK& best_;
  Clock& clock_;
  Workspace& space_;
  std::vector<Cursor> cursors_;
  std::vector<Wanted>::iterator wanted_;
  bool dense_;
};

}  // namespace

void scan(SegmentPlan& segment, const ScanPlan& plan, std::uint64_t begin, std::uint64_t end, TopK& best) {
  if (plan.clock != nullptr) return Scan<StageClock>(segment, plan, begin, end, best, *plan.clock).run(begin);
  NoClock none;
  Scan<NoClock>(segment, plan, begin, end, best, none).run(begin);
}

}  // namespace citadel
