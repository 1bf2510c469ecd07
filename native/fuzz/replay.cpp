// Run the fuzz target over the files of folders, for compilers without libFuzzer. Each input is also tried
// truncated and with single bytes changed, because the seed corpus holds only valid segments.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Bytes = std::vector<std::uint8_t>;

void replay(const Bytes& bytes) {
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  for (std::size_t part = 1; part < 16; ++part) {
    const Bytes cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(bytes.size() * part / 16));
    LLVMFuzzerTestOneInput(cut.data(), cut.size());
  }
  const std::size_t step = bytes.size() / 400 + 1;
  for (std::size_t at = 0; at < bytes.size(); at += step)
    for (const std::uint8_t change : {0x01, 0x80, 0xff}) {
      Bytes changed = bytes;
      changed[at] = static_cast<std::uint8_t>(changed[at] ^ change);
      LLVMFuzzerTestOneInput(changed.data(), changed.size());
    }
}

Bytes read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

int main(int count, char** arguments) {
  int files = 0;
  for (int i = 1; i < count; ++i)
    for (const auto& entry : std::filesystem::directory_iterator(arguments[i]))
      if (entry.is_regular_file()) replay(read(entry.path())), ++files;
  std::printf("replayed %d files\n", files);
  return files > 0 ? 0 : 1;
}
