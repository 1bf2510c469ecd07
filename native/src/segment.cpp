#include "citadel/segment.hpp"

#include <algorithm>
#include <stdexcept>
#include <string_view>

namespace citadel {
namespace {

Kind parse_kind(const std::string& kind) {
  if (kind == "vectors") return Kind::vectors;
  if (kind == "centroid") return Kind::centroid;
  if (kind == "sparse") return Kind::sparse;
  if (kind == "bm25") return Kind::bm25;
  if (kind == "none") return Kind::none;
  throw std::invalid_argument("unknown kind '" + kind + "': vectors, centroid, sparse, bm25 or none");
}

// Bits per dimension of a residual; 0 for another codec.
unsigned residual_bits(const std::string& codec) { return codec == "residual1" ? 1 : codec == "residual2" ? 2 : codec == "residual4" ? 4 : 0; }

void check_length(const Section& section, std::uint64_t expected) {
  if (section.size() != expected)
    section.corrupt("has " + std::to_string(section.size()) + " bytes, not " + std::to_string(expected));
}

std::uint64_t count_live(const std::uint8_t* deleted, std::uint64_t documents) {
  if (deleted == nullptr) return documents;
  std::uint64_t deletions = 0;
  for (std::uint64_t byte = 0; byte < documents / 8; ++byte) deletions += static_cast<std::uint64_t>(std::popcount(deleted[byte]));
  for (std::uint64_t n = documents / 8 * 8; n < documents; ++n) deletions += deleted[n >> 3] >> (n & 7) & 1;
  return documents - deletions;
}

// The index of the first of `count` ascending elements for which `below` is false.
template <typename Below>
std::uint64_t lower_bound(std::uint64_t count, Below below) {
  std::uint64_t low = 0, high = count;
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (below(middle)) low = middle + 1;
    else high = middle;
  }
  return low;
}

}  // namespace

Segment::Segment(SegmentShape shape, const std::map<std::string, SectionBytes>& sections, const std::uint8_t* deleted,
                 std::shared_ptr<const Codebook> codebook)
    : name_(std::move(shape.name)), documents_(shape.documents), live_(count_live(deleted, shape.documents)),
      kind_(parse_kind(shape.kind)), dimension_(shape.dimension), semantic_dimension_(shape.semantic_dimension),
      deleted_(deleted), codebook_(std::move(codebook)) {
  if (documents_ > UINT32_MAX) throw CorruptError(name_, "META", "claims more than 2^32 - 1 documents");
  if (dimension_ > 65536 || semantic_dimension_ > 65536) throw CorruptError(name_, "META", "claims a dimension above 65536");
  const bool pq = shape.codec == "pq1" || shape.codec == "pq2";
  const std::uint64_t sub = shape.codec == "pq1" ? 8 : 4;
  codec_ = pq ? Codec::pq : shape.codec == "int8" ? Codec::int8 : Codec::fp16;
  semantic_codec_ = shape.semantic_codec == "int8" ? Codec::int8 : Codec::fp16;
  if (kind_ == Kind::vectors) {
    if (!pq && shape.codec != "int8" && shape.codec != "fp16") throw std::invalid_argument("unknown codec '" + shape.codec + "'");
    if (pq && codebook_ == nullptr) throw std::invalid_argument("a " + shape.codec + " segment needs a codebook");
    if (pq && (codebook_->dimension() != dimension_ || codebook_->sub() != sub))
      throw CorruptError(name_, "META", "the codebook has a different dimension or codec");
    code_bytes_ = pq ? codebook_->subvectors() : codec_ == Codec::int8 ? dimension_ : 2 * dimension_;
  }
  if (kind_ == Kind::centroid) {
    bits_ = residual_bits(shape.codec);
    if (bits_ == 0 && shape.codec != "int8") throw std::invalid_argument("unknown codec '" + shape.codec + "'");
    if (bits_ != 0 && dimension_ % 8 != 0) throw CorruptError(name_, "META", "residuals need a dimension divisible by 8");
    code_bytes_ = bits_ == 0 ? dimension_ : dimension_ * bits_ / 8;
  }
  if (semantic_dimension_ > 0 && shape.semantic_codec != "int8" && shape.semantic_codec != "fp16")
    throw std::invalid_argument("unknown semantic codec '" + shape.semantic_codec + "'");
  for (const auto& [_, bytes] : sections)
    if (bytes.size > 0 && mapping_ == kUnwatched) mapping_ = find_mapping(bytes.data);
  if (kind_ != Kind::none) take_lexical(sections), take_payload(sections);
  if (semantic_dimension_ > 0) take_semantic(sections);
}

Section Segment::take(const std::map<std::string, SectionBytes>& sections, const std::string& name, bool required) const {
  const auto it = sections.find(name);
  if (it == sections.end()) {
    if (required) throw CorruptError(name_, name, "is missing");
    return {};
  }
  const SectionBytes& bytes = it->second;
  return Section(name_, name, bytes.data, bytes.size, bytes.crcs, bytes.crc_count);
}

void Segment::take_lexical(const std::map<std::string, SectionBytes>& sections) {
  list_starts = take(sections, "LIST_STARTS", true);
  block_starts = take(sections, "BLOCK_STARTS", true);
  block_documents = take(sections, "BLOCK_DOCUMENTS", true);
  block_offsets = take(sections, "BLOCK_OFFSETS", true);
  packed_documents = take(sections, "PACKED_DOCUMENTS", true);
  if (list_starts.size() < 8 || list_starts.size() % 8 != 0) list_starts.corrupt("has a length that is not a multiple of 8");
  lists_ = list_starts.size() / 8 - 1;
  postings_ = list_starts.at<std::uint64_t>(lists_);
  blocks_ = block_documents.size() / 4;
  check_length(block_starts, list_starts.size());
  check_length(block_documents, 4 * blocks_);
  check_length(block_offsets, 8 * (blocks_ + 1));
  if (packed_documents.size() < kPadding) packed_documents.corrupt("is shorter than its padding");
}

void Segment::take_payload(const std::map<std::string, SectionBytes>& sections) {
  if (kind_ == Kind::bm25) {
    term_offsets = take(sections, "TERM_OFFSETS", true);
    term_bytes = take(sections, "TERM_BYTES", true);
    lengths = take(sections, "LENGTHS", true);
    count_offsets = take(sections, "COUNT_OFFSETS", true);
    packed_counts = take(sections, "PACKED_COUNTS", true);
    check_length(term_offsets, list_starts.size());
    check_length(lengths, 4 * documents_);
    check_length(count_offsets, block_offsets.size());
    if (packed_counts.size() < kPadding) packed_counts.corrupt("is shorter than its padding");
    return;
  }
  keys = take(sections, "KEYS", true);
  check_length(keys, 4 * lists_);
  if (kind_ == Kind::centroid) return take_tokens(sections);
  weights = take(sections, "WEIGHTS", false);
  if (weights.present()) check_length(weights, postings_);
  if (kind_ == Kind::sparse) {
    values = take(sections, "VALUES", true);
    check_length(values, saturating_product(postings_, 2));
    return;
  }
  codes = take(sections, "CODES", true);
  check_length(codes, saturating_product(postings_, code_bytes_));
  if (codec_ != Codec::int8) return;
  scales = take(sections, "SCALES", true);
  check_length(scales, saturating_product(postings_, 2));
}

void Segment::take_tokens(const std::map<std::string, SectionBytes>& sections) {
  token_starts = take(sections, "TOKEN_STARTS", true);
  check_length(token_starts, 8 * (documents_ + 1));
  codes = take(sections, "CODES", true);
  tokens_ = codes.size() / std::max<std::uint64_t>(code_bytes_, 1);
  check_length(codes, tokens_ * code_bytes_);
  scales = take(sections, "SCALES", true);
  check_length(scales, (bits_ == 0 ? 2 : 1) * tokens_);
  token_centroids = take(sections, "TOKEN_CENTROIDS", bits_ != 0);
  if (token_centroids.present()) check_length(token_centroids, 2 * tokens_);
}

Span Segment::tokens(std::uint64_t document, const Cancel* cancel) const {
  const Span span = checked_span(token_starts, document, tokens_);
  codes.verify(span.begin * code_bytes_, span.end * code_bytes_, cancel);
  const std::uint64_t width = bits_ == 0 ? 2 : 1;
  scales.verify(width * span.begin, width * span.end, cancel);
  if (bits_ != 0) token_centroids.verify(2 * span.begin, 2 * span.end, cancel);
  return span;
}

void Segment::take_semantic(const std::map<std::string, SectionBytes>& sections) {
  const bool int8 = semantic_codec_ == Codec::int8;
  semantic_codes = take(sections, "SEMANTIC_CODES", true);
  check_length(semantic_codes, documents_ * semantic_dimension_ * (int8 ? 1 : 2));
  if (int8) semantic_scales = take(sections, "SEMANTIC_SCALES", true), check_length(semantic_scales, 2 * documents_);
  probe_centroids = take(sections, "PROBE_CENTROIDS", false);
  if (!probe_centroids.present()) return;
  probe_starts = take(sections, "PROBE_STARTS", true);
  probe_documents = take(sections, "PROBE_DOCUMENTS", true);
  probe_lists_ = probe_centroids.size() / (4 * semantic_dimension_);
  check_length(probe_centroids, probe_lists_ * 4 * semantic_dimension_);
  check_length(probe_starts, 8 * (probe_lists_ + 1));
  check_length(probe_documents, 4 * documents_);
}

Span Segment::checked_span(const Section& starts, std::uint64_t index, std::uint64_t limit) const {
  const Span span{starts.at<std::uint64_t>(index), starts.at<std::uint64_t>(index + 1)};
  if (span.begin > span.end || span.end > limit) starts.corrupt("list " + std::to_string(index) + " lies outside the segment");
  return span;
}

// Verify the list's packed bytes and return their end.
std::uint64_t Segment::checked_packed(const Section& offsets, const Section& packed, const ListView& list, const Cancel* cancel) const {
  offsets.verify(8 * list.first_block, 8 * (list.last_block + 1), cancel);
  const std::uint64_t begin = load<std::uint64_t>(offsets.data(), list.first_block) & kOffsetMask;
  const std::uint64_t end = load<std::uint64_t>(offsets.data(), list.last_block) & kOffsetMask;
  if (begin > end || end > packed.size() - kPadding) offsets.corrupt("a list's blocks lie outside the packed bytes");
  packed.verify(begin, end, cancel);
  return end;
}

void Segment::prefetch_starts(std::uint64_t list) const {
  __builtin_prefetch(list_starts.data() + 8 * list);
  __builtin_prefetch(block_starts.data() + 8 * list);
}

void Segment::prefetch_entries(std::uint64_t list) const {
  const auto block = std::min(load<std::uint64_t>(block_starts.data(), list), blocks_);
  __builtin_prefetch(block_documents.data() + 4 * block);
  __builtin_prefetch(block_offsets.data() + 8 * block);
}

ListView Segment::open_list(std::uint64_t list, const Cancel* cancel) const {
  ListView view;
  const Span span = checked_span(list_starts, list, postings_);
  const Span blocks = checked_span(block_starts, list, blocks_);
  view.first = span.begin, view.last = span.end;
  view.first_block = blocks.begin, view.last_block = blocks.end;
  if (blocks.end - blocks.begin != divide_up(span.end - span.begin, kBlock))
    block_starts.corrupt("list " + std::to_string(list) + " has the wrong number of blocks");
  if (view.first == view.last) return view;
  block_documents.verify(4 * blocks.begin, 4 * blocks.end, cancel);
  view.packed_end = checked_packed(block_offsets, packed_documents, view, cancel);
  if (kind_ == Kind::bm25) view.counts_end = checked_packed(count_offsets, packed_counts, view, cancel);
  if (kind_ == Kind::bm25) lengths.verify(0, lengths.size(), cancel);
  if (weights.present()) weights.verify(span.begin, span.end, cancel);
  if (kind_ == Kind::centroid) return view;
  if (codes.present()) codes.verify(span.begin * code_bytes_, span.end * code_bytes_, cancel);
  if (scales.present()) scales.verify(2 * span.begin, 2 * span.end, cancel);
  if (values.present()) values.verify(2 * span.begin, 2 * span.end, cancel);
  return view;
}

std::uint64_t Segment::list_length(std::uint64_t list) const {
  const Span span = checked_span(list_starts, list, postings_);
  return span.end - span.begin;
}

float Segment::list_scale(std::uint64_t list) const {
  return kind_ == Kind::vectors && codec_ == Codec::pq ? codebook_->scale(keys.at<std::uint32_t>(list)) : 1.0f;
}

std::optional<std::uint64_t> Segment::find_key(std::uint32_t key) const {
  if (!keys.present()) return std::nullopt;
  if (key < lists_ && keys.at<std::uint32_t>(key) == key) return key;  // as where every centroid has a list
  const std::uint64_t list = lower_bound(lists_, [&](std::uint64_t i) { return keys.at<std::uint32_t>(i) < key; });
  if (list == lists_ || keys.at<std::uint32_t>(list) != key) return std::nullopt;
  return list;
}

// All searches take each step together, so that their reads from memory overlap.
void Segment::find_keys(const std::uint32_t* wanted, std::size_t n, std::int64_t* lists) const {
  std::fill_n(lists, n, keys.present() && lists_ > 0 ? 0 : -1);
  if (!keys.present() || lists_ == 0) return;
  const auto key = [&](std::int64_t list) { return keys.at<std::uint32_t>(static_cast<std::uint64_t>(list)); };
  auto left = static_cast<std::int64_t>(lists_);
  for (std::int64_t half = left / 2; half > 0; left -= half, half = left / 2)
    for (std::size_t i = 0; i < n; ++i) lists[i] += key(lists[i] + half) <= wanted[i] ? half : 0;
  for (std::size_t i = 0; i < n; ++i) lists[i] = key(lists[i]) == wanted[i] ? lists[i] : -1;
}

std::optional<std::uint64_t> Segment::find_term(std::string_view term) const {
  if (!term_offsets.present()) return std::nullopt;
  const auto text = [&](std::uint64_t i) {
    const Span span = checked_span(term_offsets, i, term_bytes.size());
    term_bytes.verify(span.begin, span.end);
    return std::string_view(reinterpret_cast<const char*>(term_bytes.data()) + span.begin, span.end - span.begin);
  };
  const std::uint64_t list = lower_bound(lists_, [&](std::uint64_t i) { return text(i) < term; });
  if (list == lists_ || text(list) != term) return std::nullopt;
  return list;
}

Span Segment::probe_list(std::uint64_t list) const { return checked_span(probe_starts, list, documents_); }

}  // namespace citadel
