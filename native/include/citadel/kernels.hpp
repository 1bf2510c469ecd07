// The inner loops, compiled once per instruction set and selected at run time. All sets produce the same bits: fp32
// without fused multiply-add, sums in a fixed order (see "Arithmetic" in native/README.md).
#pragma once

#include <cstddef>
#include <cstdint>

namespace citadel {

constexpr std::size_t kCentroids = 256;
constexpr std::size_t kLanes = 16;           // partial sums of the fp16 and fp32 dot products
constexpr std::size_t kQueryPadding = 64;    // int8 query codes are padded with zeros to a multiple of this
constexpr std::uint32_t kUntouched = 0x80000000u;  // the bits of -0.0f: no posting was added to the accumulator

struct Int8Query {
  const std::int8_t* codes;  // [d rounded up to 64]
  std::int32_t sum;          // of the codes
  float scale;
};

// A query token's dot products with all centroids, in integer multiples of `step`; a sum over all sub-vectors fits 16 bits.
struct PqTable {
  const std::int16_t* entries;  // [S, 256], followed by space for the same bytes in another layout
  float step;
};

// Per-key parameters of a block: logit = (float)(Σ − offset) · scale + bias.
struct KeyParameters {
  const std::int32_t* offsets;  // [32] each
  const float* scales;
  const float* biases;
};

constexpr std::size_t kKeyBlock = 32;
constexpr std::size_t kTileRows = 14;  // tokens whose sums with 32 keys fit in the AVX-512 registers

constexpr std::size_t kMaxTokenBytes = 1024;  // dimensions of a token vector
// Bytes between unpacked tokens. A constant, so that rows are displacements of one address; an odd number of
// cache lines, so that they do not share a set.
constexpr std::size_t kTokenStride = kMaxTokenBytes + 64;

constexpr unsigned kWindowBits = 6;  // of a trellis: the bits of a dimension and those before them

// What the codes of a token mean: int8 codes are values, others are numbers of buckets. A value may also depend on
// the `memory` bits before its own, which are 0 for the first dimension.
struct TokenValues {
  unsigned bits = 0;                             // per dimension; 0 for int8 codes
  unsigned memory = 0;                           // kWindowBits − bits, or 0
  std::uint8_t buckets[1u << kWindowBits] = {};  // values biased by 128: [2^(bits + memory)], own bits above the others
  const std::uint64_t* bytes = nullptr;          // the values of a byte of codes after `memory` bits: [2^(8 + memory)]
};

// Bytes that `trellis` needs: rows by dimension, and the branch that each of up to 32 states was reached by, for 16 rows.
constexpr std::size_t trellis_scratch(std::size_t d) { return d * 16 * (sizeof(float) + 32); }

constexpr std::size_t kPrefetchDistance = 3 * 128;  // in postings

struct Kernels {
  const char* name;
  std::size_t prefetched;  // the dimension for which `int8` prefetches by itself; 0 for none
  std::size_t near_span;   // a block that spans fewer documents is tested faster by `select` than by `match`
  // out[i] = ((float)⟨codes_i, q⟩ · scales_i) · q.scale
  void (*int8)(const std::uint8_t* codes, const std::uint8_t* scales, std::size_t n, std::size_t d, Int8Query q, float* out);
  // q is padded with zeros to a multiple of 16
  void (*fp16)(const std::uint8_t* vectors, std::size_t n, std::size_t d, const float* q, float* out);
  void (*fp32)(const std::uint8_t* vectors, std::size_t n, std::size_t d, const float* q, float* out);
  // out[i] = ((float)Σ_s entries[s][code_is] · step) · scale
  void (*pq)(const std::uint8_t* codes, std::size_t n, std::size_t subvectors, PqTable table, float scale, float* out);
  // centroids [S, sub, 256] (transposed), scratch [S, 256] → entries [2, S, 256]; returns the step
  float (*pq_table)(const float* centroids, std::size_t subvectors, std::size_t sub, const float* q, float* scratch, std::int16_t* entries);
  // vectors [n, S · sub], centroids as above → codes [n, S]
  void (*pq_assign)(const float* vectors, std::size_t n, const float* centroids, std::size_t subvectors, std::size_t sub,
                    std::uint8_t* codes);
  void (*sparse)(const std::uint8_t* values, std::size_t n, float weight, float* out);
  // lengths is u32[N]; documents are below N
  void (*bm25)(const std::uint32_t* documents, const std::uint8_t* lengths, const std::uint32_t* counts, std::size_t n,
               float base, float slope, float weight, float* out);
  // In place: the first entry of each run of equal documents becomes the run's maximum, the others 0. No value is -0.0,
  // nor negative if `floor`. n ≤ 192.
  void (*finish)(const std::uint32_t* documents, float* values, std::size_t n, bool floor);
  // Write the offsets and values of touched accumulators ≥ threshold (room for n + 16 each), reset all accumulators to
  // untouched and return the number written. n is a multiple of 16.
  std::size_t (*collect)(float* accumulators, std::size_t n, float threshold, std::uint32_t* offsets, float* values);
  // The positions of ascending documents whose bit in `set` (64 per word) is set, ascending; room for n + 16. 64 bytes after
  // the last document's word are readable.
  std::size_t (*select)(const std::uint32_t* documents, std::size_t n, const std::uint64_t* set, std::uint32_t* positions);
  // The same for a few ascending members of a set, by looking them up in a whole block of 128 ascending documents.
  std::size_t (*match)(const std::uint32_t* documents, const std::uint32_t* members, std::size_t count, std::uint32_t* positions);
  // See bits.hpp.
  std::uint64_t (*unpack_documents)(const std::uint8_t* in, std::uint64_t readable, unsigned bits, std::uint32_t first,
                                    std::size_t count, std::uint32_t* out);
  void (*unpack_counts)(const std::uint8_t* in, std::uint64_t readable, unsigned bits, std::size_t count, std::uint32_t* out);
  // sums[r, k] = Σ_g Σ_i states[g, r, i] · codes[g, k, i] for `rows` ≤ 14 tokens and 32 keys, exact. States are groups of
  // four unsigned bytes, codes are signed and 64-byte aligned. Prefetches the codes `ahead` bytes further on.
  void (*byte_products)(const std::uint32_t* states, std::size_t rows, const std::int8_t* codes, std::size_t groups, std::size_t ahead,
                        std::int32_t* sums);
  // Logits out[r, k], and in above[r] a bit mask of the keys whose logit exceeds threshold[r]
  void (*logits)(const std::int32_t* sums, std::size_t rows, KeyParameters keys, const float* threshold, float* out, std::uint32_t* above);
  // The same for rows of unpacked tokens; no code is −128.
  void (*token_products)(const std::uint8_t* tokens, std::size_t rows, const std::int8_t* codes,
                         std::size_t groups, std::int32_t* sums);
  // The bits [n, d] with the least squared error of rows [n, d] along a trellis: a dimension takes values[own bits << memory | the bits
  // before them], memory = kWindowBits − bits, and the bits before the first are 0. Scratch has trellis_scratch(d) bytes. Ties go to
  // the lower earlier bits.
  void (*trellis)(const float* rows, std::size_t n, std::size_t d, const float* values, unsigned bits, std::uint8_t* scratch,
                  std::uint8_t* codes);
  // Unpack tokens of `width` bytes each to out[r · kTokenStride], biased by 128; bytes after the last
  // dimension are undefined.
  void (*unpack_tokens)(const std::uint8_t* codes, std::size_t rows, std::size_t width,
                        const TokenValues& values, std::uint8_t* out);
  // In above[r] a bit mask of the keys whose sum exceeds the key's threshold.
  void (*exceeding)(const std::int32_t* sums, std::size_t rows, const std::int32_t* thresholds, std::uint32_t* above);
  // Σ_i state[i] · codes[i], exact.
  std::int32_t (*byte_product)(const std::uint8_t* state, const std::int8_t* codes, std::size_t width);
  // For x[j] = (products[j] − means[j]) · factors[j]: bytes[j] = 128 + x[j] as a signed byte for j < lead, and in squares the sums of
  // squares of the x[j] that follow, of what the bytes miss, and of the x[j] before. All arrays are multiples of 4.
  void (*bound_bytes)(const std::int32_t* products, const float* means, const float* factors, std::size_t lead, std::size_t width,
                      std::uint8_t* bytes, float squares[3]);
  // best[q] = max(best[q], bases[r][q] + ((float)(sums[r, q] − offset) · row_scales[r]) · step) for 32 query tokens, whose offsets, steps and
  // best products these are, and the sums of `rows` document tokens.
  void (*residual_maxima)(const std::int32_t* sums, std::size_t rows, const float* const* bases, const float* row_scales, const std::int32_t* offsets,
                          const float* steps, float* best);
  // best[q] = max(best[q], ((float)(sums[r, q] − offset) · row_scales[r]) · scale)
  void (*scaled_maxima)(const std::int32_t* sums, std::size_t rows, const float* row_scales,
                        const std::int32_t* offsets, const float* scales, float* best);
  // out[r, q] = ((float)(sums[r, q] − offset) · row_scales[r]) · scale
  void (*scaled_products)(const std::int32_t* sums, std::size_t rows, const float* row_scales, const std::int32_t* offsets, const float* scales,
                          float* out);
  // Keep the best ((float)(sums[r, k] − offset) · row_scales[r]) · scale + bias of each lane, and its number
  // `first` + k.
  void (*nearest_rows)(const std::int32_t* sums, std::size_t rows, const float* row_scales,
                       KeyParameters keys, std::int32_t first, float* best, std::int32_t* numbers);
  // Quantize a row with its own scale: codes[i] = round-half-even((x[i] / largest) / (1/127)) + 128; returns largest = max|x[i]|.
  float (*quantize_row)(const float* x, std::size_t n, std::uint8_t* codes);
  // The same for x[i] = gelu(sums[i] · scale + bias[i]), kept in scratch [n].
  float (*gelu_row)(const float* sums, float scale, const float* bias, std::size_t n, float* scratch, std::uint8_t* codes);
  // out[i] = (sums[i] · scale + bias[i]) + residual[i]
  void (*add_row)(const float* sums, float scale, const float* bias, const float* residual, std::size_t n, float* out);
  // out[i] = sums[i] · scale
  void (*scale_row)(const float* sums, float scale, std::size_t n, float* out);
};

extern const Kernels kPortableKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kAvx512VbmiKernels;  // same name: most machines with VNNI also have VBMI
#elif defined(__aarch64__)
extern const Kernels kNeonKernels;
extern const Kernels kNeonDotKernels;
#endif

}  // namespace citadel
