// A cursor over one inverted list: decodes block by block and yields one final value per (document, query token).
#pragma once

#include <vector>

#include "citadel/document_set.hpp"
#include "citadel/query.hpp"
#include "citadel/segment.hpp"
#include "citadel/stages.hpp"

namespace citadel {

// Query tokens that read the same list.
struct Group {
  std::uint64_t number;     // of the list in its segment
  ListView list;
  float scale;              // pq: the list's scale
  std::size_t first_token, tokens;
};

// Prefetch the first blocks of an open list.
void prefetch_list(const Segment& segment, const ListView& list);

struct ScoringRules {
  bool floor;
  float norm_base, norm_slope;
  unsigned weight_floor;
};

// The stored rows of the postings to score.
struct Rows {
  const std::uint8_t *codes, *scales;  // of a sparse list: `codes` are its values
};

class Cursor {
 public:
  static constexpr std::uint64_t kEnd = UINT64_MAX;

  // With `selected`, only postings of its documents are scored, and blocks without any are skipped.
  Cursor(const Segment& segment, const Group& group, const PreparedQuery& query, const ScoringRules& rules, const Cancel* cancel,
         const DocumentSet* selected = nullptr);

  // Use the selected postings of the list that an earlier search has kept. If none has and `keeps`, read the whole list
  // and keep them.
  void use_kept(bool keeps);

  // The documents of all postings of the list. Call it before any other member.
  std::vector<std::uint32_t> documents();

  // The selected postings of the whole list.
  std::shared_ptr<const SelectedPostings> select_list();

  // Skip to the first document ≥ `document`. Call it at most once, before any other member.
  void seek(std::uint64_t document);

  // The document of the next value, or kEnd. Loads the block that holds it.
  std::uint64_t next_document() { return position_ < end_ || fill() ? documents_[position_] : kEnd; }

  // Add the values of all documents below `limit` to accumulators[document - base]. Appends the offsets of accumulators
  // that were untouched before to `touched` and returns its new size; stops appending once it reaches `capacity`.
  template <class Clock>
  std::size_t add(float* accumulators, std::uint64_t base, std::uint64_t limit, std::uint32_t* touched, std::size_t count,
                  std::size_t capacity, Clock& clock);

  std::uint64_t scored() const { return scored_; }  // postings scored so far, once per query token

 private:
  static constexpr std::size_t kFront = 16;  // a block's entries start here, after room for the carried-over one
  static constexpr std::size_t kMaxGathered = 176;  // selected postings scored together; with the carried-over one at most 192
  static constexpr std::size_t kStride = kFront + kMaxGathered;

  bool fill();
  void skip_blocks();
  std::size_t load_block();
  void decode(std::size_t n, std::uint32_t* documents);
  void decode_counts(std::size_t n, std::uint32_t* counts);
  std::size_t load_selected();
  std::size_t load_kept();
  void prefetch_kept(std::size_t first, std::size_t n);
  std::size_t score_selected(std::size_t n);
  bool continues(std::uint32_t document) const;
  bool is_done() const { return kept_ != nullptr ? next_kept_ == kept_->documents.size() : posting_ >= group_.list.last; }
  std::size_t select_block(std::size_t staged);
  void prefetch_selected(std::size_t first, std::size_t n) const;
  std::size_t select_positions(const std::uint32_t* documents, std::size_t n, std::uint32_t* positions) const;
  std::size_t block_size() const;
  void gather(std::size_t n);
  void score(std::size_t n);
  void prefetch_rows() const;
  Rows rows() const;
  void score_token(std::size_t token, std::size_t n, float* out);
  std::size_t drop_light(std::size_t n, const std::uint8_t* weights);
  std::size_t hold_back(std::size_t begin, std::size_t end);
  std::size_t restore_carried(std::size_t end);
  std::size_t limit_position(std::uint64_t limit) const;
  float* values(std::size_t token) { return values_.data() + token * kStride; }

  const Segment& segment_;
  const Group& group_;
  const PreparedQuery& query_;
  const ScoringRules& rules_;
  const Cancel* cancel_;
  const DocumentSet* selected_;
  std::shared_ptr<const SelectedPostings> kept_;  // of this list, or null
  std::size_t next_kept_ = 0;
  std::uint64_t block_, posting_;          // the next block and its first posting
  std::uint32_t last_document_ = 0;
  std::uint64_t scored_ = 0;
  std::size_t position_ = 0, end_ = 0;
  bool carries_ = false;
  std::uint32_t carried_document_ = 0;
  std::vector<float> carried_;             // [tokens]
  std::vector<float> values_;              // [tokens, kStride]
  alignas(64) std::uint32_t documents_[kStride];
  alignas(64) std::uint32_t counts_[kMaxGathered];
  std::uint64_t postings_[kMaxGathered];    // the selected ones
  std::vector<std::uint8_t> gathered_;      // their codes, then their scales
};

}  // namespace citadel
