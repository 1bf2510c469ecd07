#include "citadel/crc32c.hpp"

#include <algorithm>
#include <array>

#include "citadel/bytes.hpp"

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__) && (defined(__ARM_FEATURE_CRC32) || !defined(__clang__))
#include <arm_acle.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#endif

namespace citadel {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78u;

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t slice = 1; slice < 8; ++slice)
    for (std::size_t byte = 0; byte < 256; ++byte)
      tables[slice][byte] = (tables[slice - 1][byte] >> 8) ^ tables[0][tables[slice - 1][byte] & 0xff];
  return tables;
}

constexpr Tables kTables = make_tables();

std::uint32_t update_table(const std::uint8_t* data, std::size_t size, std::uint32_t crc) {
  for (; size >= 8; data += 8, size -= 8) {
    const std::uint64_t word = load<std::uint64_t>(data) ^ crc;
    crc = 0;
    for (std::size_t byte = 0; byte < 8; ++byte) crc ^= kTables[7 - byte][(word >> (8 * byte)) & 0xff];
  }
  for (; size > 0; ++data, --size) crc = (crc >> 8) ^ kTables[0][(crc ^ *data) & 0xff];
  return crc;
}

// crc · x^(8·bytes): extends a CRC by `bytes` zero bytes, so that three streams can run in parallel and be
// combined.
[[maybe_unused]] constexpr std::size_t kStream = 1024;

using Shift = std::array<std::array<std::uint32_t, 256>, 4>;

constexpr std::uint32_t append_zeros(std::uint32_t crc, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) crc = (crc >> 8) ^ kTables[0][crc & 0xff];
  return crc;
}

[[maybe_unused]] Shift make_shift(std::size_t bytes) {
  std::array<std::uint32_t, 32> of_bit{};
  for (std::size_t bit = 0; bit < 32; ++bit) of_bit[bit] = append_zeros(std::uint32_t{1} << bit, bytes);
  Shift shift{};
  for (std::size_t position = 0; position < 4; ++position)
    for (std::size_t byte = 0; byte < 256; ++byte)
      for (std::size_t bit = 0; bit < 8; ++bit)
        if ((byte >> bit & 1) != 0) shift[position][byte] ^= of_bit[8 * position + bit];
  return shift;
}

[[maybe_unused]] std::uint32_t apply_shift(const Shift& shift, std::uint32_t crc) {
  return shift[0][crc & 0xff] ^ shift[1][crc >> 8 & 0xff] ^ shift[2][crc >> 16 & 0xff] ^ shift[3][crc >> 24];
}

#if defined(__x86_64__)
#define CITADEL_CRC_TARGET __attribute__((target("sse4.2")))
CITADEL_CRC_TARGET inline std::uint64_t step(std::uint64_t crc, std::uint64_t word) {
  return _mm_crc32_u64(crc, word);
}
bool has_instruction() { return __builtin_cpu_supports("sse4.2") != 0; }
#elif defined(__aarch64__) && (defined(__ARM_FEATURE_CRC32) || !defined(__clang__))
#if defined(__clang__)
#define CITADEL_CRC_TARGET
#else
#define CITADEL_CRC_TARGET __attribute__((target("+crc")))
#endif
CITADEL_CRC_TARGET inline std::uint64_t step(std::uint64_t crc, std::uint64_t word) {
  return __crc32cd(static_cast<std::uint32_t>(crc), word);
}
#if defined(__linux__)
bool has_instruction() { return (getauxval(AT_HWCAP) & 1ul << 7) != 0; }  // HWCAP_CRC32
#else
bool has_instruction() { return true; }
#endif
#endif

#if defined(CITADEL_CRC_TARGET)
// The instruction has a latency of 3 cycles and a throughput of 1: three streams hide it.
CITADEL_CRC_TARGET std::uint32_t update_instruction(const std::uint8_t* data, std::size_t size,
                                                    std::uint32_t crc) {
  static const Shift kOne = make_shift(kStream), kTwo = make_shift(2 * kStream);
  for (; size >= 3 * kStream; data += 3 * kStream, size -= 3 * kStream) {
    std::uint64_t a = crc, b = 0, c = 0;
    for (std::size_t i = 0; i < kStream; i += 8) {
      a = step(a, load<std::uint64_t>(data + i));
      b = step(b, load<std::uint64_t>(data + kStream + i));
      c = step(c, load<std::uint64_t>(data + 2 * kStream + i));
    }
    crc = apply_shift(kTwo, static_cast<std::uint32_t>(a)) ^
          apply_shift(kOne, static_cast<std::uint32_t>(b)) ^ static_cast<std::uint32_t>(c);
  }
  std::uint64_t rest = crc;
  for (; size >= 8; data += 8, size -= 8) rest = step(rest, load<std::uint64_t>(data));
  return update_table(data, size, static_cast<std::uint32_t>(rest));
}
#endif

}  // namespace

std::uint32_t crc32c_portable(const std::uint8_t* data, std::size_t size, std::uint32_t value) {
  return ~update_table(data, size, ~value);
}

std::uint32_t crc32c(const std::uint8_t* data, std::size_t size, std::uint32_t value) {
#if defined(CITADEL_CRC_TARGET)
  static const bool hardware = has_instruction();
  if (hardware) return ~update_instruction(data, size, ~value);
#endif
  return crc32c_portable(data, size, value);
}

std::vector<std::uint32_t> crc32c_blocks(const std::uint8_t* data, std::size_t size, std::size_t block) {
  std::vector<std::uint32_t> crcs;
  for (std::size_t start = 0; start < size; start += block)
    crcs.push_back(crc32c(data + start, std::min(block, size - start)));
  return crcs;
}

}  // namespace citadel
