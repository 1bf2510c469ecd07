// A snapshot of segments and the search over it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "citadel/cancel.hpp"
#include "citadel/document_set.hpp"
#include "citadel/graph.hpp"
#include "citadel/query.hpp"
#include "citadel/segment.hpp"
#include "citadel/stages.hpp"

namespace citadel {

// `graph` uses every graph; `automatic` uses those that are likely to be faster than a scan.
enum class Semantic { off, rerank, exact, graph, automatic };

struct SearchOptions {
  std::uint64_t k = 10;
  Semantic semantic = Semantic::off;
  std::uint64_t candidates = 1000, probes = 1000;
  unsigned weight_floor = 0;
  unsigned threads = 1;
  const Cancel* cancel = nullptr;
  const std::vector<DocumentSet>* allowed = nullptr;  // per segment; null for all documents
  Stages* stages = nullptr;  // if set, receives the stage times and limits the search to one thread
  std::uint64_t effort = 0;  // rows that a graph search scores exactly per segment; at least a minimum and k
};

struct Result {
  std::vector<std::int64_t> numbers;
  std::vector<float> scores;
  std::uint64_t dots = 0;  // stored vectors (or weights) scored
};

class Snapshot {
 public:
  // `graphs` is empty or has a graph or null per segment; a segment without one is scanned. Throws CorruptError if a graph
  // does not fit its segment.
  Snapshot(std::vector<std::shared_ptr<const Segment>> segments, bool floor, float norm_base, float norm_slope,
           std::vector<std::shared_ptr<const Graph>> graphs = {});

  const std::vector<std::shared_ptr<const Segment>>& segments() const { return segments_; }
  const Graph* graph(std::size_t segment) const { return graphs_.empty() ? nullptr : graphs_[segment].get(); }
  std::uint64_t base(std::size_t segment) const { return bases_[segment]; }
  std::uint64_t documents() const { return bases_.back(); }
  std::uint64_t live() const;
  void require_whole() const;  // throws if a segment's file was truncated or could not be read
  void require_whole_graphs() const;
  bool floor() const { return floor_; }
  float norm_base() const { return norm_base_; }
  float norm_slope() const { return norm_slope_; }

  Result search(const Query& query, const SearchOptions& options) const;
  std::vector<Result> search_batch(const std::vector<const Query*>& queries, const SearchOptions& options) const;

 private:
  std::vector<std::shared_ptr<const Segment>> segments_;
  std::vector<std::shared_ptr<const Graph>> graphs_;
  std::vector<std::uint64_t> bases_;  // [segments + 1]
  bool floor_;
  float norm_base_, norm_slope_;
};

}  // namespace citadel
