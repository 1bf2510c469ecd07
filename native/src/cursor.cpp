#include "citadel/cursor.hpp"

#include <algorithm>
#include <bit>
#include <string>

namespace citadel {
namespace {

// Into the L2 cache; the few slots for misses of the L1 cache are better left to the loads themselves.
void prefetch(const std::uint8_t* bytes, std::uint64_t begin, std::uint64_t end) {
  for (std::uint64_t at = begin; at < end; at += 64) __builtin_prefetch(bytes + at, 0, 2);
}

// The line of a block's entry, some blocks before it is read.
void prefetch_entry(const Section& entries, std::uint64_t at) { __builtin_prefetch(entries.data() + at, 0, 2); }

// The bytes of `n` values at a block's entry, checked to end within the list's.
const std::uint8_t* block_bytes(const Section& offsets, const Section& packed, std::uint64_t entry, std::size_t n, std::uint64_t end) {
  const std::uint64_t offset = entry & kOffsetMask;
  const auto bits = static_cast<unsigned>(entry >> kBitsShift);
  if (bits > 32) offsets.corrupt("a block claims " + std::to_string(bits) + " bits a value");
  if (offset > end || packed_bytes(n, bits) > end - offset) offsets.corrupt("a block's bytes lie outside its list");
  const std::uint64_t ahead = offset + kAhead / kBlock * packed_bytes(n, bits);
  prefetch(packed.data(), ahead, std::min(ahead + 128, packed.size()));
  return packed.data() + offset;
}

// One after the other: a document may stand here twice, its second value being 0.
void add_values(float* accumulators, std::uint32_t base, const std::uint32_t* documents, const float* values, std::size_t n) {
  const std::uintptr_t origin = reinterpret_cast<std::uintptr_t>(accumulators) - 4 * std::uintptr_t{base};  // of document 0
  const auto at = [=](std::size_t i) { return reinterpret_cast<float*>(origin + 4 * std::uintptr_t{documents[i]}); };
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    *at(i) += values[i];
    *at(i + 1) += values[i + 1];
    *at(i + 2) += values[i + 2];
    *at(i + 3) += values[i + 3];
  }
  for (; i < n; ++i) *at(i) += values[i];
}

// Append the places of accumulators that are still untouched, once each; gives how many entries there are now.
std::size_t list_touched(const float* accumulators, std::uint32_t base, const std::uint32_t* documents, std::size_t n,
                         std::uint32_t* touched, std::size_t count) {
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t place = documents[i] - base;
    const bool repeated = i > 0 && documents[i] == documents[i - 1];
    touched[count] = place;
    count += std::bit_cast<std::uint32_t>(accumulators[place]) == kUntouched && !repeated;
  }
  return count;
}

}  // namespace

Cursor::Cursor(const Segment& segment, const Group& group, const PreparedQuery& query, const ScoringRules& rules, const Cancel* cancel)
    : segment_(segment), group_(group), query_(query), rules_(rules), cancel_(cancel), block_(group.list.first_block),
      posting_(group.list.first), carried_(group.tokens), values_(group.tokens * kStride) {}

void Cursor::seek(std::uint64_t document) {
  const std::uint8_t* firsts = segment_.block_documents.data();
  std::uint64_t low = group_.list.first_block, high = group_.list.last_block;
  while (low < high) {  // the first block that starts at or behind the document; the one before may hold it
    const std::uint64_t middle = low + (high - low) / 2;
    if (load<std::uint32_t>(firsts, middle) < document) low = middle + 1;
    else high = middle;
  }
  block_ = std::max(low, group_.list.first_block + 1) - 1;
  if (group_.list.first == group_.list.last) block_ = group_.list.first_block;
  posting_ = group_.list.first + (block_ - group_.list.first_block) * kBlock;
  while (next_document() < document) position_ = limit_position(document);
}

std::size_t Cursor::limit_position(std::uint64_t limit) const {
  if (documents_[end_ - 1] < limit) return end_;
  return static_cast<std::size_t>(std::lower_bound(documents_ + position_, documents_ + end_, limit) - documents_);
}

template <class Clock>
std::size_t Cursor::add(float* accumulators, std::uint64_t base, std::uint64_t limit, std::uint32_t* touched, std::size_t count,
                        std::size_t capacity, Clock& clock) {
  while (next_document() < limit) {
    clock(Stage::token);
    const std::size_t stop = limit_position(limit), n = stop - position_;
    const std::uint32_t* documents = documents_ + position_;
    const auto first = static_cast<std::uint32_t>(base);
    if (count < capacity) count = list_touched(accumulators, first, documents, n, touched, count);
    for (std::size_t token = 0; token < group_.tokens; ++token) add_values(accumulators, first, documents, values(token) + position_, n);
    position_ = stop;
    clock(Stage::add);
  }
  clock(Stage::token);
  return count;
}

template std::size_t Cursor::add(float*, std::uint64_t, std::uint64_t, std::uint32_t*, std::size_t, std::size_t, NoClock&);
template std::size_t Cursor::add(float*, std::uint64_t, std::uint64_t, std::uint32_t*, std::size_t, std::size_t, StageClock&);

// Load blocks until there is an entry to give; every entry given is final: the maximum of its run, floored.
bool Cursor::fill() {
  while (posting_ < group_.list.last) {
    poll(cancel_);
    std::size_t begin = kFront, end = kFront + load_block();
    if (carries_) begin = put_carried(end);
    carries_ = false;
    if (begin == end) continue;
    for (std::size_t token = 0; token < group_.tokens; ++token)
      query_.kernels.finish(documents_ + begin, values(token) + begin, end - begin, rules_.floor);
    end = hold_back(begin, end);
    position_ = begin, end_ = end;
    if (begin < end) return true;
  }
  return false;
}

// Decode and score the next block; gives how many of its postings count.
std::size_t Cursor::load_block() {
  const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(kBlock, group_.list.last - posting_));
  decode(block_, n);
  score(n);
  const bool light = rules_.weight_floor > 0 && segment_.weights.present();
  const std::size_t kept = light ? drop_light(n) : n;
  posting_ += n, ++block_;
  return kept;
}

void Cursor::decode(std::uint64_t block, std::size_t n) {
  const auto first = load<std::uint32_t>(segment_.block_documents.data(), block);
  const auto entry = load<std::uint64_t>(segment_.block_offsets.data(), block);
  const std::uint8_t* bytes = block_bytes(segment_.block_offsets, segment_.packed_documents, entry, n - 1, group_.list.packed_end);
  const auto readable = static_cast<std::uint64_t>(segment_.packed_documents.data() + segment_.packed_documents.size() - bytes);
  prefetch_entry(segment_.block_documents, 4 * (block + 16));
  prefetch_entry(segment_.block_offsets, 8 * (block + 8));
  if (first < last_document_ && block > group_.list.first_block) segment_.block_documents.corrupt("document numbers decrease");
  const std::uint64_t last = query_.kernels.unpack_documents(bytes, readable, static_cast<unsigned>(entry >> kBitsShift), first, n - 1, documents_ + kFront);
  if (last >= segment_.documents()) segment_.packed_documents.corrupt("document number " + std::to_string(last) + " does not exist");
  last_document_ = static_cast<std::uint32_t>(last);
  if (segment_.kind() != Kind::bm25) return;
  const auto counts = load<std::uint64_t>(segment_.count_offsets.data(), block);
  const std::uint8_t* at = block_bytes(segment_.count_offsets, segment_.packed_counts, counts, n, group_.list.counts_end);
  const auto left = static_cast<std::uint64_t>(segment_.packed_counts.data() + segment_.packed_counts.size() - at);
  query_.kernels.unpack_counts(at, left, static_cast<unsigned>(counts >> kBitsShift), n, counts_);
}

void Cursor::score(std::size_t n) {
  if (segment_.kind() == Kind::vectors) {
    const std::uint64_t width = segment_.code_bytes();
    const std::uint64_t begin = std::min(posting_ + kAhead, group_.list.last);
    const std::uint64_t end = std::min(begin + kBlock, group_.list.last);
    const bool itself = segment_.codec() == Codec::int8 && segment_.dimension() == query_.kernels.prefetched;
    if (!itself) prefetch(segment_.codes.data(), begin * width, end * width);
    if (segment_.scales.present()) prefetch(segment_.scales.data(), 2 * begin, 2 * end);
  }
  for (std::size_t token = 0; token < group_.tokens; ++token) score_token(group_.first_token + token, n, values(token) + kFront);
}

void Cursor::score_token(std::size_t token, std::size_t n, float* out) {
  const Kernels& run = query_.kernels;
  if (segment_.kind() == Kind::bm25)
    return run.bm25(documents_ + kFront, segment_.lengths.data(), counts_, n, rules_.norm_base, rules_.norm_slope,
                    query_.query.weights[token], out);
  if (segment_.kind() == Kind::sparse) return run.sparse(segment_.values.data() + 2 * posting_, n, query_.query.weights[token], out);
  const std::uint8_t* codes = segment_.codes.data() + posting_ * segment_.code_bytes();
  if (segment_.codec() == Codec::int8)
    return run.int8(codes, segment_.scales.data() + 2 * posting_, n, segment_.dimension(), query_.tokens.int8(token), out);
  if (segment_.codec() == Codec::fp16) return run.fp16(codes, n, segment_.dimension(), query_.tokens.floats(token), out);
  const Codebook* book = segment_.codebook().get();
  run.pq(codes, n, book->subvectors(), query_.table(book, token), group_.scale, out);
}

// τ raised at search time: postings of a weight at or below the floor are as if absent.
std::size_t Cursor::drop_light(std::size_t n) {
  const std::uint8_t* weights = segment_.weights.data() + posting_;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < n; ++i) {
    documents_[kFront + kept] = documents_[kFront + i];
    for (std::size_t token = 0; token < group_.tokens; ++token) values(token)[kFront + kept] = values(token)[kFront + i];
    kept += weights[i] > rules_.weight_floor;
  }
  return kept;
}

// What the last block held back goes into the first entry of its document, or before it where τ dropped that one.
std::size_t Cursor::put_carried(std::size_t end) {
  const bool goes_on = end > kFront && documents_[kFront] == carried_document_;
  const std::size_t place = goes_on ? kFront : kFront - 1;
  documents_[place] = carried_document_;
  for (std::size_t token = 0; token < group_.tokens; ++token) {
    float& value = values(token)[place];
    value = goes_on ? std::max(value, carried_[token]) : carried_[token];
  }
  return place;
}

// A run that may go on in the next block waits for it; gives where the entries that are final end.
std::size_t Cursor::hold_back(std::size_t begin, std::size_t end) {
  const std::uint32_t document = documents_[end - 1];
  if (block_ >= group_.list.last_block || load<std::uint32_t>(segment_.block_documents.data(), block_) != document) return end;
  std::size_t start = end - 1;
  while (start > begin && documents_[start - 1] == document) --start;
  carries_ = true;
  carried_document_ = document;
  for (std::size_t token = 0; token < group_.tokens; ++token) carried_[token] = values(token)[start];
  return start;
}

}  // namespace citadel
