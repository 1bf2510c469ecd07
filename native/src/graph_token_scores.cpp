#include "citadel/graph_token_scores.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace citadel {

GraphTokenScores::GraphTokenScores(const GraphTask& task) : task_(task), has_signatures_(task.graph.has_signatures()) {
  for (const Group& group : task.plan.groups) {
    const PostingRange range{static_cast<std::uint32_t>(group.list.first), static_cast<std::uint32_t>(group.list.last - group.list.first)};
    const std::uint32_t bit = signature_bit(static_cast<std::uint32_t>(group.number));
    lists_.push_back({range, bit >> 3, static_cast<std::uint8_t>(1u << (bit & 7)), {}});
  }
  largest_.assign(lists_.size(), -1.0f);
}

// In three passes, each of which waits for the memory that the one before has prefetched.
std::size_t GraphTokenScores::add(Near* rows, std::size_t n, float worst, float likely) {
  candidates_.clear();
  std::size_t kept = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const float missing = (worst - rows[i].score) / likely;
    if (missing > sum_ && largest_of_all_ > 0) continue;
    if (!keep(rows[i], static_cast<std::uint32_t>(kept), missing)) continue;
    rows[kept++] = rows[i];
  }
  find_matches(rows);
  for (std::size_t list = 0; list < lists_.size(); ++list)
    if (!lists_[list].matches.empty()) add_list(list, rows);
  for (std::size_t i = 0; i < kept; ++i) rows[i].score += rows[i].token_score;
  return kept;
}

// Note the lists that may have postings of a row, unless these are unlikely to add what is missing.
bool GraphTokenScores::keep(const Near& row, std::uint32_t position, float missing) {
  const std::size_t before = candidates_.size();
  const std::uint8_t* signature = has_signatures_ ? task_.graph.signature(row.row) : nullptr;
  float limit = 0;
  for (std::uint32_t list = 0; list < lists_.size(); ++list) {
    if (signature != nullptr && (signature[lists_[list].signature_byte] & lists_[list].signature_bit) == 0) continue;
    candidates_.push_back({position, list});
    limit += largest_[list] < 0 ? largest_of_all_ : largest_[list];
  }
  if (limit < missing) return candidates_.resize(before, {}), false;
  if (candidates_.size() > before) task_.graph.prefetch_postings(row.row);
  return true;
}

void GraphTokenScores::find_matches(const Near* rows) {
  for (List& list : lists_) list.matches.clear();
  for (std::size_t at = 0; at < candidates_.size();) {
    const std::uint32_t row = candidates_[at].row;
    const std::span<const std::uint32_t> postings = task_.graph.postings(rows[row].row);
    for (; at < candidates_.size() && candidates_[at].row == row; ++at) find_matches(candidates_[at], postings);
  }
}

void GraphTokenScores::find_matches(Candidate candidate, std::span<const std::uint32_t> postings) {
  List& list = lists_[candidate.list];
  const Section& weights = task_.plan.segment->weights;
  const bool has_floor = task_.rules.weight_floor > 0 && weights.present();
  for (std::size_t start = 0; start < postings.size(); start += 64) {
    const std::size_t n = std::min<std::size_t>(64, postings.size() - start);
    for (std::uint64_t bits = match_(postings.data() + start, n, list.range); bits != 0; bits &= bits - 1) {
      const std::uint32_t posting = postings[start + static_cast<std::size_t>(std::countr_zero(bits))];
      if (has_floor && weights.data()[posting] <= task_.rules.weight_floor) continue;
      list.matches.push_back({candidate.row, posting});
      prefetch(posting);
    }
  }
}

void GraphTokenScores::prefetch(std::uint32_t posting) const {
  const Segment& segment = *task_.plan.segment;
  if (segment.kind() == Kind::sparse) return __builtin_prefetch(segment.values.data() + 2 * std::uint64_t{posting});
  const std::uint8_t* codes = segment.codes.data() + posting * segment.code_bytes();
  for (std::uint64_t at = 0; at < segment.code_bytes(); at += 64) __builtin_prefetch(codes + at);
  if (segment.scales.present()) __builtin_prefetch(segment.scales.data() + 2 * std::uint64_t{posting});
}

// Add the values of a list's query tokens to the rows that have postings in it. A row's value is the largest of its postings'.
void GraphTokenScores::add_list(std::size_t number, Near* rows) {
  List& list = lists_[number];
  const Group& group = task_.plan.groups[number];
  const std::vector<Match>& matches = list.matches;
  copy_codes(list);
  values_.resize(matches.size());
  for (std::size_t token = group.first_token; token < group.first_token + group.tokens; ++token) {
    score(number, token, values_.data());
    for (std::size_t i = 0; i < matches.size();) {
      const std::uint32_t row = matches[i].row;
      float value = -std::numeric_limits<float>::infinity();
      for (; i < matches.size() && matches[i].row == row; ++i) value = values_[i] > value ? values_[i] : value;
      value = task_.rules.floor && !(value > 0.0f) ? 0.0f : value + 0.0f;
      rows[row].token_score += value;
      largest_[number] = std::max(largest_[number], value);
    }
  }
  largest_of_all_ = std::max(largest_of_all_, largest_[number]);
  sum_ = 0;
  for (const float largest : largest_) sum_ += largest < 0 ? largest_of_all_ : largest;
  dots_ += matches.size() * group.tokens;
}

// Put the codes of a list's matches one after another, as the kernels read them.
void GraphTokenScores::copy_codes(const List& list) {
  const Segment& segment = *task_.plan.segment;
  const bool is_sparse = segment.kind() == Kind::sparse;
  const std::size_t n = list.matches.size(), width = is_sparse ? 2 : segment.code_bytes();
  const std::uint8_t* codes = is_sparse ? segment.values.data() : segment.codes.data();
  codes_.resize(n * width);
  for (std::size_t i = 0; i < n; ++i) std::memcpy(codes_.data() + i * width, codes + list.matches[i].posting * width, width);
  if (is_sparse || segment.codec() != Codec::int8) return;
  scales_.resize(2 * n);
  for (std::size_t i = 0; i < n; ++i) std::memcpy(scales_.data() + 2 * i, segment.scales.data() + 2 * std::uint64_t{list.matches[i].posting}, 2);
}

// The exact scores of a list's matches with one query token.
void GraphTokenScores::score(std::size_t list, std::size_t token, float* out) {
  const Segment& segment = *task_.plan.segment;
  const Kernels& run = task_.query.kernels;
  const std::size_t n = lists_[list].matches.size();
  if (segment.kind() == Kind::sparse) return run.sparse(codes_.data(), n, task_.query.query.weights[token], out);
  if (segment.codec() == Codec::int8) return run.int8(codes_.data(), scales_.data(), n, segment.dimension(), task_.query.tokens.int8(token), out);
  if (segment.codec() == Codec::fp16) return run.fp16(codes_.data(), n, segment.dimension(), task_.query.tokens.floats(token), out);
  const Codebook* book = segment.codebook().get();
  run.pq(codes_.data(), n, book->subvectors(), task_.query.table(book, token), task_.plan.groups[list].scale, out);
}

}  // namespace citadel
