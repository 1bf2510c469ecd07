// Prints a checksum of the output of each kernel, one line per instruction set: equal lines mean equal bits, also between
// processors of different kinds.
#include <cstdio>

#include "citadel/bits.hpp"
#include "citadel/crc32c.hpp"
#include "citadel/dispatch.hpp"
#include "citadel/match_postings.hpp"
#include "citadel/nibbles.hpp"
#include "citadel/quantize.hpp"
#include "citadel/router.hpp"
#include "citadel/trellis.hpp"
#include "fixture.hpp"

using namespace citadel;
using fixture::next_random;

namespace {

class Digest {
 public:
  template <typename T>
  void add(const std::vector<T>& values) {
    value_ = crc32c(reinterpret_cast<const std::uint8_t*>(values.data()), sizeof(T) * values.size(), value_);
  }
  void print(const char* name) {
    std::printf(" %s=%08x", name, value_);
    value_ = 0;
  }

 private:
  std::uint32_t value_ = 0;
};

std::vector<float> random_floats(std::size_t n, std::uint32_t seed) {
  std::vector<float> values(n);
  for (float& value : values) value = static_cast<float>(static_cast<std::int32_t>(next_random(seed)) >> 8) * 1.1920929e-7f;
  return values;
}

void dot_products(Digest& digest) {
  for (const std::size_t d : {1, 16, 31, 32, 100, 384}) {
    const std::size_t n = 131;
    const fixture::Bytes codes = fixture::random_bytes(n * d, 5), halves = fixture::halves(n * d), scales = fixture::halves(n);
    std::vector<float> query = random_floats(d, 7), out(n);
    std::vector<std::int8_t> quantized((d + 63) / 64 * 64);
    const float scale = quantize_query(query.data(), d, quantized.data());
    std::int32_t sum = 0;
    for (const std::int8_t code : quantized) sum += code;
    query.resize((d + 15) / 16 * 16);
    kernels().int8(codes.data(), scales.data(), n, d, {quantized.data(), sum, scale}, out.data());
    digest.add(out);
    kernels().fp16(halves.data(), n, d, query.data(), out.data());
    digest.add(out);
    const std::vector<float> rows = random_floats(n * d, 11);
    kernels().fp32(reinterpret_cast<const std::uint8_t*>(rows.data()), n, d, query.data(), out.data());
    digest.add(out);
    kernels().sparse(halves.data(), n, 1.1f, out.data());
    digest.add(out);
    std::vector<std::uint8_t> nibbles(nibble_row_bytes(d));
    encode_nibbles(rows.data(), d, nibbles.data());
    const NibbleVector vector(query.data(), d);
    const std::uint8_t* row = nibbles.data();
    std::vector<float> score(1);
    score_nibbles(nibble_dots(), &row, 1, nibble_blocks(d), vector.query(), score.data());
    digest.add(score);
  }
  digest.print("dots");
}

void product_quantization(Digest& digest) {
  for (const std::size_t sub : {1, 4, 8}) {
    const std::size_t subvectors = 9, n = 37;
    const std::vector<float> centroids = random_floats(subvectors * sub * kCentroids, 3), rows = random_floats(n * subvectors * sub, 4);
    std::vector<std::uint8_t> codes(n * subvectors);
    kernels().pq_assign(rows.data(), n, centroids.data(), subvectors, sub, codes.data());
    digest.add(codes);
    std::vector<float> scratch(subvectors * kCentroids), out(n);
    std::vector<std::int16_t> entries(2 * subvectors * kCentroids);
    const float step = kernels().pq_table(centroids.data(), subvectors, sub, rows.data(), scratch.data(), entries.data());
    kernels().pq(codes.data(), n, subvectors, {entries.data(), step}, 0.7f, out.data());
    digest.add(out);
  }
  digest.print("pq");
}

void scan(Digest& digest) {
  std::uint32_t seed = 17;
  for (const std::uint32_t gap : {1u, 2u, 9u}) {
    std::vector<std::uint32_t> documents(128), lengths(128 * 9 + 1), counts(128), positions(128 + 16);
    std::uint32_t at = 0;
    for (std::uint32_t& document : documents) document = at, at += next_random(seed) % gap;
    for (std::uint32_t& length : lengths) length = next_random(seed) % 1000;
    for (std::uint32_t& count : counts) count = 1 + next_random(seed) % 30;
    std::vector<float> values(128);
    kernels().bm25(documents.data(), reinterpret_cast<const std::uint8_t*>(lengths.data()), counts.data(), 128, 0.9f, 0.01f, 2.3f, values.data());
    for (std::size_t i = 0; i < values.size(); i += 3) values[i] = -values[i];
    for (const bool floor : {true, false}) {
      std::vector<float> finished = values, kept(128 + kLanes);
      std::vector<std::uint32_t> offsets(128 + kLanes);
      kernels().finish(documents.data(), finished.data(), 128, floor);
      digest.add(finished);
      offsets.resize(kernels().collect(finished.data(), 128, 0.5f, offsets.data(), kept.data()));
      kept.resize(offsets.size());
      digest.add(offsets), digest.add(kept), digest.add(finished);
    }
    std::vector<std::uint64_t> set(128 * 9 / 64 + 9);
    for (std::uint64_t& word : set) word = std::uint64_t{next_random(seed)} << 32 | next_random(seed);
    positions.resize(kernels().select(documents.data(), 128, set.data(), positions.data()));
    digest.add(positions);
    digest.add(std::vector<std::uint64_t>{match_postings()(documents.data(), 63, {3, 50})});
  }
  digest.print("scan");
}

void router(Digest& digest) {
  for (const std::size_t width : {6, 64, 384}) {
    const std::size_t keys = 100;
    const fixture::Bytes codes = fixture::random_bytes(keys * width, 2);
    const std::vector<float> scales = random_floats(keys, 5), biases = random_floats(keys, 6);
    const Router table(reinterpret_cast<const std::int8_t*>(codes.data()), scales.data(), biases.data(), keys, width, 0.01f, 121);
    for (const std::size_t n : {1, 2, 13, 14, 15, 30}) {
      const fixture::Bytes states = fixture::random_bytes(n * width, 8);
      const BestKeys best = table.best(states.data(), n, 5);
      digest.add(best.keys), digest.add(best.weights);
    }
  }
  digest.print("router");
}

void rows(Digest& digest) {
  for (const std::size_t n : {1, 15, 16, 40, 384}) {
    std::vector<float> sums = random_floats(n, 3), bias = random_floats(n, 4), out(n), scratch(n);
    std::vector<std::uint8_t> codes(n);
    std::vector<std::int32_t> products(n);
    for (std::size_t i = 0; i < n; ++i) products[i] = static_cast<std::int32_t>(sums[i] * 1e5f);
    const std::size_t lead = n / 8 * 4;
    float squares[3];
    kernels().bound_bytes(products.data(), bias.data(), sums.data(), lead, n, codes.data(), squares);
    digest.add(codes), digest.add(std::vector<float>(squares, squares + 3));
    for (const float scale : {1e-3f, 1.0f, 7.0f}) {
      digest.add(std::vector<float>{kernels().gelu_row(sums.data(), scale, bias.data(), n, scratch.data(), codes.data())});
      digest.add(scratch), digest.add(codes);
      kernels().add_row(sums.data(), scale, bias.data(), scratch.data(), n, out.data());
      digest.add(out);
      kernels().scale_row(sums.data(), scale, n, out.data());
      digest.add(out), digest.add(std::vector<float>{kernels().quantize_row(out.data(), n, codes.data())}), digest.add(codes);
    }
  }
  digest.print("rows");
}

void packed(Digest& digest) {
  std::uint32_t seed = 23;
  for (const unsigned bits : {1u, 5u, 13u}) {
    for (const std::size_t count : {kBlock, kBlock - 1, std::size_t{9}}) {
      const fixture::Bytes bytes = fixture::random_bytes(packed_bytes(count, bits) + 2 * kBlock, next_random(seed));
      std::vector<std::uint32_t> documents(count + 1), counts(count);
      digest.add(std::vector<std::uint64_t>{kernels().unpack_documents(bytes.data(), bytes.size(), bits, 7, count, documents.data())});
      kernels().unpack_counts(bytes.data(), bytes.size(), bits, count, counts.data());
      digest.add(documents), digest.add(counts);
      if (count + 1 != kBlock) continue;
      std::vector<std::uint32_t> members{7, documents[60], documents[60] + 1, documents[127]}, positions(members.size() + kLanes);
      positions.resize(kernels().match(documents.data(), members.data(), members.size(), positions.data()));
      digest.add(positions);
    }
  }
  digest.print("packed");
}

void residuals(Digest& digest) {
  const std::size_t groups = 8, rows = kTileRows;
  struct alignas(64) Line {
    std::uint8_t bytes[64];
  };
  const fixture::Bytes random = fixture::random_bytes(groups * kKeyBlock * 4, 3), states = fixture::random_bytes(groups * rows * 4, 4);
  std::vector<Line> codes(random.size() / sizeof(Line));
  std::memcpy(codes.data(), random.data(), random.size());
  for (Line& line : codes)
    for (std::uint8_t& byte : line.bytes) byte = byte == 0x80 ? 0x81 : byte;  // codes of queries are not −128
  std::vector<std::uint32_t> packed_states(states.size() / 4);
  std::memcpy(packed_states.data(), states.data(), states.size());
  const std::vector<float> lengths = random_floats(rows, 5), steps = random_floats(kKeyBlock, 6), products = random_floats(rows * kKeyBlock, 8);
  alignas(64) std::int32_t sums[kTileRows * kKeyBlock] = {};  // kernels store them aligned
  std::vector<std::int32_t> offsets(kKeyBlock);
  for (std::size_t i = 0; i < kKeyBlock; ++i) offsets[i] = 128 * (static_cast<std::int32_t>(i) - 11);
  std::vector<const float*> bases;
  for (std::size_t row = 0; row < rows; ++row) bases.push_back(products.data() + row * kKeyBlock);
  std::vector<float> best(kKeyBlock, -1e30f), scaled(rows * kKeyBlock);
  std::vector<std::int32_t> numbers(rows * kKeyBlock);
  const fixture::Bytes tokens = fixture::random_bytes(rows * kTokenStride, 9);
  for (const std::size_t n : {rows, std::size_t{3}}) {
    kernels().byte_products(packed_states.data(), n, reinterpret_cast<const std::int8_t*>(codes.data()), groups, 0, sums);
    kernels().residual_maxima(sums, n, bases.data(), lengths.data(), offsets.data(), steps.data(), best.data());
    kernels().scaled_products(sums, n, lengths.data(), offsets.data(), steps.data(), scaled.data());
    digest.add(std::vector<std::int32_t>(sums, sums + rows * kKeyBlock)), digest.add(best), digest.add(scaled);
    kernels().token_products(tokens.data(), n, reinterpret_cast<const std::int8_t*>(codes.data()), groups,
                             sums);
    kernels().scaled_maxima(sums, n, lengths.data(), offsets.data(), steps.data(), best.data());
    kernels().nearest_rows(sums, n, lengths.data(), {offsets.data(), steps.data(), products.data()}, 7,
                           scaled.data(), numbers.data());
    digest.add(std::vector<std::int32_t>(sums, sums + rows * kKeyBlock)), digest.add(best),
        digest.add(scaled), digest.add(numbers);
  }
  std::vector<float> values = random_floats(64, 10), vectors = random_floats(rows * 64, 11);
  rotate(vectors.data(), rows, 64);
  digest.add(vectors);
  for (const unsigned bits : {1u, 2u, 4u}) {
    const std::vector<std::uint8_t> chosen = trellis_codes(vectors.data(), rows, 64, values.data(), bits);
    digest.add(std::vector<std::int32_t>(chosen.begin(), chosen.end()));
  }
  digest.print("residuals");
}

void checksums(Digest& digest) {
  const fixture::Bytes data = fixture::random_bytes(20'000, 9);
  for (const std::size_t size : {0, 7, 3072, 20'000}) digest.add(std::vector<std::uint32_t>{crc32c(data.data(), size)});
  digest.print("crc32c");
}

}  // namespace

int main() {
  for (const std::string& name : instruction_sets()) {
    use_instruction_set(name);
    std::printf("%s", name.c_str());
    Digest digest;
    dot_products(digest), product_quantization(digest), scan(digest), router(digest), rows(digest), packed(digest), residuals(digest), checksums(digest);
    std::printf("\n");
  }
}
