// A cursor over one inverted list: decodes a block at a time and gives one final value per (document, query token).
#pragma once

#include <vector>

#include "citadel/query.hpp"
#include "citadel/segment.hpp"
#include "citadel/stages.hpp"

namespace citadel {

// Query tokens that read the same list.
struct Group {
  ListView list;
  float scale;              // pq: the list's
  std::size_t first_token, tokens;
};

struct ScoringRules {
  bool floor;
  float norm_base, norm_slope;
  unsigned weight_floor;
};

class Cursor {
 public:
  static constexpr std::uint64_t kEnd = UINT64_MAX;

  Cursor(const Segment& segment, const Group& group, const PreparedQuery& query, const ScoringRules& rules, const Cancel* cancel);

  // Skip to the first document ≥ `document`; only forward, before anything was read.
  void seek(std::uint64_t document);

  // The document of the next value, kEnd behind the last. Loads the block that holds it.
  std::uint64_t next_document() { return position_ < end_ || fill() ? documents_[position_] : kEnd; }

  // Add all values of documents below `limit` to accumulators[document - base]. Gives how many entries `touched` has
  // now, each an accumulator that was untouched before; stops counting beyond `capacity`.
  template <class Clock>
  std::size_t add(float* accumulators, std::uint64_t base, std::uint64_t limit, std::uint32_t* touched, std::size_t count,
                  std::size_t capacity, Clock& clock);

 private:
  static constexpr std::size_t kFront = 16;  // a block's entries start here; the one carried over stands before
  static constexpr std::size_t kStride = kFront + kBlock;

  bool fill();
  std::size_t load_block();
  void decode(std::uint64_t block, std::size_t n);
  void score(std::size_t n);
  void score_token(std::size_t token, std::size_t n, float* out);
  std::size_t drop_light(std::size_t n);
  std::size_t hold_back(std::size_t begin, std::size_t end);
  std::size_t put_carried(std::size_t end);
  std::size_t limit_position(std::uint64_t limit) const;
  float* values(std::size_t token) { return values_.data() + token * kStride; }

  const Segment& segment_;
  const Group& group_;
  const PreparedQuery& query_;
  const ScoringRules& rules_;
  const Cancel* cancel_;
  std::uint64_t block_, posting_;          // the next block and its first posting
  std::uint32_t last_document_ = 0;
  std::size_t position_ = 0, end_ = 0;
  bool carries_ = false;
  std::uint32_t carried_document_ = 0;
  std::vector<float> carried_;             // [tokens]
  std::vector<float> values_;              // [tokens, kStride]
  alignas(64) std::uint32_t documents_[kStride];
  alignas(64) std::uint32_t counts_[kBlock];
};

}  // namespace citadel
