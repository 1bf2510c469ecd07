#include "citadel/maxsim.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>

#include "citadel/dispatch.hpp"
#include "citadel/half.hpp"
#include "citadel/parallel.hpp"
#include "citadel/quantize.hpp"
#include "citadel/trellis.hpp"
#include "citadel/topk.hpp"

namespace citadel {
namespace {

constexpr std::size_t kDocumentsPerTask = 64;
constexpr std::uint64_t kMinDocumentsForThreads = 512;
constexpr std::uint64_t kCacheLine = 64;
constexpr std::uint64_t kTilesAhead = 1;  // whose codes are prefetched
constexpr std::size_t kCentroidGroup = 4 * kTileRows;
constexpr TokenValues kInt8Values{};
constexpr unsigned kByteBits = 8;

std::size_t groups_of(std::size_t dimension) { return (dimension + kGroupBytes - 1) / kGroupBytes; }

std::size_t blocks_of(std::size_t tokens) { return (tokens + kKeyBlock - 1) / kKeyBlock; }

TokenValues make_values(const std::int8_t* buckets, unsigned bits, unsigned memory) {
  if (bits != 0 && bits != 1 && bits != 2 && bits != 4)
    throw std::invalid_argument("a residual has 1, 2 or 4 bits per dimension");
  if (memory != 0 && (bits == 0 || bits + memory != kWindowBits))
    throw std::invalid_argument("a residual has one value per bucket, or 64 values");
  TokenValues out{};
  out.bits = bits;
  out.memory = memory;
  for (std::size_t i = 0; bits != 0 && i < (std::size_t{1} << (bits + memory)); ++i)
    out.buckets[i] = static_cast<std::uint8_t>(buckets[i]) ^ 0x80u;
  return out;
}

// The values of each byte of codes after `memory` bits.
std::vector<std::uint64_t> byte_values(const TokenValues& values) {
  if (values.bits == 0) return {};
  std::vector<std::uint64_t> out(std::size_t{1} << (kByteBits + values.memory));
  const std::size_t mask = (std::size_t{1} << (values.bits + values.memory)) - 1;
  for (std::size_t byte = 0; byte < out.size(); ++byte)
    for (std::size_t i = 0; i < kByteBits / values.bits; ++i)
      out[byte] |= static_cast<std::uint64_t>(values.buckets[byte >> (values.bits * i) & mask]) << (kByteBits * i);
  return out;
}

}  // namespace

CentroidBook::CentroidBook(const std::int8_t* codes, const std::uint16_t* scales, std::size_t n,
                           std::size_t d, const std::int8_t* buckets, unsigned bits, unsigned memory,
                           float bucket_scale, float step)
    : dimension_(d),
      bucket_scale_(bucket_scale),
      step_(step),
      scales_(n),
      codes_(codes, codes + n * d),
      values_(make_values(buckets, bits, memory)),
      byte_values_(byte_values(values_)) {
  values_.bytes = byte_values_.data();
  if (n == 0 || d == 0 || d > kMaxTokenBytes)
    throw std::invalid_argument("centroids must be [n, d], d at most 1024");
  if (bits != 0 && d % 8 != 0) throw std::invalid_argument("residuals need a dimension divisible by 8");
  for (std::size_t i = 0; i < n; ++i) scales_[i] = half_to_float(scales[i]);
}

CodedTokens::CodedTokens(const float* vectors, std::size_t n, std::size_t d)
    : groups_(groups_of(d)), lines_(blocks_of(n) * groups_ * 2), offsets_(blocks_of(n) * kKeyBlock), scales_(blocks_of(n) * kKeyBlock) {
  std::vector<std::int8_t> row((d + kQueryPadding - 1) / kQueryPadding * kQueryPadding + kQueryPadding);
  for (std::size_t token = 0; token < n; ++token) {
    scales_[token] = quantize_query(vectors + token * d, d, row.data());
    std::int32_t sum = 0;
    for (std::size_t i = 0; i < d; ++i) {
      sum += row[i];
      const std::size_t at = (token / kKeyBlock * groups_ + i / kGroupBytes) * kKeyBlock * kGroupBytes + token % kKeyBlock * kGroupBytes + i % kGroupBytes;
      lines_[at / sizeof(Line)].bytes[at % sizeof(Line)] = row[i];
    }
    offsets_[token] = 128 * sum;
  }
}

CodedTokens::CodedTokens(const float* vectors, std::size_t n, std::size_t d, const std::vector<float>& divisors)
    : CodedTokens(vectors, n, d) {
  for (std::size_t token = 0; token < n; ++token) scales_[token] *= divisors[token];
}

TokenQuery::TokenQuery(const float* vectors, std::size_t n, std::size_t d, std::shared_ptr<const CentroidBook> book)
    : book_(std::move(book)), scales_real_(n), dimension_(d), groups_(groups_of(d)), blocks_(blocks_of(n)), steps_(blocks_ * kKeyBlock) {
  if (d > kMaxTokenBytes) throw std::invalid_argument("a token vector has at most 1024 dimensions");
  if (book_ != nullptr && book_->dimension() != d) throw std::invalid_argument("the query and the centroids have different dimensions");
  plain_ = CodedTokens(vectors, n, d);
  if (book_ == nullptr) return;
  if (book_->values().memory != 0) {
    std::vector<float> rotated(vectors, vectors + n * d);
    const std::vector<float> divisors = rotate_scaled(rotated.data(), n, d);
    rotated_ = CodedTokens(rotated.data(), n, d, divisors);
  }
  for (std::size_t token = 0; token < n; ++token) steps_[token] = book_->bucket_scale() * residual_tokens().scales(token / kKeyBlock)[token % kKeyBlock];
  multiply_centroids();
}

void TokenQuery::multiply_centroids() {
  const Kernels& set = kernels();
  const std::size_t size = book_->size();
  products_ = std::make_unique_for_overwrite<float[]>(blocks_ * size * kKeyBlock);
  groups_of_centroids_ = (size + kCentroidGroup - 1) / kCentroidGroup;
  maxima_.assign(blocks_ * groups_of_centroids_ * kKeyBlock, -std::numeric_limits<float>::infinity());
  alignas(64) std::int32_t sums[kTileRows * kKeyBlock];
  alignas(64) std::uint8_t centroids[kTileRows * kTokenStride];
  for (std::size_t first = 0; first < size; first += kTileRows) {
    const std::size_t rows = std::min(kTileRows, size - first);
    set.unpack_tokens(book_->codes() + first * dimension_, rows, dimension_, kInt8Values, centroids);
    for (std::size_t block = 0; block < blocks_; ++block) {
      set.token_products(centroids, rows, plain_.codes(block), groups_, sums);
      set.scaled_products(sums, rows, book_->scales() + first, plain_.offsets(block), plain_.scales(block),
                          products_.get() + (block * size + first) * kKeyBlock);
      set.scaled_maxima(sums, rows, book_->scales() + first, plain_.offsets(block), plain_.scales(block),
                        maxima_.data() + (block * groups_of_centroids_ + first / kCentroidGroup) * kKeyBlock);
    }
  }
}

// A product that `nprobe` centroids of a token reach: the least of its `nprobe` largest maxima of groups.
float TokenQuery::probe_threshold(std::size_t token, std::size_t nprobe) const {
  if (nprobe > groups_of_centroids_) return -std::numeric_limits<float>::infinity();
  std::vector<float> largest(groups_of_centroids_);
  for (std::size_t group = 0; group < largest.size(); ++group)
    largest[group] = maxima(token / kKeyBlock, group)[token % kKeyBlock];
  const auto last = largest.begin() + static_cast<std::ptrdiff_t>(nprobe - 1);
  std::nth_element(largest.begin(), last, largest.end(), std::greater<>());
  return *last;
}

std::vector<std::uint32_t> TokenQuery::probes(std::size_t nprobe) const {
  nprobe = std::min(nprobe, book_->size());
  std::vector<std::uint32_t> out(tokens() * nprobe);
  for (std::size_t block = 0; block < blocks_; ++block) {
    const std::size_t own = std::min(kKeyBlock, tokens() - block * kKeyBlock);
    float thresholds[kKeyBlock];
    for (std::size_t token = 0; token < own; ++token)
      thresholds[token] = probe_threshold(block * kKeyBlock + token, nprobe);
    std::vector<Scored> best[kKeyBlock];
    for (std::size_t group = 0; group < groups_of_centroids_; ++group) {
      const std::size_t first = group * kCentroidGroup, end = std::min(book_->size(), first + kCentroidGroup);
      for (std::size_t centroid = end; centroid < std::min(book_->size(), end + kCentroidGroup); ++centroid)
        __builtin_prefetch(products(block, centroid)),
            __builtin_prefetch(products(block, centroid) + kKeyBlock / 2);
      for (std::size_t token = 0; token < own; ++token) {
        const float threshold = thresholds[token], *column = products(block, first) + token;
        if (!(maxima(block, group)[token] >= threshold)) continue;
        for (std::size_t i = 0; i < end - first; ++i)
          if (column[i * kKeyBlock] >= threshold) best[token].push_back({column[i * kKeyBlock], first + i});
      }
    }
    for (std::size_t token = 0; token < own; ++token) {
      const auto kept = static_cast<std::ptrdiff_t>(std::min(nprobe, best[token].size()));
      std::partial_sort(best[token].begin(), best[token].begin() + kept, best[token].end(), better);
      std::uint32_t* row = out.data() + (block * kKeyBlock + token) * nprobe;
      for (std::ptrdiff_t i = 0; i < kept; ++i)
        row[i] = static_cast<std::uint32_t>(best[token][static_cast<std::size_t>(i)].number);
    }
  }
  return out;
}

namespace {

// What stage 1 knows of each document; kept between searches, because clearing it takes longer than a search.
class Touched {
 public:
  // Forget all documents; `documents` is their number in the segment.
  void prepare(std::uint64_t documents) {
    for (std::size_t i = 0; i < count_; ++i) entries_[numbers_[i]] = {};
    count_ = 0;
    if (entries_.size() < documents) entries_.resize(documents), numbers_.resize(documents + 1);
  }

  // Without branches, which nothing would predict. A gain is never negative, so that adding 0 changes no
  // bits.
  void add(std::uint32_t document, std::uint32_t token, float gain) {
    Entry& entry = entries_[document];
    numbers_[count_] = document;
    count_ += entry.token == 0;
    entry.gain += entry.token == token ? 0.0f : gain;
    entry.token = token;
  }

  template <typename Visit>
  void visit(Visit visit) const {
    for (std::size_t i = 0; i < count_; ++i) visit(numbers_[i], entries_[numbers_[i]].gain);
  }

 private:
  struct Entry {
    float gain = 0.0f;
    std::uint32_t token = 0;  // the last query token that reached the document, from 1 on; 0 for none
  };

  std::vector<Entry> entries_;
  std::vector<std::uint32_t> numbers_;  // of documents in the order in which they were reached, and one more
  std::size_t count_ = 0;
};

Touched& touched_documents() {
  thread_local Touched touched;
  return touched;
}

// Call `visit` with the documents of a list, block by block.
template <typename Visit>
void visit_list(const Segment& segment, std::uint64_t list, const Kernels& set, const Cancel* cancel, Visit visit) {
  const ListView view = segment.open_list(list, cancel);
  alignas(64) std::uint32_t documents[kBlock + 16];
  std::uint64_t posting = view.first;
  for (std::uint64_t block = view.first_block; block < view.last_block; ++block, posting += kBlock) {
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(kBlock, view.last - posting));
    const auto first = load<std::uint32_t>(segment.block_documents.data(), block);
    const auto entry = load<std::uint64_t>(segment.block_offsets.data(), block);
    const std::uint64_t offset = entry & kOffsetMask;
    const auto bits = static_cast<unsigned>(entry >> kBitsShift);
    if (bits > 32) segment.block_offsets.corrupt("a block claims " + std::to_string(bits) + " bits per value");
    if (offset > view.packed_end || packed_bytes(n - 1, bits) > view.packed_end - offset)
      segment.block_offsets.corrupt("a block's bytes lie outside its list");
    const std::uint64_t readable = segment.packed_documents.size() - offset;
    const std::uint64_t last = set.unpack_documents(segment.packed_documents.data() + offset, readable, bits, first, n - 1, documents);
    if (last >= segment.documents()) segment.packed_documents.corrupt("document number " + std::to_string(last) + " does not exist");
    for (std::size_t i = 0; i < n; ++i) visit(documents[i]);
  }
}

bool is_coded(const Segment& segment) { return segment.bits() != 0; }

// The sums of imputed products of the documents that the probed lists of a segment hold, relative to a document in none.
void touch_documents(const Segment& segment, const TokenQuery& query, const std::vector<std::uint32_t>& probes, const Cancel* cancel,
                     Touched& touched) {
  const Kernels& set = kernels();
  const std::size_t nprobe = query.tokens() == 0 ? 0 : probes.size() / query.tokens();
  for (std::size_t token = 0; token < query.tokens(); ++token) {
    const std::uint32_t* own = probes.data() + token * nprobe;
    const float bound = query.product(token, own[nprobe - 1]);
    for (std::size_t i = 0; i < nprobe; ++i) {
      poll(cancel);
      const auto list = segment.find_key(own[i]);
      if (!list) continue;
      const float gain = query.product(token, own[i]) - bound;
      visit_list(segment, *list, set, cancel, [&](std::uint32_t document) { touched.add(document, static_cast<std::uint32_t>(token + 1), gain); });
    }
  }
}

// Computes MaxSim of single documents.
class Scorer {
 public:
  Scorer(const TokenQuery& query, const Cancel* cancel)
      : query_(query), set_(kernels()), cancel_(cancel), best_(query.blocks() * kKeyBlock) {}

  // Returns false for a document without tokens.
  bool score(const Segment& segment, std::uint64_t document, float& out) {
    const Span span = segment.tokens(document, cancel_);
    if (span.begin == span.end) return false;
    std::fill(best_.begin(), best_.end(), -std::numeric_limits<float>::infinity());
    for (std::uint64_t token = span.begin; token < span.end; token += kTileRows) {
      prefetch_codes(segment, token + kTilesAhead * kTileRows,
                     std::min(token + (kTilesAhead + 1) * kTileRows, span.end));
      add(segment, token, static_cast<std::size_t>(std::min<std::uint64_t>(kTileRows, span.end - token)));
    }
    out = 0.0f;
    for (std::size_t token = 0; token < query_.tokens(); ++token) out += best_[token];
    tokens_ += span.end - span.begin;
    return true;
  }

  std::uint64_t tokens() const { return tokens_; }

  // Prefetch what `score` reads first.
  void prefetch(const Segment& segment, std::uint64_t document) const {
    const auto first = load<std::uint64_t>(segment.token_starts.data(), document);
    const std::uint64_t end = segment.codes.size() / std::max<std::uint64_t>(segment.code_bytes(), 1);
    if (first < end)
      prefetch_codes(segment, first, std::min<std::uint64_t>(first + kTilesAhead * kTileRows, end));
  }

 private:
  static void prefetch_codes(const Segment& segment, std::uint64_t first, std::uint64_t last) {
    const std::uint64_t width = segment.code_bytes();
    for (std::uint64_t at = first * width; at < last * width; at += kCacheLine)
      __builtin_prefetch(segment.codes.data() + at);
  }

  void add(const Segment& segment, std::uint64_t first, std::size_t rows) {
    const CodedTokens& tokens = is_coded(segment) ? query_.residual_tokens() : query_.tokens_as_given();
    const std::uint64_t width = segment.code_bytes();
    const bool coded = is_coded(segment);
    set_.unpack_tokens(segment.codes.data() + first * width, rows, width,
                       coded ? query_.book()->values() : kInt8Values, unpacked_);
    float scales[kTileRows];
    std::uint16_t centroids[kTileRows];
    if (coded)
      read_residuals(segment, first, rows, scales, centroids);
    else
      for (std::size_t row = 0; row < rows; ++row)
        scales[row] = half_to_float(load<std::uint16_t>(segment.scales.data(), first + row));
    for (std::size_t block = 0; block < query_.blocks(); ++block) {
      const float* bases[kTileRows];
      for (std::size_t row = 0; coded && row < rows; ++row) {
        bases[row] = query_.products(block, centroids[row]);
        __builtin_prefetch(bases[row]), __builtin_prefetch(bases[row] + kKeyBlock / 2);
      }
      float* best = best_.data() + block * kKeyBlock;
      set_.token_products(unpacked_, rows, tokens.codes(block), query_.groups(), sums_);
      if (coded)
        set_.residual_maxima(sums_, rows, bases, scales, tokens.offsets(block), query_.steps(block), best);
      else
        set_.scaled_maxima(sums_, rows, scales, tokens.offsets(block), tokens.scales(block), best);
    }
  }

  void read_residuals(const Segment& segment, std::uint64_t first, std::size_t rows, float* lengths,
                      std::uint16_t* centroids) const {
    for (std::size_t row = 0; row < rows; ++row) {
      centroids[row] = load<std::uint16_t>(segment.token_centroids.data(), first + row);
      if (centroids[row] >= query_.book()->size())
        segment.token_centroids.corrupt("centroid " + std::to_string(centroids[row]) + " does not exist");
      lengths[row] = static_cast<float>(segment.scales.data()[first + row]) * query_.book()->step();
    }
  }

  const TokenQuery& query_;
  const Kernels& set_;
  const Cancel* cancel_;
  std::vector<float> best_;
  alignas(64) std::uint8_t unpacked_[kTileRows * kTokenStride];
  alignas(64) std::int32_t sums_[kTileRows * kKeyBlock];
  std::uint64_t tokens_ = 0;
};

bool admits(const Snapshot& snapshot, const TokenSearchOptions& options, std::size_t segment, std::uint64_t document) {
  if (options.allowed != nullptr) return (*options.allowed)[segment].contains(document);
  return !snapshot.segments()[segment]->is_deleted(document);
}

std::uint64_t allowed_documents(const Snapshot& snapshot, const TokenSearchOptions& options) {
  if (options.allowed == nullptr) return snapshot.live();
  std::uint64_t count = 0;
  for (const DocumentSet& part : *options.allowed) count += part.count();
  return count;
}

// The allowed documents of a segment.
void append_allowed(const Snapshot& snapshot, const TokenSearchOptions& options, std::size_t segment, std::vector<std::uint64_t>& out) {
  for (std::uint64_t document = 0; document < snapshot.segments()[segment]->documents(); ++document)
    if (admits(snapshot, options, segment, document)) out.push_back(snapshot.base(segment) + document);
}

void check(const Snapshot& snapshot, const TokenQuery& query) {
  for (const auto& segment : snapshot.segments()) {
    if (segment->kind() != Kind::centroid) throw std::invalid_argument("the segments have no centroids");
    if (segment->dimension() != query.dimension()) throw std::invalid_argument("the query has another dimension than the segments");
    if (segment->has_centroids() && (query.book() == nullptr || query.book()->bits() != segment->bits()))
      throw CorruptError("manifest", "codebook", "the centroids do not fit a segment's codec");
  }
}

Result rank(const Snapshot& snapshot, const TokenQuery& query, const TokenSearchOptions& options, const std::vector<std::uint64_t>& numbers) {
  const std::size_t threads = numbers.size() < kMinDocumentsForThreads ? 1 : std::max(1u, options.threads);
  const std::size_t tasks = (numbers.size() + kDocumentsPerTask - 1) / kDocumentsPerTask;
  std::vector<TopK> best(std::max<std::size_t>(1, std::min(threads, tasks)), TopK(std::min(options.k, snapshot.documents())));
  std::vector<Scorer> scorers;
  scorers.reserve(best.size());
  for (std::size_t worker = 0; worker < best.size(); ++worker) scorers.emplace_back(query, options.cancel);
  parallel(tasks, threads, [&](std::size_t worker, std::size_t task) {
    poll(options.cancel);
    std::size_t segment = 0;
    for (std::size_t i = task * kDocumentsPerTask; i < std::min(numbers.size(), (task + 1) * kDocumentsPerTask); ++i) {
      while (numbers[i] >= snapshot.base(segment + 1)) ++segment;
      if (i + 1 < numbers.size() && numbers[i + 1] < snapshot.base(segment + 1))
        scorers[worker].prefetch(*snapshot.segments()[segment], numbers[i + 1] - snapshot.base(segment));
      float score = 0.0f;
      if (scorers[worker].score(*snapshot.segments()[segment], numbers[i] - snapshot.base(segment), score)) best[worker].push(score, numbers[i]);
    }
  });
  for (std::size_t worker = 1; worker < best.size(); ++worker) best[0].merge(best[worker]);
  Result out;
  for (const Scorer& scorer : scorers) out.dots += scorer.tokens() * query.tokens();
  for (const Scored& hit : best[0].sorted()) out.numbers.push_back(static_cast<std::int64_t>(hit.number)), out.scores.push_back(hit.score);
  return out;
}

std::vector<std::uint64_t> all_allowed(const Snapshot& snapshot, const TokenSearchOptions& options) {
  std::vector<std::uint64_t> numbers;
  for (std::size_t segment = 0; segment < snapshot.segments().size(); ++segment) append_allowed(snapshot, options, segment, numbers);
  return numbers;
}

}  // namespace

std::vector<std::uint64_t> token_candidates(const Snapshot& snapshot, const TokenQuery& query, const TokenSearchOptions& options) {
  std::vector<std::uint64_t> numbers;
  if (query.tokens() == 0) return numbers;
  const std::vector<std::uint32_t> probes = query.book() == nullptr ? std::vector<std::uint32_t>{} : query.probes(std::max<std::size_t>(options.nprobe, 1));
  TopK best(options.candidates);
  for (std::size_t segment = 0; segment < snapshot.segments().size(); ++segment) {
    const Segment& own = *snapshot.segments()[segment];
    if (!own.has_centroids()) {  // from before there were centroids: small, and scored as a whole
      append_allowed(snapshot, options, segment, numbers);
      continue;
    }
    Touched& touched = touched_documents();
    touched.prepare(own.documents());
    touch_documents(own, query, probes, options.cancel, touched);
    touched.visit([&](std::uint32_t document, float gain) {
      if (gain >= best.threshold() && admits(snapshot, options, segment, document))
        best.push(gain, snapshot.base(segment) + document);
    });
  }
  for (const Scored& hit : best.sorted()) numbers.push_back(hit.number);
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

Result search_tokens(const Snapshot& snapshot, const TokenQuery& query, const TokenSearchOptions& options) {
  poll(options.cancel);
  Result result;
  if (query.tokens() == 0) return result;
  check(snapshot, query);
  const std::uint64_t allowed = allowed_documents(snapshot, options), wanted = std::min(options.k, allowed);
  const bool exact = options.exact || allowed <= std::max(options.candidates, wanted);
  if (!exact) result = rank(snapshot, query, options, token_candidates(snapshot, query, options));
  if (exact || result.numbers.size() < wanted) result = rank(snapshot, query, options, all_allowed(snapshot, options));
  snapshot.require_whole();
  return result;
}

}  // namespace citadel
