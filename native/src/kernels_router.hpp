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

// 64 dimensions of a trellis. The codes of 8 / Bits dimensions lie in a byte; with the byte before it they are widened to as many bytes,
// each of which takes its window from them.
template <unsigned Bits>
struct UnpackWindows {
  static constexpr std::size_t kCodes = 8 * Bits;

  static __m512i widen(__m512i codes) {
    if constexpr (Bits == 4) return _mm512_cvtepu8_epi16(_mm512_castsi512_si256(codes));
    if constexpr (Bits == 2) return _mm512_cvtepu8_epi32(_mm512_castsi512_si128(codes));
    return _mm512_cvtepu8_epi64(_mm512_castsi512_si128(codes));
  }

  template <int Distance>
  static __m512i shift(__m512i bits) {
    if constexpr (Distance < 0) return _mm512_srli_epi64(bits, static_cast<unsigned>(-Distance));
    return _mm512_slli_epi64(bits, static_cast<unsigned>(Distance < 0 ? 0 : Distance));
  }

  template <std::size_t... byte>
  static __m512i windows(std::index_sequence<byte...>, __m512i bits) {
    constexpr int kBits = static_cast<int>(Bits);
    __m512i out = _mm512_setzero_si512();
    ((out = _mm512_or_si512(out, _mm512_and_si512(shift<static_cast<int>(byte) * (8 - kBits) - (2 + kBits)>(bits), only<byte>()))), ...);
    return out;
  }

  // Six bits of one byte of each group.
  template <std::size_t byte>
  static __m512i only() {
    if constexpr (Bits == 4) return _mm512_set1_epi16(0x3f << 8 * byte);
    if constexpr (Bits == 2) return _mm512_set1_epi32(0x3f << 8 * byte);
    return _mm512_set1_epi64(std::int64_t{0x3f} << 8 * byte);
  }

  static __m512i run(__m512i codes, __m512i before) {
    const __m512i bits = _mm512_or_si512(widen(before), _mm512_slli_epi64(widen(codes), 8));
    return windows(std::make_index_sequence<8 / Bits>{}, bits);
  }
};

// values[window] of 64 windows.
inline __m512i window_values(const __m512i* tables, __m512i windows) {
  const __mmask64 odd = _mm512_test_epi8_mask(windows, _mm512_set1_epi8(16)), high = _mm512_test_epi8_mask(windows, _mm512_set1_epi8(32));
  const __m512i low = _mm512_and_si512(windows, _mm512_set1_epi8(15));
  const __m512i first = _mm512_mask_shuffle_epi8(_mm512_shuffle_epi8(tables[0], low), odd, tables[1], low);
  const __m512i second = _mm512_mask_shuffle_epi8(_mm512_shuffle_epi8(tables[2], low), odd, tables[3], low);
  return _mm512_mask_blend_epi8(high, first, second);
}

// Call `unpack` with up to 8 · Bits codes and with the bytes before each of them.
template <unsigned Bits, typename Unpack>
inline void unpack_window_rows(const std::uint8_t* codes, std::size_t rows, std::size_t width, std::uint8_t* out, Unpack unpack) {
  constexpr std::size_t kCodes = 8 * Bits;
  for (std::size_t row = 0; row < rows; ++row, codes += width, out += kTokenStride)
    for (std::size_t at = 0; at < width; at += kCodes) {
      const std::size_t own = width - at < kCodes ? width - at : kCodes;
      const std::uint64_t mask = (std::uint64_t{1} << own) - 1, before = at == 0 ? mask & ~std::uint64_t{1} : mask;
      _mm512_storeu_si512(out + at * (64 / kCodes),
                          unpack(_mm512_maskz_loadu_epi8(mask, codes + at), _mm512_maskz_loadu_epi8(before, codes + at - 1)));
    }
}

template <unsigned Bits>
void unpack_trellis_avx512(const std::uint8_t* codes, std::size_t rows, std::size_t width, const TokenValues& values, std::uint8_t* out) {
  __m512i tables[4];
  for (std::size_t i = 0; i < 4; ++i)
    tables[i] = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values.buckets + 16 * i)));
  unpack_window_rows<Bits>(codes, rows, width, out, [&](__m512i own, __m512i before) {
    return window_values(tables, UnpackWindows<Bits>::run(own, before));
  });
}

void unpack_tokens_avx512(const std::uint8_t* codes, std::size_t rows, std::size_t width,
                          const TokenValues& values, std::uint8_t* out) {
  const __m512i table =
      _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values.buckets)));
  if (values.memory != 0)
    values.bits == 4   ? unpack_trellis_avx512<4>(codes, rows, width, values, out)
    : values.bits == 2 ? unpack_trellis_avx512<2>(codes, rows, width, values, out)
                       : unpack_trellis_avx512<1>(codes, rows, width, values, out);
  else if (values.bits == 0)
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
