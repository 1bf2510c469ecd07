#include "citadel/graph_starts.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include "citadel/cursor.hpp"
#include "citadel/graph_search.hpp"
#include "citadel/half.hpp"

namespace citadel {
namespace {

// Measured on 28,000 to 224,000 passages (docs/how-it-works/decisions.md).
constexpr std::size_t kHeaviest = 512;  // rows kept of each list
constexpr std::size_t kStarts = 192;    // rows that the lists lead to together

// Filters, measured on 84,000 passages with random filters (docs/how-it-works/search.md).
constexpr double kFilteredSeeds = 0.7;  // times seeds / share^½ are taken from each list, at least the seeds
constexpr std::size_t kMaxSeeds = 256;

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

// Order the heaviest `n` of these documents first; ties go to the lower document.
void sort_heaviest(std::vector<Scored>& documents, std::size_t n) {
  n = std::min(n, documents.size());
  std::partial_sort(documents.begin(), documents.begin() + static_cast<std::ptrdiff_t>(n), documents.end(), better);
  documents.resize(n);
}

std::uint32_t row_of(const GraphTask& task, const Scored& document) { return task.graph.row_of(static_cast<std::uint32_t>(document.number)); }

// Each document of a list counts once, with its heaviest posting.
HeavyRows heaviest_of_list(const GraphTask& task, const Group& group) {
  const std::vector<std::uint32_t> numbers = Cursor(*task.plan.segment, group, task.query, task.rules, task.cancel).documents();
  std::vector<Scored> documents;
  documents.reserve(numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const float weight = posting_weight(*task.plan.segment, group.list.first + i);
    if (!documents.empty() && documents.back().number == numbers[i]) documents.back().score = std::max(documents.back().score, weight);
    else documents.push_back({weight, numbers[i]});
  }
  sort_heaviest(documents, kHeaviest);
  HeavyRows heavy;
  if (documents.empty() || !(documents.front().score > 0)) return heavy;
  heavy.most = std::min(documents.front().score, std::numeric_limits<float>::max());
  for (const Scored& document : documents) {
    heavy.rows.push_back(row_of(task, document));
    heavy.weights.push_back(static_cast<std::uint8_t>(255.0f * std::clamp(document.score / heavy.most, 0.0f, 1.0f)));
  }
  return heavy;
}

std::vector<std::uint32_t> heaviest_allowed(const GraphTask& task, const Group& group) {
  const auto list = Cursor(*task.plan.segment, group, task.query, task.rules, task.cancel, task.plan.allowed).select_list();
  std::vector<Scored> documents;
  for (std::size_t i = 0; i < list->documents.size(); ++i)
    documents.push_back({posting_weight(*task.plan.segment, group.list.first + list->postings[i]), list->documents[i]});
  const double wanted = std::max(1.0, kFilteredSeeds / std::sqrt(admitted_share(task.plan))) * static_cast<double>(task.graph.seeds_per_list());
  sort_heaviest(documents, std::min(static_cast<std::size_t>(wanted), kMaxSeeds));
  std::vector<std::uint32_t> rows;
  for (const Scored& document : documents) rows.push_back(row_of(task, document));
  return rows;
}

// A list of the query, and what a weight of 1 in it adds to the sum of a row.
struct WeighedList {
  const HeavyRows* heavy;
  std::size_t n;
  std::uint32_t weight;
};

// Sums of weights by row. Of rows that share a slot, few among some thousand, the first takes the weights of all.
class RowSums {
 public:
  static constexpr std::uint32_t kWeights = 250;        // of all lists together, so that sums fit 16 bits
  static constexpr std::size_t kMaxEntries = 1 << 14;

  // Append the rows with the largest sums, at most kStarts; the lists have at most kMaxEntries together.
  void append_largest(std::span<const WeighedList> lists, std::vector<std::uint32_t>& out) {
    for (const WeighedList& list : lists) add(list);
    counts_.fill(0);
    std::size_t size = 0;
    for (const WeighedList& list : lists) size = collect(list, size);
    std::size_t bucket = kBuckets, kept = 0;
    while (bucket > 1 && kept + counts_[bucket - 1] <= kStarts) kept += counts_[--bucket];
    // All rows of these buckets, then what there is room for of the next one.
    for (std::size_t i = 0; i < size; ++i)
      if (buckets_[i] >= bucket) out.push_back(rows_[i]);
    for (std::size_t i = 0; i < size && kept < kStarts; ++i)
      if (buckets_[i] + 1u == bucket) out.push_back(rows_[i]), ++kept;
  }

 private:
  static constexpr std::size_t kSlotBits = 15, kBucketBits = 11, kBuckets = 1 << kBucketBits;

  static std::size_t slot(std::uint32_t row) { return row * 2654435769u >> (32 - kSlotBits); }

  void add(const WeighedList& list) {
    const std::uint32_t* rows = list.heavy->rows.data();
    const std::uint8_t* weights = list.heavy->weights.data();
    std::uint16_t* sums = sums_.data();
    for (std::size_t i = 0; i < list.n; ++i) sums[slot(rows[i])] += static_cast<std::uint16_t>(list.weight * weights[i]);
  }

  // Take each row once, with the bucket of its sum, and clear its sum. Without branches: which rows were taken cannot be predicted.
  std::size_t collect(const WeighedList& list, std::size_t size) {
    const std::uint32_t* rows = list.heavy->rows.data();
    std::uint16_t* sums = sums_.data();
    for (std::size_t i = 0; i < list.n; ++i) {
      const std::size_t at = slot(rows[i]);
      const std::uint16_t sum = sums[at];
      sums[at] = 0;
      rows_[size] = rows[i];
      buckets_[size] = static_cast<std::uint16_t>(sum >> (16 - kBucketBits));
      ++counts_[buckets_[size]];
      size += sum != 0;
    }
    return size;
  }

  std::vector<std::uint16_t> sums_ = std::vector<std::uint16_t>(std::size_t{1} << kSlotBits);
  std::vector<std::uint32_t> rows_ = std::vector<std::uint32_t>(kMaxEntries + 1);
  std::vector<std::uint16_t> buckets_ = std::vector<std::uint16_t>(kMaxEntries + 1);
  std::array<std::uint16_t, kBuckets> counts_;  // counts_[0] counts rows that were taken before, too
};

float query_weight(const GraphTask& task, const Group& group) {
  float weight = 0;
  for (std::size_t token = group.first_token; token < group.first_token + group.tokens; ++token) weight += task.query.query.weights[token];
  return weight;
}

void append_heaviest(const GraphTask& task, std::vector<std::uint32_t>& rows) {
  thread_local RowSums sums;
  std::vector<WeighedList> lists;
  std::vector<float> most;
  const std::size_t limit = RowSums::kMaxEntries / std::max<std::size_t>(1, task.plan.groups.size());
  for (const Group& group : task.plan.groups) {
    const HeavyRows& heavy = task.graph.heavy_lists().get(group.number, [&] { return heaviest_of_list(task, group); });
    lists.push_back({&heavy, std::min(limit, heavy.rows.size()), 0});
    most.push_back(std::max(0.0f, query_weight(task, group)) * heavy.most);
  }
  const float total = std::accumulate(most.begin(), most.end(), 0.0f);
  if (total > 0 && total <= std::numeric_limits<float>::max()) {
    for (std::size_t i = 0; i < lists.size(); ++i) lists[i].weight = static_cast<std::uint32_t>(most[i] / total * RowSums::kWeights);
    return sums.append_largest(lists, rows);
  }
  for (const Group& group : task.plan.groups) {  // no weights: the seeds of the file
    const std::span<const std::uint32_t> seeds = task.graph.seeds(group.number);
    rows.insert(rows.end(), seeds.begin(), seeds.end());
  }
}

}  // namespace

std::vector<std::uint32_t> start_rows(const GraphTask& task, bool is_filtered) {
  const std::span<const std::uint32_t> own = task.graph.entries();
  std::vector<std::uint32_t> rows(own.begin(), own.end());
  if (!is_filtered) return append_heaviest(task, rows), rows;
  for (const Group& group : task.plan.groups) {
    const std::span<const std::uint32_t> seeds = task.plan.allowed->graph().seeds(group.number, [&] { return heaviest_allowed(task, group); });
    rows.insert(rows.end(), seeds.begin(), seeds.end());
  }
  return rows;
}

}  // namespace citadel
