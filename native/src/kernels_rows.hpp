// Rows of an encoder's states; included by kernels_avx512.cpp.

inline __mmask16 lanes_left(std::size_t n) { return static_cast<__mmask16>(n >= 16 ? 0xffffu : (1u << n) - 1); }

inline __m512i magnitudes(__m512 x) { return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)); }

// Codes as the low bytes of 32-bit lanes. One product with 127 / largest replaces the two divisions, whose result it misses by
// less than 1e-4, unless that could change the rounding.
inline __m512i sixteen_codes(__m512 x, __m512 factor, __m512 largest) {
  const __m512 shift = _mm512_set1_ps(kCodeShift), product = _mm512_mul_ps(x, factor), sum = _mm512_add_ps(product, shift);
  const __m512 distance = _mm512_abs_ps(_mm512_sub_ps(product, _mm512_sub_ps(sum, shift)));
  if (_mm512_cmp_ps_mask(distance, _mm512_set1_ps(0.4999f), _CMP_LE_OQ) == 0xffff) [[likely]]
    return _mm512_castps_si512(sum);
  const __m512 exact = _mm512_div_ps(_mm512_div_ps(x, largest), _mm512_set1_ps(kCodeStep));
  return _mm512_castps_si512(_mm512_add_ps(exact, shift));
}

inline float quantized(const float* x, std::size_t n, __m512i maxima, std::uint8_t* codes) {
  const float largest = __builtin_bit_cast(float, _mm512_reduce_max_epu32(maxima));
  const __m512 factor = _mm512_set1_ps(127.0f / largest), wide = _mm512_set1_ps(largest);
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i), _mm512_cvtepi32_epi8(sixteen_codes(_mm512_loadu_ps(x + i), factor, wide)));
  if (i < n)
    _mm_mask_storeu_epi8(codes + i, lanes_left(n - i),
                         _mm512_cvtepi32_epi8(sixteen_codes(_mm512_maskz_loadu_ps(lanes_left(n - i), x + i), factor, wide)));
  return largest;
}

float quantize_row_avx512(const float* x, std::size_t n, std::uint8_t* codes) {
  __m512i maxima = _mm512_setzero_si512();
  for (std::size_t i = 0; i < n; i += 16) maxima = _mm512_max_epu32(maxima, magnitudes(_mm512_maskz_loadu_ps(lanes_left(n - i), x + i)));
  return quantized(x, n, maxima, codes);
}

template <std::size_t Terms>
inline __m512 polynomials(const float (&terms)[Terms], __m512 x) {
  __m512 sum = _mm512_set1_ps(terms[0]);
#pragma GCC unroll 8
  for (std::size_t i = 1; i < Terms; ++i) sum = _mm512_fmadd_ps(sum, x, _mm512_set1_ps(terms[i]));
  return sum;
}

inline __m512 exponentials(__m512 x) {
  const __m512 shift = _mm512_set1_ps(kExpShift);
  const __m512 power = _mm512_sub_ps(_mm512_fmadd_ps(_mm512_set1_ps(kLog2E), x, shift), shift);
  const __m512 rest = _mm512_fmadd_ps(power, _mm512_set1_ps(kLog2Low), _mm512_fmadd_ps(power, _mm512_set1_ps(kLog2High), x));
  return _mm512_scalef_ps(polynomials(kExp, rest), power);
}

inline __m512 sixteen_gelus(__m512 x) {
  const __m512 sign = _mm512_set1_ps(-0.0f), one = _mm512_set1_ps(1.0f), at = _mm512_mul_ps(x, _mm512_set1_ps(kRootHalf));
  const __m512 magnitude = _mm512_min_ps(_mm512_set1_ps(kErfLimit), _mm512_andnot_ps(sign, at));  // NaN stays
  const __mmask16 is_large = _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(kErfSplit), _CMP_GT_OQ);
  __m512 erf = _mm512_fmadd_ps(polynomials(kErfSmall, _mm512_mul_ps(magnitude, magnitude)), magnitude, magnitude);
  const __m512 exponent = _mm512_fmadd_ps(polynomials(kErfLarge, magnitude), magnitude, magnitude);
  erf = _mm512_mask_sub_ps(erf, is_large, one, exponentials(_mm512_xor_ps(exponent, sign)));
  const __m512 signed_erf = _mm512_or_ps(erf, _mm512_and_ps(sign, at));
  return _mm512_mul_ps(_mm512_mul_ps(_mm512_set1_ps(0.5f), x), _mm512_add_ps(signed_erf, one));
}

float gelu_row_avx512(const float* sums, float scale, const float* bias, std::size_t n, float* scratch, std::uint8_t* codes) {
  const __m512 wide = _mm512_set1_ps(scale);
  __m512i maxima = _mm512_setzero_si512();
  for (std::size_t i = 0; i < n; i += 16) {
    const __mmask16 lanes = lanes_left(n - i);
    const __m512 scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, sums + i), wide);
    const __m512 x = sixteen_gelus(_mm512_add_ps(scaled, _mm512_maskz_loadu_ps(lanes, bias + i)));
    _mm512_mask_storeu_ps(scratch + i, lanes, x);
    maxima = _mm512_max_epu32(maxima, _mm512_maskz_mov_epi32(lanes, magnitudes(x)));
  }
  return quantized(scratch, n, maxima, codes);
}
