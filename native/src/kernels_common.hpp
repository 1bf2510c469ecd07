// Kernels shared by all instruction sets. Each kernels_*.cpp includes this file inside its anonymous namespace after
// defining kWidth (floats per vector) and widen_halves. No standard library templates here: the linker might keep the copy
// of an inline function that was compiled for AVX-512.

typedef float Floats __attribute__((vector_size(kWidth * 4)));
typedef std::int32_t Ints __attribute__((vector_size(kWidth * 4)));

template <typename V, typename T>
inline V load_vector(const T* from) {
  V vector;
  __builtin_memcpy(&vector, from, sizeof vector);
  return vector;
}

template <typename V, typename T>
inline void store_vector(T* to, V vector) {
  __builtin_memcpy(to, &vector, sizeof vector);
}

inline Floats broadcast(float x) { return x - Floats{}; }

// Four entries at a time with their codes in one word: otherwise the compiler emits a gather, which is slower than loads.
inline std::int32_t four_entries(const std::uint8_t* codes, const std::int16_t* entries) {
  std::uint32_t word;
  __builtin_memcpy(&word, codes, sizeof word);
  return (entries[word & 255] + entries[kCentroids + (word >> 8 & 255)]) +
         (entries[2 * kCentroids + (word >> 16 & 255)] + entries[3 * kCentroids + (word >> 24)]);
}

void pq(const std::uint8_t* codes, std::size_t n, std::size_t subvectors, PqTable table, float scale, float* out) {
  for (std::size_t i = 0; i < n; ++i, codes += subvectors) {
    std::int32_t sum = 0;
    std::size_t s = 0;
    for (; s + 4 <= subvectors; s += 4) sum += four_entries(codes + s, table.entries + s * kCentroids);
    for (; s < subvectors; ++s) sum += table.entries[s * kCentroids + codes[s]];
    out[i] = (static_cast<float>(sum) * table.step) * scale;
  }
}

// Dot products of one sub-vector with its centroids [256]. Returns the largest magnitude.
inline float centroid_products(const float* centroids, std::size_t sub, const float* q, float* out) {
  float largest = 0.0f;
  for (std::size_t c = 0; c < kCentroids; c += kWidth) {
    Floats sum = q[0] * load_vector<Floats>(centroids + c);
    for (std::size_t j = 1; j < sub; ++j) sum = sum + q[j] * load_vector<Floats>(centroids + j * kCentroids + c);
    store_vector(out + c, sum);
  }
  for (std::size_t c = 0; c < kCentroids; ++c) {
    const float magnitude = out[c] < 0.0f ? -out[c] : out[c];
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

// Adding and subtracting 1.5 · 2^23 rounds half to even. NaN becomes 0.
inline std::int16_t round_to_steps(float value, float step) {
  constexpr float kShift = 12582912.0f;
  const float rounded = (value / step + kShift) - kShift;
  return rounded >= -32767.0f && rounded <= 32767.0f ? static_cast<std::int16_t>(rounded) : std::int16_t{0};
}

float pq_table(const float* centroids, std::size_t subvectors, std::size_t sub, const float* q, float* scratch, std::int16_t* entries) {
  float largest = 0.0f;
  for (std::size_t s = 0; s < subvectors; ++s)
    largest += centroid_products(centroids + s * sub * kCentroids, sub, q + s * sub, scratch + s * kCentroids);
  const float step = largest / (32767.0f - static_cast<float>(subvectors));  // fits 16 bits even if every entry rounds up
  constexpr float kSmallestNormal = 1.17549435e-38f;  // a subnormal step, rounded down, could overflow 16 bits
  const bool usable = step >= kSmallestNormal && step < __builtin_inff();
  for (std::size_t i = 0; i < subvectors * kCentroids; ++i) entries[i] = usable ? round_to_steps(scratch[i], step) : std::int16_t{0};
  return usable ? step : 0.0f;
}

// The nearest of 256 centroids [Sub, 256] for each of kWidth vectors [Sub, kWidth]. One vector per lane, so that nothing
// is compared across lanes. Ties go to the lower centroid.
template <std::size_t Sub>
inline Ints nearest_centroids(const float* x, const float* centroids) {
  Floats best = broadcast(__builtin_inff());
  Ints nearest = {};
  for (std::size_t c = 0; c < kCentroids; ++c) {
    const Floats first = centroids[c] - load_vector<Floats>(x);
    Floats distance = first * first;
    for (std::size_t j = 1; j < Sub; ++j) {
      const Floats difference = centroids[j * kCentroids + c] - load_vector<Floats>(x + j * kWidth);
      distance = distance + difference * difference;
    }
    const Ints closer = distance < best;
    best = closer ? distance : best;
    nearest = closer ? static_cast<std::int32_t>(c) - Ints{} : nearest;
  }
  return nearest;
}

template <std::size_t Sub>
std::size_t pq_assign_lanes(const float* vectors, std::size_t n, const float* centroids, std::size_t subvectors, std::uint8_t* codes) {
  float x[Sub * kWidth];
  std::size_t done = 0;
  for (; done + kWidth <= n; done += kWidth)
    for (std::size_t s = 0; s < subvectors; ++s) {
      for (std::size_t i = 0; i < kWidth; ++i)
        for (std::size_t j = 0; j < Sub; ++j) x[j * kWidth + i] = vectors[((done + i) * subvectors + s) * Sub + j];
      const Ints nearest = nearest_centroids<Sub>(x, centroids + s * Sub * kCentroids);
      for (std::size_t i = 0; i < kWidth; ++i) codes[(done + i) * subvectors + s] = static_cast<std::uint8_t>(nearest[i]);
    }
  return done;
}

// The same arithmetic for one vector of any width.
inline std::uint8_t nearest_centroid(const float* x, const float* centroids, std::size_t sub) {
  float best = __builtin_inff();
  std::size_t nearest = 0;
  for (std::size_t c = 0; c < kCentroids; ++c) {
    float distance = 0.0f;
    for (std::size_t j = 0; j < sub; ++j) {
      const float difference = centroids[j * kCentroids + c] - x[j];
      distance += difference * difference;
    }
    nearest = distance < best ? c : nearest;
    best = distance < best ? distance : best;
  }
  return static_cast<std::uint8_t>(nearest);
}

void pq_assign(const float* vectors, std::size_t n, const float* centroids, std::size_t subvectors, std::size_t sub,
               std::uint8_t* codes) {
  std::size_t i = sub == 4   ? pq_assign_lanes<4>(vectors, n, centroids, subvectors, codes)
                  : sub == 8 ? pq_assign_lanes<8>(vectors, n, centroids, subvectors, codes)
                             : 0;
  for (; i < n; ++i)
    for (std::size_t s = 0; s < subvectors; ++s)
      codes[i * subvectors + s] = nearest_centroid(vectors + (i * subvectors + s) * sub, centroids + s * sub * kCentroids, sub);
}

// The sum of 16 lanes in a fixed order: repeatedly add the upper half to the lower half.
inline float fold_lanes(const Floats* lanes) {
  float sums[kLanes];
  __builtin_memcpy(sums, lanes, sizeof sums);
  for (std::size_t width = kLanes / 2; width > 0; width /= 2)
    for (std::size_t l = 0; l < width; ++l) sums[l] += sums[l + width];
  return sums[0];
}

struct Halves {
  static constexpr std::size_t kBytes = 2;
  static void widen(const std::uint8_t* bytes, Floats* out) { widen_halves(bytes, out); }
};

struct Singles {
  static constexpr std::size_t kBytes = 4;
  static void widen(const std::uint8_t* bytes, Floats* out) { __builtin_memcpy(out, bytes, kLanes * 4); }
};

// Lanes beyond d are zero on both sides and add +0.
template <typename Stored>
inline float dot(const std::uint8_t* vector, std::size_t d, const float* q) {
  Floats sums[kLanes / kWidth] = {}, values[kLanes / kWidth];
  std::size_t j = 0;
  for (; j + kLanes <= d; j += kLanes) {
    Stored::widen(vector + j * Stored::kBytes, values);
    for (std::size_t part = 0; part < kLanes / kWidth; ++part)
      sums[part] = sums[part] + load_vector<Floats>(q + j + part * kWidth) * values[part];
  }
  if (j < d) {
    std::uint8_t rest[kLanes * Stored::kBytes] = {};
    __builtin_memcpy(rest, vector + j * Stored::kBytes, (d - j) * Stored::kBytes);
    Stored::widen(rest, values);
    for (std::size_t part = 0; part < kLanes / kWidth; ++part)
      sums[part] = sums[part] + load_vector<Floats>(q + j + part * kWidth) * values[part];
  }
  return fold_lanes(sums);
}

[[maybe_unused]] void fp16(const std::uint8_t* vectors, std::size_t n, std::size_t d, const float* q, float* out) {
  for (std::size_t i = 0; i < n; ++i) out[i] = dot<Halves>(vectors + i * d * 2, d, q);
}

void fp32(const std::uint8_t* vectors, std::size_t n, std::size_t d, const float* q, float* out) {
  for (std::size_t i = 0; i < n; ++i) out[i] = dot<Singles>(vectors + i * d * 4, d, q);
}

void sparse(const std::uint8_t* values, std::size_t n, float weight, float* out) {
  Floats wide[kLanes / kWidth];
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    widen_halves(values + 2 * i, wide);
    for (std::size_t part = 0; part < kLanes / kWidth; ++part) store_vector(out + i + part * kWidth, weight * wide[part]);
  }
  for (; i < n; ++i) {
    std::uint16_t half;
    __builtin_memcpy(&half, values + 2 * i, sizeof half);
    out[i] = weight * half_to_float(half);
  }
}

inline float bm25_one(float count, float length, float base, float slope, float weight) {
  return weight * (count / (count + (base + slope * length)));
}

void bm25(const std::uint32_t* documents, const std::uint8_t* lengths, const std::uint32_t* counts, std::size_t n, float base,
          float slope, float weight, float* out) {
  float length[192];
  for (std::size_t i = 0; i < n; ++i) {
    std::uint32_t tokens;
    __builtin_memcpy(&tokens, lengths + std::size_t{4} * documents[i], sizeof tokens);
    length[i] = static_cast<float>(tokens);
  }
  for (std::size_t i = 0; i < n; ++i) out[i] = bm25_one(static_cast<float>(counts[i]), length[i], base, slope, weight);
}

[[maybe_unused]] void repeats(const std::uint32_t* documents, std::size_t n, std::uint64_t mask[3]) {
  mask[0] = mask[1] = mask[2] = 0;
  for (std::size_t i = 1; i < n; ++i) mask[i / 64] |= static_cast<std::uint64_t>(documents[i] == documents[i - 1]) << (i % 64);
}

[[maybe_unused]] void fold(float* values, std::size_t, const std::uint64_t mask[3]) {
  for (std::size_t word = 3; word-- > 0;)
    for (std::uint64_t remaining = mask[word]; remaining != 0;) {  // backwards, so that a run folds onto its start
      const auto bit = static_cast<std::size_t>(63 - __builtin_clzll(remaining));
      remaining &= ~(std::uint64_t{1} << bit);
      float* value = values + 64 * word + bit;
      if (value[0] > value[-1]) value[-1] = value[0];
      value[0] = 0.0f;
    }
}

void normalize(float* values, std::size_t n, bool floor) {
  if (floor)
    for (std::size_t i = 0; i < n; ++i) values[i] = values[i] > 0.0f ? values[i] : 0.0f;
  else
    for (std::size_t i = 0; i < n; ++i) values[i] += 0.0f;
}

[[maybe_unused]] void finish(const std::uint32_t* documents, float* values, std::size_t n, bool floor) {
  std::uint64_t mask[3];
  repeats(documents, n, mask);
  fold(values, n, mask);
  normalize(values, n, floor);
}

inline bool any_lane(Ints lanes) {
  std::uint64_t words[kWidth / 2], all = 0;
  __builtin_memcpy(words, &lanes, sizeof words);
  for (std::size_t i = 0; i < kWidth / 2; ++i) all |= words[i];
  return all != 0;
}

// Tests 16 accumulators at once and visits them one by one only if one of them passes.
[[maybe_unused]] std::size_t collect(float* accumulators, std::size_t n, float threshold, std::uint32_t* offsets, float* values) {
  const Ints untouched = static_cast<std::int32_t>(kUntouched) - Ints{};
  std::size_t count = 0;
  for (std::size_t i = 0; i < n; i += kLanes) {
    Ints selected = {};
    for (std::size_t part = 0; part < kLanes; part += kWidth)
      selected |= (load_vector<Floats>(accumulators + i + part) >= threshold) & (load_vector<Ints>(accumulators + i + part) != untouched);
    for (std::size_t j = i; any_lane(selected) && j < i + kLanes; ++j) {
      std::uint32_t bits;
      __builtin_memcpy(&bits, accumulators + j, sizeof bits);
      offsets[count] = static_cast<std::uint32_t>(j);
      values[count] = accumulators[j];
      count += bits != kUntouched && accumulators[j] >= threshold;
    }
    for (std::size_t part = 0; part < kLanes; part += kWidth) store_vector(accumulators + i + part, untouched);
  }
  return count;
}

[[maybe_unused]] std::size_t select(const std::uint32_t* documents, std::size_t n, const std::uint64_t* set, std::uint32_t* positions) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < n; ++i) {
    positions[count] = static_cast<std::uint32_t>(i);
    count += set[documents[i] >> 6] >> (documents[i] & 63) & 1;
  }
  return count;
}

[[maybe_unused]] std::size_t match(const std::uint32_t* documents, const std::uint32_t* members, std::size_t count, std::uint32_t* positions) {
  std::size_t kept = 0, i = 0;
  for (std::size_t member = 0; member < count; ++member) {
    for (std::size_t step = 64; step > 0; step /= 2)
      while (i + step <= 128 && documents[i + step - 1] < members[member]) i += step;
    for (; i < 128 && documents[i] == members[member]; ++i) positions[kept++] = static_cast<std::uint32_t>(i);
  }
  return kept;
}

// Also used for the rows left over by vectorized loops; integer sums are exact in any order.
[[maybe_unused]] void int8_plain(const std::uint8_t* codes, const std::uint8_t* scales, std::size_t n, std::size_t d, Int8Query q, float* out) {
  for (std::size_t i = 0; i < n; ++i, codes += d) {
    std::int32_t sum = 0;
    for (std::size_t j = 0; j < d; ++j) sum += static_cast<std::int32_t>(static_cast<std::int8_t>(codes[j])) * q.codes[j];
    std::uint16_t scale;
    __builtin_memcpy(&scale, scales + 2 * i, sizeof scale);
    out[i] = (static_cast<float>(sum) * half_to_float(scale)) * q.scale;
  }
}

// ---- router product ---------------------------------------------------------------------------------------------------

[[maybe_unused]] void byte_products(const std::uint32_t* states, std::size_t rows, const std::int8_t* codes, std::size_t groups, std::size_t,
                                    std::int32_t* sums) {
  for (std::size_t i = 0; i < rows * kKeyBlock; ++i) sums[i] = 0;
  for (std::size_t group = 0; group < groups; ++group, states += rows, codes += 4 * kKeyBlock)
    for (std::size_t row = 0; row < rows; ++row) {
      std::uint8_t state[4];
      __builtin_memcpy(state, states + row, 4);
      for (std::size_t key = 0; key < kKeyBlock; ++key)
        for (std::size_t i = 0; i < 4; ++i) sums[row * kKeyBlock + key] += state[i] * codes[4 * key + i];
    }
}

[[maybe_unused]] void logits(const std::int32_t* sums, std::size_t rows, KeyParameters keys, const float* threshold, float* out,
                             std::uint32_t* above) {
  for (std::size_t row = 0; row < rows; ++row, sums += kKeyBlock, out += kKeyBlock) {
    for (std::size_t key = 0; key < kKeyBlock; ++key)
      out[key] = static_cast<float>(sums[key] - keys.offsets[key]) * keys.scales[key] + keys.biases[key];
    above[row] = 0;
    for (std::size_t key = 0; key < kKeyBlock; ++key) above[row] |= static_cast<std::uint32_t>(out[key] > threshold[row]) << key;
  }
}

[[maybe_unused]] void exceeding(const std::int32_t* sums, std::size_t rows, const std::int32_t* thresholds, std::uint32_t* above) {
  for (std::size_t row = 0; row < rows; ++row, sums += kKeyBlock) {
    above[row] = 0;
    for (std::size_t key = 0; key < kKeyBlock; ++key) above[row] |= static_cast<std::uint32_t>(sums[key] > thresholds[key]) << key;
  }
}

[[maybe_unused]] std::int32_t byte_product(const std::uint8_t* state, const std::int8_t* codes, std::size_t width) {
  std::int32_t sum = 0;
  for (std::size_t i = 0; i < width; ++i) sum += state[i] * codes[i];
  return sum;
}

inline float lane_total(const float (&lanes)[kLanes]) {
  float total = 0.0f;
  for (std::size_t l = 0; l < kLanes; ++l) total += lanes[l];
  return total;
}

// Sixteen sums side by side, which the compiler turns into vectors.
void bound_bytes(const std::int32_t* products, const float* means, const float* factors, std::size_t lead, std::size_t width,
                 std::uint8_t* bytes, float squares[3]) {
  constexpr float kShift = 12582912.0f;  // rounds half to even
  float rest[kLanes] = {}, errors[kLanes] = {}, whole[kLanes] = {};
  const auto add = [&](std::size_t j, std::size_t l) {
    const float x = (static_cast<float>(products[j]) - means[j]) * factors[j];
    const float low = x < -128.0f ? -128.0f : x, clamped = low > 127.0f ? 127.0f : low;
    const float code = (clamped + kShift) - kShift;
    bytes[j] = static_cast<std::uint8_t>(static_cast<std::int32_t>(code) + 128);
    whole[l] += x * x, errors[l] += (x - code) * (x - code);
  };
  const auto add_rest = [&](std::size_t j, std::size_t l) {
    const float x = (static_cast<float>(products[j]) - means[j]) * factors[j];
    rest[l] += x * x;
  };
  std::size_t j = 0;
  for (; j + kLanes <= lead; j += kLanes)
    for (std::size_t l = 0; l < kLanes; ++l) add(j + l, l);
  for (; j < lead; ++j) add(j, 0);
  for (; j + kLanes <= width; j += kLanes)
    for (std::size_t l = 0; l < kLanes; ++l) add_rest(j + l, l);
  for (; j < width; ++j) add_rest(j, 0);
  squares[0] = lane_total(rest), squares[1] = lane_total(errors), squares[2] = lane_total(whole);
}

// ---- codes along a trellis ----------------------------------------------------------------------------------------------

// Viterbi's algorithm for kWidth rows [d, kWidth], one per lane. A window is the bits of a dimension above the bits before them; its
// lower bits are the state it leaves, its upper bits the state it reaches. Writes the lowest bits of the best window that reaches each
// state, and returns the state in which the best path ends.
template <unsigned Bits>
inline Ints best_paths(const float* rows, std::size_t d, const float* values, std::uint8_t* branches) {
  constexpr std::size_t kBranches = std::size_t{1} << Bits, kStates = std::size_t{1} << (kWindowBits - Bits);
  typedef std::uint8_t Bytes __attribute__((vector_size(kWidth)));
  Floats costs[kStates], next[kStates];
  for (std::size_t state = 0; state < kStates; ++state) costs[state] = broadcast(state == 0 ? 0.0f : 1e30f);
  for (std::size_t i = 0; i < d; ++i) {
    const Floats value = load_vector<Floats>(rows + i * kWidth);
    for (std::size_t state = 0; state < kStates; ++state) {
      const std::size_t first = state * kBranches;
      Floats error = value - values[first], best = error * error + costs[first % kStates];
      Ints chosen = {};
      for (std::size_t branch = 1; branch < kBranches; ++branch) {
        error = value - values[first + branch];
        const Floats cost = error * error + costs[(first + branch) % kStates];
        const Ints is_less = cost < best;
        best = is_less ? cost : best;
        chosen = is_less ? static_cast<std::int32_t>(branch) - Ints{} : chosen;
      }
      next[state] = best;
      store_vector(branches, __builtin_convertvector(chosen, Bytes));
      branches += kWidth;
    }
    for (std::size_t state = 0; state < kStates; ++state) costs[state] = next[state];
  }
  Floats best = costs[0];
  Ints last = {};
  for (std::size_t state = 1; state < kStates; ++state) {
    const Ints is_less = costs[state] < best;
    best = is_less ? costs[state] : best;
    last = is_less ? static_cast<std::int32_t>(state) - Ints{} : last;
  }
  return last;
}

template <unsigned Bits>
void trellis_codes(const float* rows, std::size_t n, std::size_t d, const float* values, std::uint8_t* scratch, std::uint8_t* codes) {
  constexpr unsigned kMemory = kWindowBits - Bits;
  constexpr std::size_t kStates = std::size_t{1} << kMemory;
  float* lanes = reinterpret_cast<float*>(scratch);
  std::uint8_t* branches = scratch + d * kWidth * sizeof(float);
  for (std::size_t first = 0; first < n; first += kWidth) {
    const std::size_t own = n - first < kWidth ? n - first : kWidth;
    for (std::size_t lane = 0; lane < kWidth; ++lane)
      for (std::size_t i = 0; i < d; ++i) lanes[i * kWidth + lane] = lane < own ? rows[(first + lane) * d + i] : 0.0f;
    const Ints last = best_paths<Bits>(lanes, d, values, branches);
    for (std::size_t lane = 0; lane < own; ++lane) {
      auto state = static_cast<std::size_t>(last[lane]);
      for (std::size_t i = d; i-- > 0;) {
        const std::size_t window = state << Bits | branches[(i * kStates + state) * kWidth + lane];
        codes[(first + lane) * d + i] = static_cast<std::uint8_t>(window >> kMemory);
        state = window & (kStates - 1);
      }
    }
  }
}

[[maybe_unused]] void trellis(const float* rows, std::size_t n, std::size_t d, const float* values, unsigned bits, std::uint8_t* scratch,
                              std::uint8_t* codes) {
  if (bits == 1)
    trellis_codes<1>(rows, n, d, values, scratch, codes);
  else if (bits == 2)
    trellis_codes<2>(rows, n, d, values, scratch, codes);
  else
    trellis_codes<4>(rows, n, d, values, scratch, codes);
}

// ---- products of token vectors ------------------------------------------------------------------------------------------

[[maybe_unused]] void token_products(const std::uint8_t* tokens, std::size_t rows, const std::int8_t* codes,
                                     std::size_t groups, std::int32_t* sums) {
  for (std::size_t row = 0; row < rows; ++row, tokens += kTokenStride, sums += kKeyBlock) {
    const std::int8_t* own = codes;
    for (std::size_t key = 0; key < kKeyBlock; ++key) sums[key] = 0;
    for (std::size_t group = 0; group < groups; ++group, own += 4 * kKeyBlock)
      for (std::size_t key = 0; key < kKeyBlock; ++key)
        for (std::size_t i = 0; i < 4; ++i) sums[key] += tokens[4 * group + i] * own[4 * key + i];
  }
}

// One token. `before` is the byte before the first.
[[maybe_unused]] void unpack_token(const std::uint8_t* codes, std::size_t width, const TokenValues& values,
                                   std::uint8_t* out, unsigned before = 0) {
  if (values.bits == 0) {
    for (std::size_t i = 0; i < width; ++i) out[i] = codes[i] ^ 0x80u;
    return;
  }
  const std::size_t step = 8 / values.bits;
  for (std::size_t i = 0; i < width; before = codes[i++]) {
    const unsigned bits = (static_cast<unsigned>(codes[i]) << 8 | before) >> (8 - values.memory);
    __builtin_memcpy(out + i * step, &values.bytes[bits], 8);  // the next byte overwrites the rest
  }
}

[[maybe_unused]] void unpack_tokens(const std::uint8_t* codes, std::size_t rows, std::size_t width,
                                    const TokenValues& values, std::uint8_t* out) {
  for (std::size_t row = 0; row < rows; ++row)
    unpack_token(codes + row * width, width, values, out + row * kTokenStride);
}

// (float)(sum − offset) · row_scale of the query tokens from `at` on.
inline Floats row_products(const std::int32_t* sums, const std::int32_t* offsets, std::size_t at,
                           float row_scale) {
  return __builtin_convertvector(load_vector<Ints>(sums + at) - load_vector<Ints>(offsets + at), Floats) *
         row_scale;
}

// The largest products of 32 query tokens stay in registers.
template <typename Product>
inline void maxima(std::size_t rows, float* best, Product product) {
  constexpr std::size_t kParts = kKeyBlock / kWidth;
  Floats largest[kParts];
  for (std::size_t part = 0; part < kParts; ++part) largest[part] = load_vector<Floats>(best + part * kWidth);
  for (std::size_t row = 0; row < rows; ++row)
    for (std::size_t part = 0; part < kParts; ++part) {
      const Floats value = product(row, part * kWidth);
      largest[part] = value > largest[part] ? value : largest[part];
    }
  for (std::size_t part = 0; part < kParts; ++part) store_vector(best + part * kWidth, largest[part]);
}

void residual_maxima(const std::int32_t* sums, std::size_t rows, const float* const* bases,
                     const float* row_scales, const std::int32_t* offsets, const float* steps, float* best) {
  maxima(rows, best, [=](std::size_t row, std::size_t at) {
    return load_vector<Floats>(bases[row] + at) +
           row_products(sums + row * kKeyBlock, offsets, at, row_scales[row]) *
               load_vector<Floats>(steps + at);
  });
}

void scaled_maxima(const std::int32_t* sums, std::size_t rows, const float* row_scales,
                   const std::int32_t* offsets, const float* scales, float* best) {
  maxima(rows, best, [=](std::size_t row, std::size_t at) {
    return row_products(sums + row * kKeyBlock, offsets, at, row_scales[row]) *
           load_vector<Floats>(scales + at);
  });
}

void scaled_products(const std::int32_t* sums, std::size_t rows, const float* row_scales,
                     const std::int32_t* offsets, const float* scales, float* out) {
  for (std::size_t row = 0; row < rows; ++row, sums += kKeyBlock, out += kKeyBlock)
    for (std::size_t at = 0; at < kKeyBlock; at += kWidth)
      store_vector(out + at,
                   row_products(sums, offsets, at, row_scales[row]) * load_vector<Floats>(scales + at));
}

void nearest_rows(const std::int32_t* sums, std::size_t rows, const float* row_scales, KeyParameters keys,
                  std::int32_t first, float* best, std::int32_t* numbers) {
  Ints lanes;
  for (std::size_t i = 0; i < kWidth; ++i) lanes[i] = static_cast<std::int32_t>(i);
  for (std::size_t row = 0; row < rows; ++row, sums += kKeyBlock, best += kKeyBlock, numbers += kKeyBlock)
    for (std::size_t at = 0; at < kKeyBlock; at += kWidth) {
      const Floats scaled =
          row_products(sums, keys.offsets, at, row_scales[row]) * load_vector<Floats>(keys.scales + at);
      const Floats value = scaled + load_vector<Floats>(keys.biases + at),
                   before = load_vector<Floats>(best + at);
      const Ints larger = value > before;
      store_vector(best + at, larger ? value : before);
      store_vector(numbers + at, larger ? lanes + (first + static_cast<std::int32_t>(at))
                                        : load_vector<Ints>(numbers + at));
    }
}

// ---- rows of an encoder's states ----------------------------------------------------------------------------------------

constexpr float kCodeStep = 1.0f / 127.0f;
constexpr float kCodeShift = 12583040.0f;  // 1.5 · 2^23 + 128: the low byte of a sum is the code, rounded half to even

inline std::uint32_t float_bits(float x) { return __builtin_bit_cast(std::uint32_t, x); }

// Compared as integers, so that NaN is the largest.
[[maybe_unused]] float largest_magnitude(const float* x, std::size_t n) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t magnitude = float_bits(x[i]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  return __builtin_bit_cast(float, largest);
}

[[maybe_unused]] float quantize_row(const float* x, std::size_t n, std::uint8_t* codes) {
  const float largest = largest_magnitude(x, n);
  for (std::size_t i = 0; i < n; ++i) codes[i] = static_cast<std::uint8_t>(float_bits((x[i] / largest) / kCodeStep + kCodeShift));
  return largest;
}

// ONNX Runtime's erf: polynomials in |x| below and above 0.921875, fused multiply-adds in this order.
constexpr float kErfSmall[] = {-5.99104969e-4f, 4.99339588e-3f, -2.67667342e-2f, 1.12818025e-1f, -3.76124859e-1f, 1.28379151e-1f};
constexpr float kErfLarge[] = {1.72948930e-5f, -3.83208680e-4f, 3.88393435e-3f, -2.42545605e-2f, 1.06777847e-1f, 6.34846687e-1f, 1.28717512e-1f};
constexpr float kErfSplit = 0.921875f, kErfLimit = 3.925f;
constexpr float kExp[] = {1.38319808e-3f, 8.37550033e-3f, 4.16689515e-2f, 1.66664466e-1f, 4.99999851e-1f, 1.0f, 1.0f};
constexpr float kLog2E = 1.44269504088896341f, kLog2High = -6.93145752e-1f, kLog2Low = -1.42860677e-6f, kExpShift = 12582912.0f;
constexpr float kRootHalf = 0.70710678118654752440f;

template <std::size_t Terms>
inline float polynomial(const float (&terms)[Terms], float x) {
  float sum = terms[0];
  for (std::size_t i = 1; i < Terms; ++i) sum = __builtin_fmaf(sum, x, terms[i]);
  return sum;
}

// exp(x) for -88 < x ≤ 0
inline float exponential(float x) {
  const float power = __builtin_fmaf(kLog2E, x, kExpShift) - kExpShift;
  const float rest = __builtin_fmaf(power, kLog2Low, __builtin_fmaf(power, kLog2High, x));
  return polynomial(kExp, rest) * __builtin_bit_cast(float, static_cast<std::uint32_t>(static_cast<std::int32_t>(power) + 127) << 23);
}

inline float gelu(float x) {
  const float at = x * kRootHalf;
  float magnitude = at < 0.0f ? -at : at;
  magnitude = kErfLimit < magnitude ? kErfLimit : magnitude;  // NaN stays
  float erf = __builtin_fmaf(polynomial(kErfSmall, magnitude * magnitude), magnitude, magnitude);
  if (magnitude > kErfSplit) erf = 1.0f - exponential(-__builtin_fmaf(polynomial(kErfLarge, magnitude), magnitude, magnitude));
  return (0.5f * x) * ((at < 0.0f ? -erf : erf) + 1.0f);
}

[[maybe_unused]] float gelu_row(const float* sums, float scale, const float* bias, std::size_t n, float* scratch, std::uint8_t* codes) {
  for (std::size_t i = 0; i < n; ++i) scratch[i] = gelu(sums[i] * scale + bias[i]);
  return quantize_row(scratch, n, codes);
}

void add_row(const float* sums, float scale, const float* bias, const float* residual, std::size_t n, float* out) {
  for (std::size_t i = 0; i < n; ++i) out[i] = (sums[i] * scale + bias[i]) + residual[i];
}

void scale_row(const float* sums, float scale, std::size_t n, float* out) {
  for (std::size_t i = 0; i < n; ++i) out[i] = sums[i] * scale;
}
