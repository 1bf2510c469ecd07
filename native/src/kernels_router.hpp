// The router's byte products; included by kernels_avx512.cpp.

static_assert(kKeyBlock == 32);  // two registers of 16 sums

// Each row keeps its sums in two registers while the block's codes are read once. The rows are unrolled by a parameter pack
// and the function ends in plain stores: GCC 12 keeps an array indexed by a loop in memory, and with anything else at the
// end it spills the sums in every iteration.
template <std::size_t... row>
__attribute__((noinline)) void tile_products(std::index_sequence<row...>, const std::uint32_t* states, const std::int8_t* codes, std::size_t groups,
                                             std::size_t ahead, std::int32_t* sums) {
  __m512i low[sizeof...(row)], high[sizeof...(row)];
  ((low[row] = high[row] = _mm512_setzero_si512()), ...);
  for (std::size_t group = 0; group < groups; ++group, states += sizeof...(row), codes += 128) {
    const __m512i first = _mm512_load_si512(codes), second = _mm512_load_si512(codes + 64);
    __builtin_prefetch(codes + ahead), __builtin_prefetch(codes + ahead + 64);
    (
        [&] {
          const __m512i state = _mm512_set1_epi32(static_cast<int>(states[row]));
          low[row] = _mm512_dpbusd_epi32(low[row], state, first);
          high[row] = _mm512_dpbusd_epi32(high[row], state, second);
        }(),
        ...);
  }
  ((_mm512_store_si512(sums + 32 * row, low[row]), _mm512_store_si512(sums + 32 * row + 16, high[row])), ...);
}

template <std::size_t Rows = kTileRows>
void byte_products_avx512(const std::uint32_t* states, std::size_t rows, const std::int8_t* codes, std::size_t groups, std::size_t ahead,
                          std::int32_t* sums) {
  if (rows == Rows) return tile_products(std::make_index_sequence<Rows>{}, states, codes, groups, ahead, sums);
  if constexpr (Rows > 1) byte_products_avx512<Rows - 1>(states, rows, codes, groups, ahead, sums);
}

// The same for rows of unpacked tokens.
template <std::size_t... row>
__attribute__((noinline)) void stride_products(std::index_sequence<row...>, const std::uint8_t* tokens,
                                               const std::int8_t* codes, std::size_t groups,
                                               std::int32_t* sums) {
  __m512i low[sizeof...(row)], high[sizeof...(row)];
  ((low[row] = high[row] = _mm512_setzero_si512()), ...);
  for (std::size_t group = 0; group < groups; ++group, tokens += 4, codes += 128) {
    const __m512i first = _mm512_load_si512(codes), second = _mm512_load_si512(codes + 64);
    (
        [&] {
          std::int32_t word;
          __builtin_memcpy(&word, tokens + row * kTokenStride, sizeof word);
          const __m512i state = _mm512_set1_epi32(word);
          low[row] = _mm512_dpbusd_epi32(low[row], state, first);
          high[row] = _mm512_dpbusd_epi32(high[row], state, second);
        }(),
        ...);
  }
  ((_mm512_store_si512(sums + 32 * row, low[row]), _mm512_store_si512(sums + 32 * row + 16, high[row])), ...);
}

template <std::size_t Rows = kTileRows>
void token_products_avx512(const std::uint8_t* tokens, std::size_t rows, const std::int8_t* codes,
                           std::size_t groups, std::int32_t* sums) {
  if (rows == Rows) return stride_products(std::make_index_sequence<Rows>{}, tokens, codes, groups, sums);
  if constexpr (Rows > 1) token_products_avx512<Rows - 1>(tokens, rows, codes, groups, sums);
}

// Each unpacks the dimensions of 64 bytes of values: the codes are widened to groups of equal bits, which
// index a register.
struct UnpackBytes {
  static constexpr std::size_t kCodes = 64;
  static __m512i run(__m512i codes, __m512i) {
    return _mm512_xor_si512(codes, _mm512_set1_epi8(static_cast<char>(0x80)));
  }
};

struct UnpackNibbles {
  static constexpr std::size_t kCodes = 32;
  static __m512i run(__m512i codes, __m512i values) {
    const __m512i wide = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(codes));
    const __m512i both = _mm512_or_si512(wide, _mm512_slli_epi16(wide, 4));
    return _mm512_shuffle_epi8(values, _mm512_and_si512(both, _mm512_set1_epi8(15)));
  }
};

struct UnpackPairs {
  static constexpr std::size_t kCodes = 16;
  static __m512i run(__m512i codes, __m512i values) {
    const __m512i wide = _mm512_cvtepu8_epi32(_mm512_castsi512_si128(codes));
    const __m512i half = _mm512_or_si512(wide, _mm512_slli_epi32(wide, 6));
    const __m512i all = _mm512_or_si512(half, _mm512_slli_epi32(half, 12));
    return _mm512_shuffle_epi8(values, _mm512_and_si512(all, _mm512_set1_epi8(3)));
  }
};

struct UnpackBits {
  static constexpr std::size_t kCodes = 8;
  static __m512i run(__m512i codes, __m512i values) {
    const auto mask = static_cast<__mmask64>(_mm_cvtsi128_si64(_mm512_castsi512_si128(codes)));
    return _mm512_shuffle_epi8(values, _mm512_maskz_set1_epi8(mask, 1));
  }
};

template <typename Unpack>
inline void unpack_rows(const std::uint8_t* codes, std::size_t rows, std::size_t width, __m512i values,
                        std::uint8_t* out) {
  constexpr std::uint64_t kAll =
      Unpack::kCodes == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << Unpack::kCodes % 64) - 1;
  for (std::size_t row = 0; row < rows; ++row, codes += width, out += kTokenStride)
    for (std::size_t at = 0; at < width; at += Unpack::kCodes) {
      const std::uint64_t mask = width - at >= Unpack::kCodes ? kAll : (std::uint64_t{1} << (width - at)) - 1;
      _mm512_storeu_si512(out + at * (64 / Unpack::kCodes),
                          Unpack::run(_mm512_maskz_loadu_epi8(mask, codes + at), values));
    }
}

void unpack_tokens_avx512(const std::uint8_t* codes, std::size_t rows, std::size_t width,
                          const TokenValues& values, std::uint8_t* out) {
  const __m512i table =
      _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values.buckets)));
  if (values.bits == 0)
    unpack_rows<UnpackBytes>(codes, rows, width, table, out);
  else if (values.bits == 4)
    unpack_rows<UnpackNibbles>(codes, rows, width, table, out);
  else if (values.bits == 2)
    unpack_rows<UnpackPairs>(codes, rows, width, table, out);
  else
    unpack_rows<UnpackBits>(codes, rows, width, table, out);
}

inline __m512 sixteen_logits(const std::int32_t* sums, const KeyParameters& keys, std::size_t at) {
  const __m512i exact = _mm512_sub_epi32(_mm512_load_si512(sums + at), _mm512_loadu_si512(keys.offsets + at));
  return _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(exact), _mm512_loadu_ps(keys.scales + at)), _mm512_loadu_ps(keys.biases + at));
}

void logits_avx512(const std::int32_t* sums, std::size_t rows, KeyParameters keys, const float* threshold, float* out, std::uint32_t* above) {
  for (std::size_t row = 0; row < rows; ++row, sums += 32, out += 32) {
    const __m512 low = sixteen_logits(sums, keys, 0), high = sixteen_logits(sums, keys, 16), bound = _mm512_set1_ps(threshold[row]);
    _mm512_store_ps(out, low), _mm512_store_ps(out + 16, high);
    above[row] = _mm512_cmp_ps_mask(low, bound, _CMP_GT_OQ) | static_cast<std::uint32_t>(_mm512_cmp_ps_mask(high, bound, _CMP_GT_OQ)) << 16;
  }
}

void exceeding_avx512(const std::int32_t* sums, std::size_t rows, const std::int32_t* thresholds, std::uint32_t* above) {
  const __m512i low = _mm512_loadu_si512(thresholds), high = _mm512_loadu_si512(thresholds + 16);
  for (std::size_t row = 0; row < rows; ++row, sums += 32)
    above[row] = _mm512_cmpgt_epi32_mask(_mm512_load_si512(sums), low) |
                 static_cast<std::uint32_t>(_mm512_cmpgt_epi32_mask(_mm512_load_si512(sums + 16), high)) << 16;
}

std::int32_t byte_product_avx512(const std::uint8_t* state, const std::int8_t* codes, std::size_t width) {
  __m512i even = _mm512_setzero_si512(), odd = _mm512_setzero_si512();
  std::size_t i = 0;
  for (; i + 128 <= width; i += 128) {
    even = _mm512_dpbusd_epi32(even, _mm512_loadu_si512(state + i), _mm512_loadu_si512(codes + i));
    odd = _mm512_dpbusd_epi32(odd, _mm512_loadu_si512(state + i + 64), _mm512_loadu_si512(codes + i + 64));
  }
  for (; i < width; i += 64) {
    const __mmask64 rest = width - i >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << (width - i)) - 1;
    even = _mm512_dpbusd_epi32(even, _mm512_maskz_loadu_epi8(rest, state + i), _mm512_maskz_loadu_epi8(rest, codes + i));
  }
  return _mm512_reduce_add_epi32(_mm512_add_epi32(even, odd));
}
