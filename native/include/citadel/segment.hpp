// A segment: section sizes are checked on construction, list bounds when a list is opened, contents on first access.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "citadel/bits.hpp"
#include "citadel/codebook.hpp"
#include "citadel/document_set.hpp"
#include "citadel/mapping.hpp"
#include "citadel/section.hpp"

namespace citadel {

enum class Kind { vectors, centroid, sparse, bm25, none };
enum class Codec { fp16, int8, pq };

struct SectionBytes {
  const std::uint8_t* data;
  std::uint64_t size;
  const std::uint8_t* crcs;  // u32[⌈size / 1 MiB⌉]
  std::uint64_t crc_count;
};

struct SegmentShape {
  std::string name;
  std::uint64_t documents = 0;
  std::string kind, codec, semantic_codec;
  std::uint64_t dimension = 0, semantic_dimension = 0;
};

// An inverted list whose bounds and checksums have been verified.
struct ListView {
  std::uint64_t first = 0, last = 0;        // postings
  std::uint64_t first_block = 0, last_block = 0;
  std::uint64_t packed_end = 0, counts_end = 0;  // upper bounds of its blocks' bytes
};

struct Span {
  std::uint64_t begin, end;
};

class Segment {
 public:
  // `deleted` is null or a bitmap of at least ⌈documents / 8⌉ bytes. It and the sections' bytes must outlive the segment.
  Segment(SegmentShape shape, const std::map<std::string, SectionBytes>& sections, const std::uint8_t* deleted,
          std::shared_ptr<const Codebook> codebook);

  std::uint64_t documents() const { return documents_; }
  std::uint64_t live() const { return live_; }
  std::uint64_t lists() const { return lists_; }
  std::uint64_t postings() const { return postings_; }
  Kind kind() const { return kind_; }
  Codec codec() const { return codec_; }
  std::uint64_t dimension() const { return dimension_; }
  std::uint64_t code_bytes() const { return code_bytes_; }
  unsigned bits() const { return bits_; }  // per dimension of a residual; 0 for int8
  bool has_centroids() const { return token_centroids.present(); }  // the keys are centroids
  Codec semantic_codec() const { return semantic_codec_; }
  std::uint64_t semantic_dimension() const { return semantic_dimension_; }
  const std::shared_ptr<const Codebook>& codebook() const { return codebook_; }

  bool is_deleted(std::uint64_t document) const {
    return deleted_ != nullptr && (deleted_[document >> 3] >> (document & 7) & 1) != 0;
  }

  // The documents of a bitmap that are not deleted.
  DocumentSet allowed(const std::uint8_t* bitmap) const { return {bitmap, deleted_, documents_}; }

  // Prefetch what `open_list` reads: the starts of a list, then the entries of its first block.
  void prefetch_starts(std::uint64_t list) const;
  void prefetch_entries(std::uint64_t list) const;
  ListView open_list(std::uint64_t list, const Cancel* cancel) const;
  std::uint64_t list_length(std::uint64_t list) const;
  float list_scale(std::uint64_t list) const;                         // pq: the scale of the list's key
  std::optional<std::uint64_t> find_key(std::uint32_t key) const;
  void find_keys(const std::uint32_t* wanted, std::size_t n, std::int64_t* lists) const;  // -1 for none
  std::optional<std::uint64_t> find_term(std::string_view term) const;

  // Throws if the segment's file was truncated or could not be read.
  void require_whole(std::int64_t now) const { citadel::require_whole(mapping_, name_, now); }

  std::uint64_t probe_lists() const { return probe_lists_; }          // 0: no probe structure
  Span probe_list(std::uint64_t list) const;

  // The tokens of a document (centroid), whose codes have been verified.
  Span tokens(std::uint64_t document, const Cancel* cancel) const;

  Section keys, list_starts, block_starts, block_documents, block_offsets, packed_documents, weights, codes, scales, values,
      term_offsets, term_bytes, lengths, count_offsets, packed_counts, semantic_codes, semantic_scales, probe_centroids,
      probe_starts, probe_documents, token_starts, token_centroids;

 private:
  void take_lexical(const std::map<std::string, SectionBytes>& sections);
  void take_payload(const std::map<std::string, SectionBytes>& sections);
  void take_tokens(const std::map<std::string, SectionBytes>& sections);
  void take_semantic(const std::map<std::string, SectionBytes>& sections);
  Section take(const std::map<std::string, SectionBytes>& sections, const std::string& name, bool required) const;
  Span checked_span(const Section& starts, std::uint64_t index, std::uint64_t limit) const;
  std::uint64_t checked_packed(const Section& offsets, const Section& packed, const ListView& list, const Cancel* cancel) const;

  std::string name_;
  std::uint64_t documents_ = 0, live_ = 0, lists_ = 0, postings_ = 0, blocks_ = 0, tokens_ = 0;
  Kind kind_;
  Codec codec_ = Codec::fp16, semantic_codec_ = Codec::fp16;
  std::uint64_t dimension_ = 0, code_bytes_ = 0, semantic_dimension_ = 0, probe_lists_ = 0;
  unsigned bits_ = 0;
  const std::uint8_t* deleted_;
  std::size_t mapping_ = kUnwatched;
  std::shared_ptr<const Codebook> codebook_;
};

}  // namespace citadel
