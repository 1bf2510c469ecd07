// The inner loops, compiled once for each instruction set and chosen at run time. Every set gives the same bits: fp32
// without fused multiply-add, sums in a fixed order (native/README.md has the arithmetic).
#pragma once

#include <cstddef>
#include <cstdint>

namespace citadel {

constexpr std::size_t kCentroids = 256;
constexpr std::size_t kLanes = 16;           // of the fp16 and fp32 dot product
constexpr std::size_t kQueryPadding = 64;    // int8 query codes are padded with zeros to a multiple of this
constexpr std::uint32_t kUntouched = 0x80000000u;  // the bits of -0.0f, an accumulator no posting was added to

struct Int8Query {
  const std::int8_t* codes;  // [d rounded up to 64]
  std::int32_t sum;          // of the codes
  float scale;
};

// A query token's products with all centroids, in whole steps, so small that a sum over all sub-vectors fits 16 bits.
struct PqTable {
  const std::int16_t* entries;  // [S, 256], and behind them room for the same bytes in another order
  float step;
};

// What a block of keys has beside its codes: logit = (float)(Σ − offset) · scale + bias.
struct KeyNumbers {
  const std::int32_t* offsets;  // [32], as all three
  const float* scales;
  const float* biases;
};

constexpr std::size_t kKeyBlock = 32;
constexpr std::size_t kTileRows = 14;  // tokens whose sums with 32 keys fit the registers of AVX-512

constexpr std::size_t kAhead = 3 * 128;  // postings between what is prefetched and what is read

struct Kernels {
  const char* name;
  std::size_t prefetched;  // the dimension whose int8 kernel prefetches for itself, spread over its work; 0 for none
  // out[i] = ((float)⟨codes_i, q⟩ · scales_i) · q.scale
  void (*int8)(const std::uint8_t* codes, const std::uint8_t* scales, std::size_t n, std::size_t d, Int8Query q, float* out);
  // q is padded with zeros to a multiple of 16
  void (*fp16)(const std::uint8_t* vectors, std::size_t n, std::size_t d, const float* q, float* out);
  void (*fp32)(const std::uint8_t* vectors, std::size_t n, std::size_t d, const float* q, float* out);
  // out[i] = ((float)Σ_s entries[s][code_is] · step) · scale
  void (*pq)(const std::uint8_t* codes, std::size_t n, std::size_t subvectors, PqTable table, float scale, float* out);
  // centroids [S, sub, 256] (transposed), floats [S, 256] for its own use → entries [2, S, 256]; gives the step
  float (*pq_table)(const float* centroids, std::size_t subvectors, std::size_t sub, const float* q, float* floats, std::int16_t* entries);
  // vectors [n, S · sub], centroids as above → codes [n, S]
  void (*pq_assign)(const float* vectors, std::size_t n, const float* centroids, std::size_t subvectors, std::size_t sub,
                    std::uint8_t* codes);
  void (*sparse)(const std::uint8_t* values, std::size_t n, float weight, float* out);
  // lengths is u32[N]; documents are below N
  void (*bm25)(const std::uint32_t* documents, const std::uint8_t* lengths, const std::uint32_t* counts, std::size_t n,
               float base, float slope, float weight, float* out);
  // In place: the first entry of each run of one document gets the run's largest value, the others 0; none is -0.0, nor
  // below 0 when `floor`. n ≤ 192.
  void (*finish)(const std::uint32_t* documents, float* values, std::size_t n, bool floor);
  // Places and values of touched accumulators ≥ threshold, into [n + 16] each; all accumulators become untouched.
  // n is a multiple of 16.
  std::size_t (*collect)(float* accumulators, std::size_t n, float threshold, std::uint32_t* places, float* values);
  // See bits.hpp.
  std::uint64_t (*unpack_documents)(const std::uint8_t* in, std::uint64_t readable, unsigned bits, std::uint32_t first,
                                    std::size_t count, std::uint32_t* out);
  void (*unpack_counts)(const std::uint8_t* in, std::uint64_t readable, unsigned bits, std::size_t count, std::uint32_t* out);
  // sums[r, k] = Σ_g Σ_i states[g, r, i] · codes[g, k, i] of `rows` ≤ 14 tokens and 32 keys, exact; states are unsigned bytes
  // in fours, codes signed and on a bound of 64. The codes `ahead` bytes further are asked for.
  void (*byte_products)(const std::uint32_t* states, std::size_t rows, const std::int8_t* codes, std::size_t groups, std::size_t ahead,
                        std::int32_t* sums);
  // out[r, k] and the bits of the keys whose logit is above least[r]
  void (*logits)(const std::int32_t* sums, std::size_t rows, KeyNumbers numbers, const float* least, float* out, std::uint32_t* above);
};

extern const Kernels kPortableKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kAvx512VbmiKernels;  // of the same name: byte permutations come with most machines that have VNNI
#endif

}  // namespace citadel
