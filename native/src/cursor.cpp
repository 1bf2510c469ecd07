#include "citadel/cursor.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

namespace citadel {
namespace {

constexpr std::size_t kKeptStep = 128;   // kept postings scored together
constexpr std::uint64_t kPackedAhead = 256;  // packed bytes of a list that are prefetched before it is read
constexpr std::size_t kMaxMatched = 32;  // members looked up in a block; testing every document is faster beyond

// Prefetch into the L2 cache, leaving the few L1 miss buffers to demand loads.
void prefetch(const std::uint8_t* bytes, std::uint64_t begin, std::uint64_t end) {
  for (std::uint64_t at = begin; at < end; at += 64) __builtin_prefetch(bytes + at, 0, 2);
}

// Prefetch the cache line of a block's entry.
void prefetch_entry(const Section& entries, std::uint64_t at) { __builtin_prefetch(entries.data() + at, 0, 2); }

// The packed bytes of a block of `n` values, checked to lie within the list. Prefetches those of a later block.
const std::uint8_t* block_bytes(const Section& offsets, const Section& packed, std::uint64_t entry, std::size_t n, std::uint64_t end) {
  const std::uint64_t offset = entry & kOffsetMask;
  const auto bits = static_cast<unsigned>(entry >> kBitsShift);
  if (bits > 32) offsets.corrupt("a block claims " + std::to_string(bits) + " bits per value");
  if (offset > end || packed_bytes(n, bits) > end - offset) offsets.corrupt("a block's bytes lie outside its list");
  const std::uint64_t ahead = offset + kPrefetchDistance / kBlock * packed_bytes(n, bits);
  prefetch(packed.data(), ahead, std::min(ahead + 128, packed.size()));
  return packed.data() + offset;
}

// Scalar additions: a document can occur twice, the second time with value 0.
void add_values(float* accumulators, std::uint32_t base, const std::uint32_t* documents, const float* values, std::size_t n) {
  const std::uintptr_t origin = reinterpret_cast<std::uintptr_t>(accumulators) - 4 * std::uintptr_t{base};  // address for document 0
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

// Append the offsets of untouched accumulators, once each. Returns the new number of entries.
std::size_t list_touched(const float* accumulators, std::uint32_t base, const std::uint32_t* documents, std::size_t n,
                         std::uint32_t* touched, std::size_t count) {
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t offset = documents[i] - base;
    const bool repeated = i > 0 && documents[i] == documents[i - 1];
    touched[count] = offset;
    count += std::bit_cast<std::uint32_t>(accumulators[offset]) == kUntouched && !repeated;
  }
  return count;
}

// Bytes per posting that `gather` copies; bm25 has its counts instead.
std::uint64_t row_bytes(const Segment& segment) {
  if (segment.kind() == Kind::vectors) return segment.code_bytes();
  return segment.kind() == Kind::sparse ? 2 : 0;
}

const std::uint8_t* row_data(const Segment& segment) { return segment.kind() == Kind::vectors ? segment.codes.data() : segment.values.data(); }

}  // namespace

void prefetch_list(const Segment& segment, const ListView& list) {
  if (list.first == list.last) return;
  const std::uint64_t packed = load<std::uint64_t>(segment.block_offsets.data(), list.first_block) & kOffsetMask;
  const std::uint64_t end = std::min(list.first + kPrefetchDistance, list.last), width = row_bytes(segment);
  prefetch(segment.packed_documents.data(), packed, std::min(packed + kPackedAhead, list.packed_end));
  prefetch(row_data(segment), list.first * width, end * width);
  if (segment.scales.present()) prefetch(segment.scales.data(), 2 * list.first, 2 * end);
}

Cursor::Cursor(const Segment& segment, const Group& group, const PreparedQuery& query, const ScoringRules& rules, const Cancel* cancel,
               const DocumentSet* selected)
    : segment_(segment), group_(group), query_(query), rules_(rules), cancel_(cancel), selected_(selected),
      block_(group.list.first_block), posting_(group.list.first), carried_(group.tokens), values_(group.tokens * kStride) {
  if (selected != nullptr) gathered_.resize(kMaxGathered * (row_bytes(segment) + 2) + 64);  // kernels may load a whole register
}

void Cursor::use_kept(bool keeps) {
  SelectedLists& lists = selected_->lists();
  kept_ = lists.find(group_.number);
  // Postings are not spread evenly over documents, so this is an estimate; `keep` checks the size.
  const std::uint64_t length = group_.list.last - group_.list.first;
  const auto expected = static_cast<double>(length) * static_cast<double>(selected_->count()) / static_cast<double>(std::max<std::uint64_t>(1, segment_.documents()));
  if (kept_ != nullptr || !keeps || length > UINT32_MAX || !lists.has_room(static_cast<std::uint64_t>(8 * expected))) return;
  kept_ = select_list();
  lists.keep(group_.number, kept_);
}

std::vector<std::uint32_t> Cursor::documents() {
  std::vector<std::uint32_t> out;
  out.reserve(group_.list.last - group_.list.first);
  for (; posting_ < group_.list.last; ++block_) {
    poll(cancel_);
    const std::size_t n = block_size();
    decode(n, documents_ + kFront);
    out.insert(out.end(), documents_ + kFront, documents_ + kFront + n);
    posting_ += n;
  }
  return out;
}

std::shared_ptr<const SelectedPostings> Cursor::select_list() {
  auto out = std::make_shared<SelectedPostings>();
  const std::uint64_t block = block_, posting = posting_;
  for (skip_blocks(); posting_ < group_.list.last; skip_blocks()) {
    poll(cancel_);
    const std::size_t n = select_block(0);
    out->documents.insert(out->documents.end(), documents_ + kFront, documents_ + kFront + n);
    for (std::size_t i = 0; i < n; ++i) out->postings.push_back(static_cast<std::uint32_t>(postings_[i] - group_.list.first));
    if (segment_.kind() == Kind::bm25) out->counts.insert(out->counts.end(), counts_, counts_ + n);
  }
  block_ = block, posting_ = posting, last_document_ = 0;
  out->documents.shrink_to_fit(), out->postings.shrink_to_fit(), out->counts.shrink_to_fit();
  return out;
}

void Cursor::seek(std::uint64_t document) {
  if (kept_ != nullptr) {
    next_kept_ = static_cast<std::size_t>(std::lower_bound(kept_->documents.begin(), kept_->documents.end(), document) - kept_->documents.begin());
    return;
  }
  const std::uint8_t* firsts = segment_.block_documents.data();
  std::uint64_t low = group_.list.first_block, high = group_.list.last_block;
  while (low < high) {  // find the first block starting at or after the document; the one before may contain it
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

// Load blocks until at least one entry is final: the maximum of its run, floored.
bool Cursor::fill() {
  while (!is_done()) {
    poll(cancel_);
    std::size_t begin = kFront, end = kFront + (selected_ == nullptr ? load_block() : kept_ != nullptr ? load_kept() : load_selected());
    if (carries_) begin = restore_carried(end);
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

std::size_t Cursor::block_size() const { return static_cast<std::size_t>(std::min<std::uint64_t>(kBlock, group_.list.last - posting_)); }

// Skip blocks that hold no selected document. A block's documents lie between its first one and that of the next block.
void Cursor::skip_blocks() {
  if (posting_ >= group_.list.last) return;
  const std::uint8_t* firsts = segment_.block_documents.data();
  const std::uint64_t next = selected_->next(load<std::uint32_t>(firsts, block_));
  if (next != DocumentSet::kEnd) {
    std::uint64_t low = block_ + 1, step = 1;  // the first block after this one that starts at or after `next`
    while (low + step <= group_.list.last_block && load<std::uint32_t>(firsts, low + step - 1) < next) low += step, step *= 2;
    std::uint64_t high = std::min(low + step - 1, group_.list.last_block);
    while (low < high) {
      const std::uint64_t middle = low + (high - low) / 2;
      if (load<std::uint32_t>(firsts, middle) < next) low = middle + 1;
      else high = middle;
    }
    block_ = low - 1;
  } else {
    block_ = group_.list.last_block;
  }
  posting_ = std::min(group_.list.first + (block_ - group_.list.first_block) * kBlock, group_.list.last);
}

// Decode and score the next block. Returns the number of postings that pass the weight floor.
std::size_t Cursor::load_block() {
  const std::size_t n = block_size();
  decode(n, documents_ + kFront);
  if (segment_.kind() == Kind::bm25) decode_counts(n, counts_);
  prefetch_rows();
  score(n);
  const bool filtered = rules_.weight_floor > 0 && segment_.weights.present();
  const std::size_t kept = filtered ? drop_light(n, segment_.weights.data() + posting_) : n;
  posting_ += n, ++block_;
  return kept;
}

// Gather postings of selected documents from several blocks and score them together: their rows lie far apart, so the
// first ones arrive from memory while later blocks are decoded.
std::size_t Cursor::load_selected() {
  std::size_t n = 0;
  for (skip_blocks(); n <= kMaxGathered - kBlock && posting_ < group_.list.last; skip_blocks()) n += select_block(n);
  return score_selected(n);
}

// Score `n` selected postings. Returns the number of those that pass the weight floor.
std::size_t Cursor::score_selected(std::size_t n) {
  if (n == 0) return 0;
  gather(n);
  score(n);
  if (rules_.weight_floor == 0 || !segment_.weights.present()) return n;
  std::uint8_t weights[kMaxGathered];
  for (std::size_t i = 0; i < n; ++i) weights[i] = segment_.weights.data()[postings_[i]];
  return drop_light(n, weights);
}

// Score the next postings of those kept; the rows after them arrive from memory meanwhile.
std::size_t Cursor::load_kept() {
  const std::size_t left = kept_->documents.size() - next_kept_, n = std::min(kKeptStep, left);
  if (next_kept_ == 0) prefetch_kept(0, n);
  prefetch_kept(next_kept_ + n, std::min(kKeptStep, left - n));
  for (std::size_t i = 0; i < n; ++i) {
    documents_[kFront + i] = kept_->documents[next_kept_ + i];
    postings_[i] = group_.list.first + kept_->postings[next_kept_ + i];
  }
  if (segment_.kind() == Kind::bm25) std::copy_n(kept_->counts.begin() + static_cast<std::ptrdiff_t>(next_kept_), n, counts_);
  next_kept_ += n;
  return score_selected(n);
}

void Cursor::prefetch_kept(std::size_t first, std::size_t n) {
  if (segment_.kind() == Kind::bm25) return;
  for (std::size_t i = 0; i < n; ++i) postings_[i] = group_.list.first + kept_->postings[first + i];
  prefetch_selected(0, n);
}

// The positions of selected documents in a decoded block.
std::size_t Cursor::select_positions(const std::uint32_t* documents, std::size_t n, std::uint32_t* positions) const {
  if (n == kBlock && selected_->is_listed() && documents[n - 1] - documents[0] >= query_.kernels.near_span) {
    const auto members = selected_->between(documents[0], documents[n - 1]);
    if (members.size() <= kMaxMatched) return query_.kernels.match(documents, members.data(), members.size(), positions);
  }
  return query_.kernels.select(documents, n, selected_->words(), positions);
}

// Append the selected postings of the next block behind the `staged` ones before it. Returns their number.
std::size_t Cursor::select_block(std::size_t staged) {
  alignas(64) std::uint32_t documents[kBlock], counts[kBlock], positions[kBlock + 16];
  const std::size_t n = block_size();
  decode(n, documents);
  const std::size_t kept = select_positions(documents, n, positions);
  if (kept > 0 && segment_.kind() == Kind::bm25) decode_counts(n, counts);
  for (std::size_t i = 0; i < kept; ++i) {
    documents_[kFront + staged + i] = documents[positions[i]];
    postings_[staged + i] = posting_ + positions[i];
  }
  if (segment_.kind() == Kind::bm25)
    for (std::size_t i = 0; i < kept; ++i) counts_[staged + i] = counts[positions[i]];
  else prefetch_selected(staged, kept);
  posting_ += n, ++block_;
  return kept;
}

void Cursor::prefetch_selected(std::size_t first, std::size_t n) const {
  const std::uint64_t width = row_bytes(segment_);
  const std::uint8_t* rows = row_data(segment_);
  const std::uint8_t* scales = segment_.scales.present() ? segment_.scales.data() : nullptr;
  for (std::size_t i = first; i < first + n; ++i) {
    const std::uint8_t* row = rows + postings_[i] * width;
    __builtin_prefetch(row);
    if ((reinterpret_cast<std::uintptr_t>(row) & 63) + width > 64) __builtin_prefetch(row + width - 1);
    if (scales != nullptr) __builtin_prefetch(scales + 2 * postings_[i]);
  }
}

// Copy the rows of the selected postings.
void Cursor::gather(std::size_t n) {
  const std::uint64_t width = row_bytes(segment_);
  if (width == 0) return;  // bm25 has no rows
  const std::uint8_t* rows = row_data(segment_);
  std::uint8_t* out = gathered_.data();
  if (width == 32)  // a constant size is copied in registers
    for (std::size_t i = 0; i < n; ++i) std::memcpy(out + 32 * i, rows + 32 * postings_[i], 32);
  else
    for (std::size_t i = 0; i < n; ++i) std::memcpy(out + i * width, rows + postings_[i] * width, width);
  if (!segment_.scales.present()) return;
  std::uint8_t* scales = out + kMaxGathered * width;
  for (std::size_t i = 0; i < n; ++i) std::memcpy(scales + 2 * i, segment_.scales.data() + 2 * postings_[i], 2);
}

// The documents of the next block of `n` postings.
void Cursor::decode(std::size_t n, std::uint32_t* documents) {
  const std::uint64_t block = block_;
  const auto first = load<std::uint32_t>(segment_.block_documents.data(), block);
  const auto entry = load<std::uint64_t>(segment_.block_offsets.data(), block);
  const std::uint8_t* bytes = block_bytes(segment_.block_offsets, segment_.packed_documents, entry, n - 1, group_.list.packed_end);
  const auto readable = static_cast<std::uint64_t>(segment_.packed_documents.data() + segment_.packed_documents.size() - bytes);
  prefetch_entry(segment_.block_documents, 4 * (block + 16));
  prefetch_entry(segment_.block_offsets, 8 * (block + 8));
  if (first < last_document_ && block > group_.list.first_block) segment_.block_documents.corrupt("document numbers decrease");
  const std::uint64_t last = query_.kernels.unpack_documents(bytes, readable, static_cast<unsigned>(entry >> kBitsShift), first, n - 1, documents);
  if (last >= segment_.documents()) segment_.packed_documents.corrupt("document number " + std::to_string(last) + " does not exist");
  last_document_ = static_cast<std::uint32_t>(last);
}

void Cursor::decode_counts(std::size_t n, std::uint32_t* counts) {
  const auto entry = load<std::uint64_t>(segment_.count_offsets.data(), block_);
  const std::uint8_t* at = block_bytes(segment_.count_offsets, segment_.packed_counts, entry, n, group_.list.counts_end);
  const auto left = static_cast<std::uint64_t>(segment_.packed_counts.data() + segment_.packed_counts.size() - at);
  query_.kernels.unpack_counts(at, left, static_cast<unsigned>(entry >> kBitsShift), n, counts);
}

Rows Cursor::rows() const {
  const std::uint64_t width = row_bytes(segment_);
  if (selected_ != nullptr) return {gathered_.data(), gathered_.data() + kMaxGathered * width};
  if (segment_.kind() == Kind::sparse) return {segment_.values.data() + 2 * posting_, nullptr};
  return {segment_.codes.data() + posting_ * width, segment_.scales.present() ? segment_.scales.data() + 2 * posting_ : nullptr};
}

void Cursor::score(std::size_t n) {
  scored_ += n * group_.tokens;
  for (std::size_t token = 0; token < group_.tokens; ++token) score_token(group_.first_token + token, n, values(token) + kFront);
}

void Cursor::prefetch_rows() const {
  if (segment_.kind() == Kind::vectors) {
    const std::uint64_t width = segment_.code_bytes();
    const std::uint64_t begin = std::min(posting_ + kPrefetchDistance, group_.list.last);
    const std::uint64_t end = std::min(begin + kBlock, group_.list.last);
    const bool self_prefetching = segment_.codec() == Codec::int8 && segment_.dimension() == query_.kernels.prefetched;
    if (!self_prefetching) prefetch(segment_.codes.data(), begin * width, end * width);
    if (segment_.scales.present()) prefetch(segment_.scales.data(), 2 * begin, 2 * end);
  }
}

void Cursor::score_token(std::size_t token, std::size_t n, float* out) {
  const Kernels& run = query_.kernels;
  if (segment_.kind() == Kind::bm25)
    return run.bm25(documents_ + kFront, segment_.lengths.data(), counts_, n, rules_.norm_base, rules_.norm_slope,
                    query_.query.weights[token], out);
  const Rows stored = rows();
  if (segment_.kind() == Kind::sparse) return run.sparse(stored.codes, n, query_.query.weights[token], out);
  if (segment_.codec() == Codec::int8)
    return run.int8(stored.codes, stored.scales, n, segment_.dimension(), query_.tokens.int8(token), out);
  if (segment_.codec() == Codec::fp16) return run.fp16(stored.codes, n, segment_.dimension(), query_.tokens.floats(token), out);
  const Codebook* book = segment_.codebook().get();
  run.pq(stored.codes, n, book->subvectors(), query_.table(book, token), group_.scale, out);
}

// Drop postings whose weight is at or below the floor (a threshold τ raised at search time).
std::size_t Cursor::drop_light(std::size_t n, const std::uint8_t* weights) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < n; ++i) {
    documents_[kFront + kept] = documents_[kFront + i];
    for (std::size_t token = 0; token < group_.tokens; ++token) values(token)[kFront + kept] = values(token)[kFront + i];
    kept += weights[i] > rules_.weight_floor;
  }
  return kept;
}

// Merge the carried-over entry into the first entry if that is the same document, else prepend it. Returns the first entry.
std::size_t Cursor::restore_carried(std::size_t end) {
  const bool continues = end > kFront && documents_[kFront] == carried_document_;
  const std::size_t first = continues ? kFront : kFront - 1;
  documents_[first] = carried_document_;
  for (std::size_t token = 0; token < group_.tokens; ++token) {
    float& value = values(token)[first];
    value = continues ? std::max(value, carried_[token]) : carried_[token];
  }
  return first;
}

// Whether the next posting to load may be of this document.
bool Cursor::continues(std::uint32_t document) const {
  if (kept_ != nullptr) return next_kept_ < kept_->documents.size() && kept_->documents[next_kept_] == document;
  return block_ < group_.list.last_block && load<std::uint32_t>(segment_.block_documents.data(), block_) == document;
}

// Carry over the last run if it may continue in the next block. Returns the end of the final entries.
std::size_t Cursor::hold_back(std::size_t begin, std::size_t end) {
  const std::uint32_t document = documents_[end - 1];
  if (!continues(document)) return end;
  std::size_t start = end - 1;
  while (start > begin && documents_[start - 1] == document) --start;
  carries_ = true;
  carried_document_ = document;
  for (std::size_t token = 0; token < group_.tokens; ++token) carried_[token] = values(token)[start];
  return start;
}

}  // namespace citadel
