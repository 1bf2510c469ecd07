#include "citadel/scan.hpp"

#include <algorithm>
#include <bit>
#include <memory>

#include "citadel/semantic.hpp"

namespace citadel {
namespace {

constexpr std::size_t kMaxTouched = 2048;  // a range with more touched documents is scanned as a whole
constexpr std::size_t kChunk = 1024;       // accumulators collected between updates of the threshold
constexpr std::uint64_t kChunksAhead = 4;  // last chunks of a segment during which the next one is prefetched
constexpr std::size_t kFirstChunk = 64;    // the same before there is a threshold, when every touched document passes

struct Workspace {
  Workspace() { clear(); }
  void clear() { std::fill(std::begin(accumulators), std::end(accumulators), -0.0f), dirty = false; }

  alignas(64) float accumulators[kRange];
  std::uint32_t touched[kMaxTouched + 2 * kBlock];
  std::uint32_t offsets[kChunk + kLanes];  // of collected accumulators, or the selected documents
  float scores[kChunk + kLanes];           // semantic scores, or those of collected documents
  bool dirty = false;             // a scan threw before its accumulators were reset
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
      : segment_(segment), plan_(plan), selected_(segment.selected()), end_(end), best_(best), clock_(clock), space_(workspace()) {
    cursors_.reserve(segment.groups.size());
    for (const Group& group : segment.groups) {
      cursors_.emplace_back(*segment.segment, group, plan.query, plan.rules, plan.cancel, selected_);
      if (selected_ != nullptr) cursors_.back().use_kept(plan.keeps_selected);
      if (begin > 0) cursors_.back().seek(begin);
      if (begin == 0 && selected_ == nullptr) prefetch_list(*segment.segment, group.list);
    }
    wanted_ = std::lower_bound(segment.wanted.begin(), segment.wanted.end(), begin,
                               [](const Wanted& wanted, std::uint64_t document) { return wanted.document < document; });
    const auto documents = static_cast<double>(std::max<std::uint64_t>(1, segment.segment->documents()));
    const double share = selected_ == nullptr ? 1.0 : static_cast<double>(selected_->count()) / documents;
    dense_ = static_cast<double>(segment.postings) * share * kRange / documents > kMaxTouched;
  }

  std::uint64_t run(std::uint64_t begin) {
    for (std::uint64_t base = first_range(begin); base < end_; base = first_range(base + kRange)) {
      poll(plan_.cancel);
      clock_(Stage::token);
      range(base, std::min(base + kRange, end_));
      clock_(Stage::sort);
    }
    clock_(Stage::token);
    space_.dirty = false;
    std::uint64_t scored = 0;
    for (const Cursor& cursor : cursors_) scored += cursor.scored();
    return scored;
  }

 private:
  // The first range at or after `from` with a document to score.
  std::uint64_t first_range(std::uint64_t from) {
    if (plan_.semantic) return selected_ == nullptr ? from : range_of(selected_->next(from));
    std::uint64_t next = Cursor::kEnd;
    for (Cursor& cursor : cursors_) next = std::min(next, cursor.next_document());
    return range_of(next);
  }

  static std::uint64_t range_of(std::uint64_t document) {
    return document == Cursor::kEnd ? Cursor::kEnd : document / kRange * kRange;
  }

  void range(std::uint64_t base, std::uint64_t limit) {
    std::size_t count = 0;
    const std::size_t capacity = dense_ || plan_.semantic ? 0 : kMaxTouched;
    for (Cursor& cursor : cursors_) count = cursor.add(space_.accumulators, base, limit, space_.touched, count, capacity, clock_);
    read_wanted(base, limit);
    if (plan_.semantic && selected_ != nullptr) return collect_selected(base, limit);
    if (count < capacity) return collect_touched(base, count);
    for (std::uint64_t start = base; start < limit;) {
      const std::size_t chunk = best_.has_threshold() ? kChunk : kFirstChunk;
      const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(chunk, limit - start));
      if (plan_.semantic) {
        prefetch_next(start);
        add_semantic(start, start - base, n);
        clock_(Stage::semantic);
      }
      collect_chunk(start, start - base, n);
      clock_(Stage::sort);
      start += n;
    }
  }

  // While the last semantic vectors are scored, have the lists of the next segment arrive from memory.
  void prefetch_next(std::uint64_t start) {
    const std::uint64_t left = divide_up(segment_.segment->documents() - start, kChunk);
    if (segment_.next == nullptr || left > kChunksAhead) return;
    const std::vector<Group>& groups = segment_.next->groups;
    const std::size_t count = divide_up(groups.size() - next_group_, left);
    for (const std::size_t end = next_group_ + count; next_group_ < end; ++next_group_) prefetch_list(*segment_.next->segment, groups[next_group_].list);
  }

  void read_wanted(std::uint64_t base, std::uint64_t limit) {
    while (wanted_ != segment_.wanted.end() && wanted_->document < base) ++wanted_;
    for (; wanted_ != segment_.wanted.end() && wanted_->document < limit; ++wanted_)
      wanted_->token_score = space_.accumulators[wanted_->document - base] + 0.0f;
  }

  void collect_touched(std::uint64_t base, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t offset = space_.touched[i];
      offer(space_.accumulators[offset], base + offset);
      space_.accumulators[offset] = -0.0f;
    }
  }

  // The semantic part of the selected documents alone.
  void collect_selected(std::uint64_t base, std::uint64_t limit) {
    for (std::uint64_t next = selected_->next(base); next < limit;) {
      std::size_t n = 0;
      for (; n < kChunk && next < limit; next = selected_->next(next + 1)) space_.offsets[n++] = static_cast<std::uint32_t>(next);
      semantic_scores(*segment_.segment, plan_.query, {space_.offsets, n}, plan_.cancel, space_.scores);
      clock_(Stage::semantic);
      for (std::size_t i = 0; i < n; ++i) {
        float& accumulator = space_.accumulators[space_.offsets[i] - base];
        offer((accumulator + 0.0f) + space_.scores[i], space_.offsets[i]);
        accumulator = -0.0f;
      }
      clock_(Stage::sort);
    }
  }

  // Adding +0.0 first turns an untouched -0.0 into +0.0, so that no total is -0.0 and every document counts as touched.
  void add_semantic(std::uint64_t start, std::uint64_t offset, std::size_t n) {
    poll(plan_.cancel);
    semantic_scores(*segment_.segment, plan_.query, start, n, space_.scores);
    float* accumulators = space_.accumulators + offset;
    for (std::size_t i = 0; i < n; ++i) accumulators[i] = (accumulators[i] + 0.0f) + space_.scores[i];
  }

  void collect_chunk(std::uint64_t start, std::uint64_t offset, std::size_t n) {
    float* accumulators = space_.accumulators + offset;
    const std::size_t whole = (n + kLanes - 1) / kLanes * kLanes;  // accumulators after the last document are untouched
    const std::size_t count = plan_.query.kernels.collect(accumulators, whole, best_.threshold(), space_.offsets, space_.scores);
    for (std::size_t i = 0; i < count; ++i) offer(space_.scores[i], start + space_.offsets[i]);
  }

  void offer(float score, std::uint64_t document) {
    if (score >= best_.threshold() && segment_.admits(document)) best_.push(score, segment_.base + document);
  }

  SegmentPlan& segment_;
  const ScanPlan& plan_;
  const DocumentSet* selected_;  // null unless the allowed documents are few
  std::uint64_t end_;
  TopK& best_;
  Clock& clock_;
  Workspace& space_;
  std::vector<Cursor> cursors_;
  std::vector<Wanted>::iterator wanted_;
  std::size_t next_group_ = 0;  // of the next segment, to be prefetched
  bool dense_;
};

}  // namespace

std::uint64_t scan(SegmentPlan& segment, const ScanPlan& plan, std::uint64_t begin, std::uint64_t end, TopK& best) {
  if (plan.clock != nullptr) return Scan<StageClock>(segment, plan, begin, end, best, *plan.clock).run(begin);
  NoClock none;
  return Scan<NoClock>(segment, plan, begin, end, best, none).run(begin);
}

}  // namespace citadel
