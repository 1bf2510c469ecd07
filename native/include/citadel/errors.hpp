// What can go wrong inside the engine, apart from std::invalid_argument for a caller's mistake.
#pragma once

#include <stdexcept>
#include <string>

namespace citadel {

// A section that cannot be trusted; the text is "file\tsection\tproblem", taken apart by the Python side.
class CorruptError : public std::runtime_error {
 public:
  CorruptError(const std::string& file, const std::string& section, const std::string& problem)
      : std::runtime_error(file + "\t" + section + "\t" + problem) {}
};

// A mapped file that the disk failed to read; the text is its name.
class ReadError : public std::runtime_error {
 public:
  explicit ReadError(const std::string& file) : std::runtime_error(file) {}
};

class CancelledError : public std::runtime_error {
 public:
  CancelledError() : std::runtime_error("the search was cancelled") {}
};

}  // namespace citadel
