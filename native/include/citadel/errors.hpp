// The engine's exceptions. Invalid arguments raise std::invalid_argument.
#pragma once

#include <stdexcept>
#include <string>

namespace citadel {

// Damaged data in a section. The message is "file\tsection\tproblem", which the Python side splits.
class CorruptError : public std::runtime_error {
 public:
  CorruptError(const std::string& file, const std::string& section, const std::string& problem)
      : std::runtime_error(file + "\t" + section + "\t" + problem) {}
};

// An I/O error while reading a mapped file. The message is the file's name.
class ReadError : public std::runtime_error {
 public:
  explicit ReadError(const std::string& file) : std::runtime_error(file) {}
};

class CancelledError : public std::runtime_error {
 public:
  CancelledError() : std::runtime_error("the search was cancelled") {}
};

}  // namespace citadel
