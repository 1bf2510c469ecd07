// Stable radix argsort of 32-bit keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace citadel {

std::vector<std::uint32_t> sort_by_key(const std::uint32_t* keys, std::size_t count);

}  // namespace citadel
