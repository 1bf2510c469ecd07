// Run-time selection of the instruction set.
#pragma once

#include <string>
#include <vector>

#include "citadel/kernels.hpp"

namespace citadel {

// The sets supported by this machine, slowest first.
std::vector<std::string> instruction_sets();

// The fastest set, or the one named by CITADEL_ISA. Throws std::invalid_argument if that is not supported.
const Kernels& kernels();

void use_instruction_set(const std::string& name);

}  // namespace citadel
