// Write the seed corpus: one small valid segment of each kind.
#include <cstdio>
#include <fstream>

#include "frame.hpp"

int main(int count, char** arguments) {
  using namespace citadel;
  if (count != 2) return std::fprintf(stderr, "usage: make_corpus FOLDER\n"), 2;
  for (std::size_t i = 0; i < fuzz::kVariants.size(); ++i) {
    const auto [kind, codec] = fuzz::kVariants[i];
    const std::uint64_t semantic = i == 0 ? 16 : i == 1 ? 5 : i == 6 ? 8 : 0;
    const fixture::Example example =
        fixture::make_example(kind, codec, i == 4 ? 70'000 : 90, i < 2 ? 30 : 150, 2, semantic);
    const fixture::Bytes bytes = fuzz::write_frame(example, i);
    std::ofstream(std::string(arguments[1]) + "/" + kind + "-" + codec, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
}
