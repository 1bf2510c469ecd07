#include "citadel/plan.hpp"

#include <stdexcept>
#include <string>

namespace citadel {
namespace {

void check_tokens(const Segment& segment, const Query& query) {
  if (segment.kind() == Kind::vectors && query.dimension != segment.dimension())
    throw std::invalid_argument("the query's vectors have " + std::to_string(query.dimension) +
                                " dimensions, the index has " + std::to_string(segment.dimension()));
}

void check_lists(const Segment& segment, const Query& query, std::size_t number) {
  bool reads = false;
  for (std::size_t token = 0; token < query.tokens; ++token) {
    const std::int64_t list = query.list(number, token);
    if (list >= 0 && static_cast<std::uint64_t>(list) >= segment.lists())
      throw std::invalid_argument("list " + std::to_string(list) + " does not exist in segment " +
                                  std::to_string(number));
    reads |= list >= 0;
  }
  if (reads) check_tokens(segment, query);
}

Group open_group(const Segment& segment, const Query& query, std::size_t number, std::size_t first,
                 const Cancel* cancel) {
  const std::int64_t list = query.list(number, first);
  std::size_t last = first + 1;
  while (last < query.tokens && query.list(number, last) == list) ++last;
  const auto index = static_cast<std::uint64_t>(list);
  return {index, segment.open_list(index, cancel), segment.list_scale(index), first, last - first};
}

// Have the starts of all lists arrive from memory together, then the entries of their first blocks.
void prefetch_lists(const Snapshot& snapshot, const Query& query) {
  const auto each = [&](void (Segment::*prefetch)(std::uint64_t) const) {
    for (std::size_t number = 0; number < query.segments; ++number)
      for (std::size_t token = 0; token < query.tokens; ++token)
        if (const std::int64_t list = query.list(number, token); list >= 0) ((*snapshot.segments()[number]).*prefetch)(static_cast<std::uint64_t>(list));
  };
  each(&Segment::prefetch_starts);
  each(&Segment::prefetch_entries);
}

}  // namespace

void check_query(const Snapshot& snapshot, const Query& query, Semantic semantic) {
  for (const auto& segment : snapshot.segments())
    if (segment->kind() == Kind::centroid) throw std::invalid_argument("search centroid segments with search_tokens");
  if (query.segments != snapshot.segments().size())
    throw std::invalid_argument("the query was made for " + std::to_string(query.segments) +
                                " segments, the snapshot has " + std::to_string(snapshot.segments().size()));
  for (std::size_t i = 0; i < query.segments; ++i) {
    const Segment& segment = *snapshot.segments()[i];
    check_lists(segment, query, i);
    if (semantic != Semantic::off && segment.semantic_dimension() == 0)
      throw std::invalid_argument("the index has no semantic field: search it with semantic 'off'");
    if (semantic != Semantic::off && query.semantic.size() != segment.semantic_dimension())
      throw std::invalid_argument("the query's semantic vector has " + std::to_string(query.semantic.size()) +
                                  " dimensions, the index has " +
                                  std::to_string(segment.semantic_dimension()));
  }
}

std::vector<SegmentPlan> plan_segments(const Snapshot& snapshot, const Query& query, const Cancel* cancel) {
  std::vector<SegmentPlan> plans;
  prefetch_lists(snapshot, query);
  for (std::size_t number = 0; number < query.segments; ++number) {
    const Segment& segment = *snapshot.segments()[number];
    SegmentPlan plan{&segment, snapshot.base(number), {}, 0, {}};
    for (std::size_t token = 0; token < query.tokens;) {
      if (query.list(number, token) < 0) {
        ++token;
        continue;
      }
      plan.groups.push_back(open_group(segment, query, number, token, cancel));
      const Group& group = plan.groups.back();
      plan.postings += (group.list.last - group.list.first) * group.tokens;
      token += group.tokens;
    }
    plans.push_back(std::move(plan));
  }
  return plans;
}

}  // namespace citadel
