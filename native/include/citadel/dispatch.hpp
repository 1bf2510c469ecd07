// Which instruction set is in use.
#pragma once

#include <string>
#include <vector>

#include "citadel/kernels.hpp"

namespace citadel {

// Those this machine can run, slowest first.
std::vector<std::string> instruction_sets();

// The fastest, or what CITADEL_ISA names; throws std::invalid_argument when that cannot be had.
const Kernels& kernels();

void use_instruction_set(const std::string& name);

}  // namespace citadel
