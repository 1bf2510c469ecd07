// Search of centroid segments: documents of the nearest centroids, then the exact maxima of their tokens' products.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "citadel/kernels.hpp"
#include "citadel/search.hpp"

namespace citadel {

// The kernels of token products read four bytes at a time.
constexpr std::size_t kGroupBytes = 4;

// The centroids of an index and the bucket values of its residuals.
class CentroidBook {
 public:
  // codes [n, d], scales (fp16) [n], buckets [2^(bits + memory)], none of which is read for 0 bits. With memory, buckets are the values of
  // a trellis, and those of rotated residuals. Throws std::invalid_argument if the shapes do not fit.
  CentroidBook(const std::int8_t* codes, const std::uint16_t* scales, std::size_t n, std::size_t d, const std::int8_t* buckets, unsigned bits,
               unsigned memory, float bucket_scale, float step);
  CentroidBook(const CentroidBook&) = delete;
  CentroidBook& operator=(const CentroidBook&) = delete;

  std::size_t size() const { return scales_.size(); }
  std::size_t dimension() const { return dimension_; }
  unsigned bits() const { return values_.bits; }  // per dimension of a residual; 0 for vectors stored as int8
  float bucket_scale() const { return bucket_scale_; }
  float step() const { return step_; }  // of the lengths of residuals

  const TokenValues& values() const { return values_; }  // of the residuals' codes
  const std::uint8_t* codes() const { return reinterpret_cast<const std::uint8_t*>(codes_.data()); }
  const float* scales() const { return scales_.data(); }

 private:
  std::size_t dimension_;
  float bucket_scale_, step_;
  std::vector<float> scales_;
  std::vector<std::int8_t> codes_;
  TokenValues values_;
  std::vector<std::uint64_t> byte_values_;
};

// Vectors of tokens as int8, in blocks of 32 as the kernels of token products read them.
class CodedTokens {
 public:
  CodedTokens() = default;
  CodedTokens(const float* vectors, std::size_t n, std::size_t d);
  // Of vectors that were divided by `divisors` [n], powers of two.
  CodedTokens(const float* vectors, std::size_t n, std::size_t d, const std::vector<float>& divisors);

  bool empty() const { return lines_.empty(); }
  const std::int8_t* codes(std::size_t block) const { return lines_[block * groups_ * 2].bytes; }
  const std::int32_t* offsets(std::size_t block) const { return offsets_.data() + block * kKeyBlock; }
  const float* scales(std::size_t block) const { return scales_.data() + block * kKeyBlock; }

 private:
  struct alignas(64) Line {
    std::int8_t bytes[64];
  };

  std::size_t groups_ = 0;
  std::vector<Line> lines_;            // [blocks, groups, 32, 4]
  std::vector<std::int32_t> offsets_;  // [blocks · 32]: 128 · Σ code
  std::vector<float> scales_;          // [blocks · 32]
};

// The vectors of a query's tokens as int8, in blocks of 32 tokens, and their products with all centroids.
class TokenQuery {
 public:
  // `book` may be null, before there are centroids.
  TokenQuery(const float* vectors, std::size_t n, std::size_t d, std::shared_ptr<const CentroidBook> book);

  std::size_t tokens() const { return scales_real_; }
  std::size_t blocks() const { return blocks_; }
  std::size_t groups() const { return groups_; }
  std::size_t dimension() const { return dimension_; }
  const CentroidBook* book() const { return book_.get(); }

  const CodedTokens& tokens_as_given() const { return plain_; }
  // As residuals are multiplied with them: rotated where these are.
  const CodedTokens& residual_tokens() const { return rotated_.empty() ? plain_ : rotated_; }
  const float* steps(std::size_t block) const { return steps_.data() + block * kKeyBlock; }

  // The products of a centroid with the 32 tokens of a block.
  const float* products(std::size_t block, std::size_t centroid) const {
    return products_.get() + (block * book_->size() + centroid) * kKeyBlock;
  }
  float product(std::size_t token, std::size_t centroid) const { return products(token / kKeyBlock, centroid)[token % kKeyBlock]; }

  // The centroids of the largest products with each token, best first, ties by lower centroid: [tokens, nprobe].
  std::vector<std::uint32_t> probes(std::size_t nprobe) const;

 private:
  void multiply_centroids();
  float probe_threshold(std::size_t token, std::size_t nprobe) const;
  const float* maxima(std::size_t block, std::size_t group) const {
    return maxima_.data() + (block * groups_of_centroids_ + group) * kKeyBlock;
  }

  std::shared_ptr<const CentroidBook> book_;
  std::size_t scales_real_, dimension_, groups_, blocks_;
  CodedTokens plain_, rotated_;
  std::vector<float> steps_;           // [blocks · 32]: scale of a residual's token · bucket scale
  std::unique_ptr<float[]> products_;  // [blocks, centroids, 32]
  std::vector<float> maxima_;          // of groups of centroids: [blocks, groups, 32]
  std::size_t groups_of_centroids_ = 0;
};

struct TokenSearchOptions {
  std::uint64_t k = 10;
  bool exact = false;              // score every allowed document
  std::uint64_t candidates = 256;  // documents to score otherwise
  std::size_t nprobe = 32;         // centroids per query token
  unsigned threads = 1;
  const Cancel* cancel = nullptr;
  const std::vector<DocumentSet>* allowed = nullptr;  // per segment; null for all documents
};

// The best documents of a snapshot of centroid segments. Documents without tokens have no score.
Result search_tokens(const Snapshot& snapshot, const TokenQuery& query, const TokenSearchOptions& options);

// The numbers of the candidates, ascending.
std::vector<std::uint64_t> token_candidates(const Snapshot& snapshot, const TokenQuery& query, const TokenSearchOptions& options);

}  // namespace citadel
