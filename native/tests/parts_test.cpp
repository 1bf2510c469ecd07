// Packing, checksums, sorting, kernels, top k, router and document sets, each compared with a plain loop.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include <sys/mman.h>
#include <unistd.h>

#include "check.hpp"
#include "citadel/bits.hpp"
#include "citadel/bytes.hpp"
#include "citadel/crc32c.hpp"
#include "citadel/dispatch.hpp"
#include "citadel/document_set.hpp"
#include "citadel/half.hpp"
#include "citadel/nearest.hpp"
#include "citadel/quantize.hpp"
#include "citadel/radix.hpp"
#include "citadel/router.hpp"
#include "citadel/topk.hpp"
#include "citadel/trellis.hpp"
#include "fixture.hpp"

using namespace citadel;
using fixture::next_random;

namespace {

void test_pack_every_width() {
  std::uint32_t seed = 1;
  for (unsigned bits = 0; bits <= 32; ++bits)
    for (std::size_t count : {1, 2, 8, 9, 127, 128, 129, 300}) {
      std::vector<std::uint32_t> values(count);
      const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
      std::uint64_t at = 0;
      for (std::uint32_t& value : values) {
        at = std::min<std::uint64_t>(UINT32_MAX,
                                     at + (count < 3 ? mask : next_random(seed) & mask & 0x00ffffff));
        value = static_cast<std::uint32_t>(at);
      }
      const std::uint64_t starts[] = {0, count};
      const PackedDocuments packed = pack_documents(values.data(), count, starts, 1);
      for (std::size_t block = 0; block < packed.firsts.size(); ++block) {
        const std::size_t n = std::min(kBlock, count - block * kBlock);
        const std::uint64_t offset = packed.offsets[block] & kOffsetMask;
        // An exact copy of the readable bytes, so that AddressSanitizer detects an over-read.
        const fixture::Bytes exact(packed.bytes.begin() + static_cast<std::ptrdiff_t>(offset),
                                   packed.bytes.end());
        std::uint32_t out[kBlock];
        const auto width = static_cast<unsigned>(packed.offsets[block] >> kBitsShift);
        CHECK(unpack_documents(exact.data(), exact.size(), width, packed.firsts[block], n - 1, out) ==
              values[block * kBlock + n - 1]);
        CHECK(std::equal(out, out + n, values.begin() + static_cast<std::ptrdiff_t>(block * kBlock)));
      }
    }
}

void test_unpacked_sums_do_not_wrap() {
  const fixture::Bytes ones(4 * kBlock + kPadding, 0xff);
  std::uint32_t out[kBlock];
  CHECK(unpack_documents(ones.data(), ones.size(), 32, 5, kBlock - 1, out) ==
        5 + 127 * std::uint64_t{UINT32_MAX});
}

void test_counts() {
  const std::vector<std::uint32_t> counts{1, 4, 2, 1, UINT32_MAX};
  const std::uint64_t starts[] = {0, 4, 5};
  const PackedCounts packed = pack_counts(counts.data(), counts.size(), starts, 2);
  CHECK(packed.offsets.size() == 3 && packed.offsets[0] >> kBitsShift == 2 &&
        packed.offsets[1] >> kBitsShift == 32);
  std::uint32_t out[kBlock];
  unpack_counts(packed.bytes.data(), packed.bytes.size(), 2, 4, out);
  CHECK(std::equal(out, out + 4, counts.begin()));
}

void test_crc() {
  const fixture::Bytes data = fixture::random_bytes(20'000, 7);
  CHECK(crc32c(reinterpret_cast<const std::uint8_t*>("123456789"), 9) == 0xe3069283u);
  for (std::size_t size : {0, 1, 7, 8, 9, 3071, 3072, 3073, 20'000}) {
    CHECK(crc32c(data.data(), size) == crc32c_portable(data.data(), size));
    CHECK(crc32c(data.data() + size / 3, size - size / 3, crc32c(data.data(), size / 3)) ==
          crc32c(data.data(), size));
  }
}

void test_halves() {
  CHECK(half_to_float(0x3c00) == 1.0f && half_to_float(0xc000) == -2.0f &&
        half_to_float(0x0001) == std::ldexp(1.0f, -24));
  CHECK(std::isinf(half_to_float(0x7c00)) && std::isnan(half_to_float(0x7e00)) &&
        std::signbit(half_to_float(0x8000)));
  for (std::uint32_t half = 0; half < 0x7c00u; ++half) {
    const float value = half_to_float(static_cast<std::uint16_t>(half));
    CHECK(half_at_or_above(value) == half);
    CHECK(half_at_or_above(std::nextafter(value, 1e9f)) == half + 1);
  }
}

void test_sort() {
  std::uint32_t seed = 3;
  std::vector<std::uint32_t> keys(5000), expected(5000);
  for (std::uint32_t& key : keys) key = next_random(seed) & 0xff0000ffu;
  std::iota(expected.begin(), expected.end(), 0u);
  std::stable_sort(expected.begin(), expected.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return keys[a] < keys[b]; });
  CHECK(sort_by_key(keys.data(), keys.size()) == expected);
}

void test_top_k_with_ties() {
  std::uint32_t seed = 9;
  for (std::size_t k : {0, 1, 3, 100, 5000}) {
    TopK best(k);
    std::vector<Scored> all;
    for (std::uint64_t n = 0; n < 3000; ++n) {
      const Scored entry{static_cast<float>(next_random(seed) >> 26), n};  // few distinct values, many ties
      best.push(entry.score, n);
      all.push_back(entry);
    }
    best.push(std::numeric_limits<float>::quiet_NaN(), 9999);
    std::sort(all.begin(), all.end(), better);
    all.resize(std::min(k, all.size()));
    const std::vector<Scored> actual = best.sorted();
    CHECK(actual.size() == all.size());
    for (std::size_t i = 0; i < all.size(); ++i)
      CHECK(actual[i].score == all[i].score && actual[i].number == all[i].number);
  }
}

// The tables of this machine's instruction sets, also the one that another of the same name replaces.
std::vector<const Kernels*> kernel_tables() {
  std::vector<const Kernels*> tables;
  for (const std::string& name : instruction_sets()) {
    use_instruction_set(name);
    tables.push_back(&kernels());
  }
#if defined(__x86_64__)
  if (tables.back() == &kAvx512VbmiKernels) tables.push_back(&kAvx512Kernels);
#endif
  return tables;
}

struct alignas(64) Line {
  std::int8_t bytes[64];
};

// Bucket values and what is derived from them.
struct SampleValues {
  SampleValues(unsigned bits, unsigned memory) : bytes(bits == 0 ? 0 : std::size_t{256} << memory) {
    values.bits = bits;
    values.memory = memory;
    for (std::size_t i = 0; i < 64; ++i) values.buckets[i] = static_cast<std::uint8_t>(i * 37 + i / 7);
    for (std::size_t byte = 0; byte < bytes.size(); ++byte)
      for (std::size_t i = 0; i < 8 / bits; ++i)
        bytes[byte] |= static_cast<std::uint64_t>(values.buckets[byte >> (bits * i) & ((1u << (bits + memory)) - 1)]) << (8 * i);
    values.bytes = bytes.data();
  }
  SampleValues(const SampleValues&) = delete;
  SampleValues& operator=(const SampleValues&) = delete;

  TokenValues values;
  std::vector<std::uint64_t> bytes;
};

// Products of `rows` tokens, whose codes are exact-sized copies, with 32 query tokens.
std::vector<float> token_kernels(const Kernels& set, std::size_t d, std::size_t rows, unsigned bits, unsigned memory) {
  const std::size_t width = bits == 0 ? d : d * bits / 8, groups = (d + 3) / 4;
  const fixture::Bytes codes = fixture::random_bytes(rows * width, 5),
                       noise = fixture::random_bytes(groups * 128, 6);
  const SampleValues sample(bits, memory);
  std::vector<Line> query(groups * 2);
  for (std::size_t i = 0; i < groups * 128; ++i)
    if (i / 128 * 4 + i % 4 < d)
      query[i / 64].bytes[i % 64] = static_cast<std::int8_t>(std::max(-127, noise[i] - 128));
  alignas(64) std::uint8_t tokens[kTileRows * kTokenStride] = {};
  alignas(64) std::int32_t sums[kTileRows * kKeyBlock] = {};
  set.unpack_tokens(codes.data(), rows, width, sample.values, tokens);
  set.token_products(tokens, rows, query[0].bytes, groups, sums);
  std::vector<float> out(sums, sums + rows * kKeyBlock), scales(kKeyBlock), biases(kKeyBlock);
  std::vector<std::int32_t> offsets(kKeyBlock), numbers(rows * kKeyBlock);
  for (std::size_t i = 0; i < kKeyBlock; ++i)
    offsets[i] = static_cast<std::int32_t>(i * 97), scales[i] = 0.01f * static_cast<float>(i),
    biases[i] = -0.3f * static_cast<float>(i % 5);
  std::vector<float> best(kKeyBlock, -1e9f), nearest(rows * kKeyBlock, 10.0f);
  set.scaled_maxima(sums, rows, scales.data(), offsets.data(), scales.data(), best.data());
  set.nearest_rows(sums, rows, scales.data(), {offsets.data(), scales.data(), biases.data()}, 64,
                   nearest.data(), numbers.data());
  out.insert(out.end(), best.begin(), best.end()), out.insert(out.end(), nearest.begin(), nearest.end());
  out.insert(out.end(), numbers.begin(), numbers.end());
  return out;
}

void test_token_kernels_agree() {
  for (const Kernels* set : kernel_tables())
    for (const unsigned bits : {0u, 1u, 2u, 4u})
      for (const std::size_t d : {1, 3, 7, 8, 24, 32, 40, 64, 96, 100, 128, 136, 1024})
        for (const std::size_t rows : {1, 2, 5, 13, 14})
          for (const unsigned memory : {0u, kWindowBits - bits})
            if (bits == 0 ? memory == 0 : d % 8 == 0)
              CHECK(token_kernels(*set, d, rows, bits, memory) == token_kernels(kPortableKernels, d, rows, bits, memory));
}

// Readable bytes between two pages that are not: an access before or after them ends the process.
class GuardedBytes {
 public:
  explicit GuardedBytes(std::size_t size)
      : page_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))), size_((size + page_ - 1) / page_ * page_) {
    void* mapped = mmap(nullptr, size_ + 2 * page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mapped != MAP_FAILED);
    first_ = static_cast<std::uint8_t*>(mapped);
    CHECK(mprotect(first_, page_, PROT_NONE) == 0 && mprotect(first_ + page_ + size_, page_, PROT_NONE) == 0);
  }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;
  ~GuardedBytes() { munmap(first_, size_ + 2 * page_); }

  std::uint8_t* begin() const { return first_ + page_; }
  std::uint8_t* end() const { return begin() + size_; }

 private:
  std::size_t page_, size_;
  std::uint8_t* first_;
};

void test_tokens_are_unpacked_within_their_bytes() {
  constexpr std::size_t kRows = 3;
  const GuardedBytes area(kRows * kMaxTokenBytes);
  const std::vector<const Kernels*> tables = kernel_tables();
  for (const unsigned bits : {1u, 2u, 4u})
    for (const unsigned memory : {0u, kWindowBits - bits}) {
      const SampleValues sample(bits, memory);
      for (std::size_t d = 8; d <= kMaxTokenBytes; d += 8) {
        const std::size_t width = d * bits / 8;
        const fixture::Bytes random = fixture::random_bytes(kRows * width, static_cast<std::uint32_t>(d));
        for (std::uint8_t* codes : {area.begin(), area.end() - random.size()}) {
          std::copy(random.begin(), random.end(), codes);
          std::vector<std::uint8_t> expected(kRows * kTokenStride);
          kPortableKernels.unpack_tokens(codes, kRows, width, sample.values, expected.data());
          for (const Kernels* set : tables) {
            std::vector<std::uint8_t> actual(kRows * kTokenStride);
            set->unpack_tokens(codes, kRows, width, sample.values, actual.data());
            for (std::size_t row = 0; row < kRows; ++row)
              CHECK(std::memcmp(&actual[row * kTokenStride], &expected[row * kTokenStride], d) == 0);
          }
        }
      }
    }
}

// The squared error of a row's codes along a trellis.
float trellis_error(const float* row, const std::uint8_t* codes, std::size_t d, const float* values, unsigned bits) {
  float error = 0;
  for (std::size_t i = 0, window = 0; i < d; ++i) {
    window = window >> bits | static_cast<std::size_t>(codes[i]) << (kWindowBits - bits);
    error += (row[i] - values[window]) * (row[i] - values[window]);
  }
  return error;
}

void test_trellis_kernels_agree_and_are_best() {
  std::vector<float> values(64);
  for (std::size_t i = 0; i < 64; ++i) values[i] = static_cast<float>(i * 29 % 64) / 16 - 2;
  for (const unsigned bits : {1u, 2u, 4u})
    for (const std::size_t d : {1, 2, 3, 5, 8, 24, 128}) {
      const std::size_t n = 37;
      const fixture::Bytes random = fixture::random_bytes(n * d, 3);
      std::vector<float> rows(random.begin(), random.end());
      for (float& value : rows) value = value / 64 - 2;
      use_instruction_set("portable");
      const std::vector<std::uint8_t> codes = trellis_codes(rows.data(), n, d, values.data(), bits);
      for (const std::string& name : instruction_sets()) {
        use_instruction_set(name);
        CHECK(trellis_codes(rows.data(), n, d, values.data(), bits) == codes);
      }
      for (std::size_t number = 0; d * bits <= 8 && number < std::size_t{1} << (d * bits); ++number) {
        std::vector<std::uint8_t> other(d);
        for (std::size_t i = 0; i < d; ++i) other[i] = static_cast<std::uint8_t>(number >> (i * bits) & ((1u << bits) - 1));
        for (std::size_t row = 0; row < n; ++row)
          CHECK(trellis_error(&rows[row * d], &codes[row * d], d, values.data(), bits) <=
                trellis_error(&rows[row * d], other.data(), d, values.data(), bits));
      }
    }
  CHECK_THROWS(std::invalid_argument, trellis_codes(values.data(), 1, 8, values.data(), 3));
  CHECK(trellis_codes(values.data(), 5, 0, values.data(), 2).empty());
}

void test_rotation_is_its_own_inverse() {
  for (const std::size_t d : {8, 24, 128, 136}) {
    std::vector<float> rows(2 * d);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i * 7 % 16);
    std::vector<float> rotated = rows;
    rotate(rotated.data(), 2, d);
    CHECK(rotated != rows);
    rotate(rotated.data(), 2, d);
    for (std::size_t i = 0; i < rows.size(); ++i) CHECK(std::abs(rotated[i] - rows[i]) < 1e-4f);
  }
}

// Large rows are rotated as their 2^-100 is.
void test_rotations_of_large_rows_are_finite() {
  for (const std::size_t d : {8, 24, 100, 128, 136, 1024})
    for (const float large : {1.0f, 0x1p100f, 0x1p118f, 0x1.8p120f, 0x1p126f, std::numeric_limits<float>::max()}) {
      std::vector<float> rows(2 * d);
      for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = i % 7 == 3 ? -large : large / static_cast<float>(1 + i % 3);
      std::fill_n(rows.begin(), d, large);
      std::vector<float> small = rows;
      for (float& value : small) value *= 0x1p-100f;
      const std::vector<float> divisors = rotate_scaled(rows.data(), 2, d);
      rotate(small.data(), 2, d);
      for (std::size_t i = 0; i < rows.size(); ++i)
        CHECK(std::isfinite(rows[i]) && rows[i] * 0x1p-100f * divisors[i / d] == small[i]);
      CHECK(divisors[0] == (large * static_cast<float>(d & (~d + 1)) <= std::numeric_limits<float>::max() ? 1.0f : static_cast<float>(d & (~d + 1))));
      CHECK(divisors[1] == divisors[0]);
    }
  CHECK(rotate_scaled(nullptr, 3, 0) == std::vector<float>(3, 1.0f));
}

void test_codes_of_infinite_numbers() {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> x{1.0f, infinity, -infinity, std::numeric_limits<float>::quiet_NaN()};
  std::vector<std::int8_t> codes(kQueryPadding);
  CHECK(quantize_query(x.data(), x.size(), codes.data()) == infinity);
  CHECK(codes[0] == 0 && codes[1] == -127 && codes[2] == -127 && codes[3] == -127);
}

// The nearest centroid of vectors that are centroids themselves, with and without groups.
void test_nearest_centroids() {
  const std::size_t n = 100, d = 12;
  const fixture::Bytes random = fixture::random_bytes(n * d, 3);
  std::vector<std::int8_t> codes(n * d);
  std::vector<float> vectors(n * d);
  for (std::size_t i = 0; i < codes.size(); ++i)
    codes[i] = static_cast<std::int8_t>(std::max(-127, random[i] - 128)), vectors[i] = codes[i];
  std::copy_n(codes.begin(), d, codes.begin() + 50 * d);  // the same as the first, which wins the tie
  std::copy_n(vectors.begin(), d, vectors.begin() + 50 * d);
  const std::vector<std::uint16_t> scales(n, 0x3c00);
  std::vector<std::uint32_t> all(n), even_then_odd(n);
  std::iota(all.begin(), all.end(), 0u);
  for (std::uint32_t i = 0; i < n; ++i) even_then_odd[i] = i < n / 2 ? 2 * i + 1 : 2 * (i - n / 2);
  const std::vector<std::int8_t> heads(2 * d);
  const NearestCentroids one(codes.data(), scales.data(), n, d, heads.data(), scales.data(), {0, n}, all, 1);
  const NearestCentroids two(codes.data(), scales.data(), n, d, heads.data(), scales.data(), {0, n / 2, n},
                             even_then_odd, 2);
  std::vector<std::uint32_t> expected = all;
  expected[50] = 0;
  for (const std::string& name : instruction_sets()) {
    use_instruction_set(name);
    CHECK(one.nearest(vectors.data(), n) == expected && two.nearest(vectors.data(), n) == expected);
  }
}

// Inputs are exact-sized heap copies, so that AddressSanitizer detects over-reads.
void test_kernels_agree_and_stay_in_bounds() {
  for (const Kernels* table : kernel_tables()) {
    const Kernels& set = *table;
    for (std::size_t d : {1, 3, 8, 15, 16, 17, 31, 32, 33, 64, 100, 128})
      for (std::size_t n : {1, 5, 15, 16, 17, 40, 128}) {
        const fixture::Bytes codes = fixture::random_bytes(n * d, 5), vectors = fixture::halves(n * d),
                             scales = fixture::halves(n);
        std::vector<std::int8_t> q((d + 63) / 64 * 64);
        std::vector<float> x((d + 15) / 16 * 16), actual(n), expected(n);
        std::int32_t sum = 0;
        for (std::size_t j = 0; j < d; ++j)
          q[j] = static_cast<std::int8_t>(j * 37 % 255 - 127), x[j] = 0.37f * static_cast<float>(j) - 1.0f,
          sum += q[j];
        set.int8(codes.data(), scales.data(), n, d, {q.data(), sum, 0.3f}, actual.data());
        kPortableKernels.int8(codes.data(), scales.data(), n, d, {q.data(), sum, 0.3f}, expected.data());
        CHECK(actual == expected);
        set.fp16(vectors.data(), n, d, x.data(), actual.data());
        kPortableKernels.fp16(vectors.data(), n, d, x.data(), expected.data());
        CHECK(actual == expected);
        set.sparse(vectors.data(), n, 1.1f, actual.data());
        kPortableKernels.sparse(vectors.data(), n, 1.1f, expected.data());
        CHECK(actual == expected);
        std::vector<std::int16_t> entries(2 * d * kCentroids), others(2 * d * kCentroids);
        std::vector<float> scratch(d * kCentroids), centroids(d * kCentroids);
        for (std::size_t i = 0; i < centroids.size(); ++i) centroids[i] = static_cast<float>(i % 101) * 0.31f;
        const float step = set.pq_table(centroids.data(), d, 1, x.data(), scratch.data(), entries.data());
        CHECK(step ==
              kPortableKernels.pq_table(centroids.data(), d, 1, x.data(), scratch.data(), others.data()));
        CHECK(std::equal(entries.begin(), entries.begin() + d * kCentroids, others.begin()));
        set.pq(codes.data(), n, d, {entries.data(), step}, 0.7f, actual.data());
        kPortableKernels.pq(codes.data(), n, d, {others.data(), step}, 0.7f, expected.data());
        CHECK(actual == expected);
      }
  }
}

// Reference for `finish`: each run's maximum at its start, 0 in the rest, floored, never -0.0.
std::vector<float> reference_finish(const std::vector<std::uint32_t>& documents,
                                    const std::vector<float>& values, bool floor) {
  std::vector<float> out(values.size(), 0.0f);
  std::size_t start = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i > 0 && documents[i] != documents[i - 1]) start = i;
    out[start] = i == start ? values[i] : std::max(out[start], values[i]);
  }
  for (float& value : out) value = floor ? std::max(value, 0.0f) + 0.0f : value + 0.0f;
  return out;
}

void test_finish_and_collect() {
  for (const std::string& name : instruction_sets()) {
    use_instruction_set(name);
    for (std::size_t n : {1, 2, 16, 17, 64, 65, 128, 129})
      for (std::size_t run : {1, 2, 3, 7, 15, 16, 17, 40, 200})
        for (bool floor : {true, false}) {
          std::vector<std::uint32_t> documents(n + 1);
          std::vector<float> values(n);
          for (std::size_t i = 0; i < n; ++i) {
            documents[i + 1] =
                static_cast<std::uint32_t>(i % 5 == 0 ? i / run * 2 : i / run * 2 + (i / run % 3 == 0));
            values[i] = static_cast<float>(i * 37 % 23) - 11.0f;
          }
          std::sort(documents.begin() + 1, documents.end());
          documents[0] = documents[1];  // the entry before the first must not be compared
          const std::vector<float> expected =
              reference_finish({documents.begin() + 1, documents.end()}, values, floor);
          kernels().finish(documents.data() + 1, values.data(), n, floor);
          CHECK(values == expected);
        }
    for (float threshold : {-std::numeric_limits<float>::infinity(), -1.0f, 0.0f, 2.0f}) {
      std::vector<float> sums(208, -0.0f), values(208 + kLanes);
      for (std::size_t i = 0; i < sums.size(); i += 3) sums[i] = static_cast<float>(i % 7) - 3.0f;
      std::vector<std::uint32_t> offsets(208 + kLanes), expected;
      for (std::uint32_t i = 0; i < sums.size(); ++i)
        if (std::bit_cast<std::uint32_t>(sums[i]) != kUntouched && sums[i] >= threshold)
          expected.push_back(i);
      const std::vector<float> before = sums;
      offsets.resize(kernels().collect(sums.data(), sums.size(), threshold, offsets.data(), values.data()));
      CHECK(offsets == expected);
      for (std::size_t i = 0; i < expected.size(); ++i) CHECK(values[i] == before[expected[i]]);
      for (float sum : sums) CHECK(std::bit_cast<std::uint32_t>(sum) == kUntouched);
    }
  }
}

// Scores in an order that makes the top k shrink often, with `distinct` different values.
void test_top_k_shrinks_correctly() {
  for (std::size_t k : {1, 10, 255, 256, 300, 1000})
    for (std::uint64_t distinct : {1, 3, 997, 100003}) {
      TopK best(k);
      std::vector<Scored> all;
      for (std::uint64_t number = 0; number < 5000; ++number) {
        const auto score =
            (static_cast<float>(number * 7919 % distinct) - static_cast<float>(distinct) / 3) * 0.125f;
        all.push_back({score, number});
        best.push(score, number);
      }
      best.push(std::numeric_limits<float>::quiet_NaN(), 5000);
      std::sort(all.begin(), all.end(), better);
      const std::vector<Scored> actual = best.sorted();
      CHECK(actual.size() == k);
      for (std::size_t i = 0; i < k; ++i)
        CHECK(actual[i].score == all[i].score && actual[i].number == all[i].number);
    }
}

struct Table {
  std::size_t keys, width;
  float step;
  std::uint8_t zero;
  fixture::Bytes codes;  // signed
  std::vector<float> scales, biases;

  Router router() const {
    return Router(reinterpret_cast<const std::int8_t*>(codes.data()), scales.data(), biases.data(), keys,
                  width, step, zero);
  }
};

// Few distinct logits, hence many ties.
Table make_table(std::size_t keys, std::size_t width) {
  Table table{keys, width, 0.5f, 17, fixture::random_bytes(keys * width, 5), {}, {}};
  for (std::size_t key = 0; key < keys; ++key) {
    table.scales.push_back(key % 3 == 0 ? 0.25f : 0.0f);
    table.biases.push_back(static_cast<float>(key % 5) - 2.0f);
  }
  return table;
}

BestKeys reference_best_keys(const Table& table, const fixture::Bytes& states, std::size_t n,
                             std::size_t max_keys) {
  BestKeys best;
  for (std::size_t row = 0; row < n; ++row) {
    std::vector<Scored> all;
    for (std::size_t key = 0; key < table.keys; ++key) {
      std::int32_t sum = 0;
      for (std::size_t i = 0; i < table.width; ++i)
        sum += (states[row * table.width + i] - table.zero) *
               static_cast<std::int8_t>(table.codes[key * table.width + i]);
      all.push_back({static_cast<float>(sum) * (table.step * table.scales[key]) + table.biases[key], key});
    }
    std::sort(all.begin(), all.end(), better);
    for (std::size_t i = 0; i < max_keys; ++i) {
      best.keys.push_back(static_cast<std::int64_t>(all[i].number));
      best.weights.push_back(static_cast<float>(std::log(1.0 + std::max(all[i].score, 0.0f))));
    }
  }
  return best;
}

// Covers every tile size, and widths and key counts that do not fill a group or block.
void test_router() {
  for (std::size_t width : {1, 4, 6, 64})
    for (std::size_t keys : {1, 31, 32, 100}) {
      const Table table = make_table(keys, width);
      const Router router = table.router();
      const std::size_t max_keys = std::min<std::size_t>(keys, 5);
      for (std::size_t n = 0; n <= 30; ++n) {
        const fixture::Bytes states = fixture::random_bytes(n * width, 11);
        const BestKeys expected = reference_best_keys(table, states, n, max_keys);
        for (const std::string& name : instruction_sets()) {
          use_instruction_set(name);
          const BestKeys actual = router.best(states.data(), n, max_keys);
          CHECK(actual.keys == expected.keys && actual.weights == expected.weights);
        }
      }
      CHECK_THROWS(std::invalid_argument, router.best(nullptr, 0, 0));
      CHECK_THROWS(std::invalid_argument, router.best(nullptr, 0, keys + 1));
    }
}

// Values near the middle of two codes, for which a product with 127 / largest rounds differently from two divisions.
void test_rows() {
  for (const std::size_t n : {1, 7, 16, 33, 2000})
    for (const float largest : {1e-40f, 1e-3f, 1.7f, 3e5f}) {
      std::vector<float> x(n), scratch(n);
      for (std::size_t i = 0; i < n; ++i) x[i] = (static_cast<float>(i % 254) - 126.5f) / 127.0f * largest;
      x[0] = -largest;
      std::vector<std::uint8_t> codes(n), expected(n);
      for (std::size_t i = 0; i < n; ++i)
        expected[i] = static_cast<std::uint8_t>(std::nearbyint((x[i] / largest) / (1.0f / 127.0f)) + 128.0f);
      for (const std::string& name : instruction_sets()) {
        use_instruction_set(name);
        CHECK(kernels().quantize_row(x.data(), n, codes.data()) == largest && codes == expected);
        const std::vector<float> zeros(n);
        kernels().gelu_row(x.data(), 1.0f, zeros.data(), n, scratch.data(), codes.data());
        for (std::size_t i = 0; i < n; ++i) {
          const double exact = 0.5 * x[i] * (1.0 + std::erf(x[i] * 0.70710678118654752440));
          CHECK(std::abs(scratch[i] - exact) <= 1e-6 * std::max(1.0f, std::abs(x[i])));
        }
      }
    }
}

// Sums above their thresholds, and single products, of every width.
void test_bounds() {
  const fixture::Bytes states = fixture::random_bytes(500, 3), codes = fixture::random_bytes(500, 4);
  const auto* signed_codes = reinterpret_cast<const std::int8_t*>(codes.data());
  alignas(64) std::int32_t sums[14 * kKeyBlock], thresholds[kKeyBlock];
  for (std::size_t i = 0; i < std::size(sums); ++i) sums[i] = static_cast<std::int32_t>(i * 7919 % 101) - 50;
  for (std::size_t i = 0; i < kKeyBlock; ++i) thresholds[i] = static_cast<std::int32_t>(i) - 16;
  for (const std::string& name : instruction_sets()) {
    use_instruction_set(name);
    std::uint32_t above[14];
    kernels().exceeding(sums, 14, thresholds, above);
    for (std::size_t i = 0; i < std::size(sums); ++i)
      CHECK((above[i / kKeyBlock] >> i % kKeyBlock & 1) == (sums[i] > thresholds[i % kKeyBlock]));
    std::int32_t sum = 0;
    for (std::size_t width = 0; width < 500; ++width) {
      CHECK(kernels().byte_product(states.data(), signed_codes, width) == sum);
      sum += states[width] * signed_codes[width];
    }
  }
}

// Blocks of every size and span, up to the last document of a set: members lie in one register, or in several.
void test_document_sets() {
  std::uint32_t seed = 3;
  for (const std::uint32_t gap : {0u, 1u, 2u, 20u, 40u, 500u})
    for (const std::size_t n : {1, 15, 16, 17, 100, 128})
      for (const std::uint32_t share : {1u, 3u, 100u}) {
        std::vector<std::uint32_t> documents(n);
        std::uint32_t at = next_random(seed) >> 22;
        for (std::uint32_t& document : documents) document = at, at += gap == 0 ? 0 : (next_random(seed) >> 16) % (2 * gap);
        const std::uint64_t count = documents.back() + 1;
        fixture::Bytes bitmap(divide_up(count, 8));
        for (std::uint64_t d = 0; d < count; ++d) bitmap[d >> 3] |= static_cast<std::uint8_t>((next_random(seed) >> 16) % share == 0) << (d & 7);
        const DocumentSet set(bitmap.data(), nullptr, count);
        std::vector<std::uint32_t> expected, members;
        for (std::uint32_t i = 0; i < n; ++i)
          if (set.contains(documents[i])) expected.push_back(i);
        for (std::uint64_t d = set.next(0); d != DocumentSet::kEnd; d = set.next(d + 1)) members.push_back(static_cast<std::uint32_t>(d));
        CHECK(members == set.members() && members.size() == set.count());
        for (const std::string& name : instruction_sets()) {
          use_instruction_set(name);
          std::vector<std::uint32_t> positions(n + 16);
          positions.resize(kernels().select(documents.data(), n, set.words(), positions.data()));
          CHECK(positions == expected);
          if (n != kBlock) continue;
          positions.assign(n + 16, 0);
          positions.resize(kernels().match(documents.data(), members.data(), members.size(), positions.data()));
          CHECK(positions == expected);
        }
      }
}

}  // namespace

int main() {
  test_pack_every_width();
  test_unpacked_sums_do_not_wrap();
  test_counts();
  test_crc();
  test_halves();
  test_sort();
  test_top_k_with_ties();
  test_token_kernels_agree();
  test_tokens_are_unpacked_within_their_bytes();
  test_trellis_kernels_agree_and_are_best();
  test_rotation_is_its_own_inverse();
  test_rotations_of_large_rows_are_finite();
  test_codes_of_infinite_numbers();
  test_nearest_centroids();
  test_kernels_agree_and_stay_in_bounds();
  test_finish_and_collect();
  test_top_k_shrinks_correctly();
  test_router();
  test_rows();
  test_bounds();
  test_document_sets();
  std::puts("parts: ok");
}
