// The exact token parts of the scores of a graph's rows, computed for many rows at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "citadel/graph_search.hpp"
#include "citadel/graph_walk.hpp"
#include "citadel/match_postings.hpp"

namespace citadel {

class GraphTokenScores {
 public:
  explicit GraphTokenScores(const GraphTask& task);

  // Whether the query reads no list of the segment.
  bool empty() const { return lists_.empty(); }

  // Add token parts to the scores of the rows that are likely to reach `worst`; returns their number. A row's limit is
  // the share `likely` of the sum, over the lists that may have a posting of it, of what each has added at most so far.
  std::size_t add(Near* rows, std::size_t n, float worst, float likely);

  std::uint64_t dots() const { return dots_; }

 private:
  struct Match {
    std::uint32_t row;  // its position in the batch
    std::uint32_t posting;
  };
  struct List {
    PostingRange range;
    std::uint32_t signature_byte;
    std::uint8_t signature_bit;
    std::vector<Match> matches;
  };
  struct Candidate {
    std::uint32_t row, list;
  };

  bool keep(const Near& row, std::uint32_t position, float missing);
  void find_matches(const Near* rows);
  void find_matches(Candidate candidate, std::span<const std::uint32_t> postings);
  void prefetch(std::uint32_t posting) const;
  void add_list(std::size_t list, Near* rows);
  void copy_codes(const List& list);
  void score(std::size_t list, std::size_t token, float* out);

  const GraphTask& task_;
  const bool has_signatures_;
  MatchPostings match_ = match_postings();
  std::vector<List> lists_;  // of the plan's groups
  std::vector<float> largest_;  // what each list has added to a score at most; the largest of all before its first
  float largest_of_all_ = 0, sum_ = 0;
  std::vector<Candidate> candidates_;
  std::vector<std::uint8_t> codes_, scales_;  // of the matches of one list
  std::vector<float> values_;
  std::uint64_t dots_ = 0;
};

}  // namespace citadel
