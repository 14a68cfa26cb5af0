/* Standard normals by position: Philox4x32-10 (Salmon et al., 2011) and Box-Muller, in vectors.
 *
 * Normal number e of a stream is a pure function of (seed, e), so any part of a stream can be made
 * in any order by any number of threads. Numbers come in groups of 64: group q uses the 128-bit
 * counters 16 q + c, c = 0 .. 15, upper half zero, key = seed. Word w of counter c fills place
 * 16 w + (2 c if c < 8 else 2 (c - 8) + 1); that order costs no shuffle at any vector width.
 * Only +, -, *, sqrt and conversions are used, unfused: every instruction set gives the same bits.
 *
 * Included once per instruction set with VECTOR_BYTES and ISA_NAME(x).
 */

#define GROUP 64
#define PAIR_VECTORS (64 / VECTOR_BYTES) /* vectors of 32-bit numbers that hold 16 of them */
#define LANES32 (VECTOR_BYTES / 4)
#define LANES64 (VECTOR_BYTES / 8)

typedef uint64_t ISA_NAME(u64) __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t ISA_NAME(u32) __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t ISA_NAME(i32) __attribute__((vector_size(VECTOR_BYTES)));
typedef float ISA_NAME(f32) __attribute__((vector_size(VECTOR_BYTES)));
typedef float ISA_NAME(f32u) __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
#define U64 ISA_NAME(u64)
#define U32 ISA_NAME(u32)
#define I32 ISA_NAME(i32)
#define F32 ISA_NAME(f32)

#if VECTOR_BYTES == 64
#define MUL_LOW_HALVES(a, b) ((U64)_mm512_mul_epu32((__m512i)(a), (__m512i)(b)))
#define SQRT(a) ((F32)_mm512_sqrt_ps((__m512)(a)))
#elif VECTOR_BYTES == 32
#define MUL_LOW_HALVES(a, b) ((U64)_mm256_mul_epu32((__m256i)(a), (__m256i)(b)))
#define SQRT(a) ((F32)_mm256_sqrt_ps((__m256)(a)))
#elif defined(__SSE2__)
#define MUL_LOW_HALVES(a, b) ((U64)_mm_mul_epu32((__m128i)(a), (__m128i)(b)))
#define SQRT(a) ((F32)_mm_sqrt_ps((__m128)(a)))
#else
#define MUL_LOW_HALVES(a, b) (((a) & 0xffffffffu) * ((b) & 0xffffffffu))
INLINE F32 ISA_NAME(sqrt_lanes)(F32 a) {
  F32 root;
  for (int i = 0; i < LANES32; ++i) root[i] = __builtin_sqrtf(a[i]);
  return root;
}
#define SQRT(a) ISA_NAME(sqrt_lanes)(a)
#endif

/* The keys of the ten rounds, one word to a lane. */
INLINE void ISA_NAME(key_schedule)(uint64_t seed, U64 keys[10][2]) {
  const U64 zero = {0};
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    keys[round][0] = zero + k0;
    keys[round][1] = zero + k1;
  }
}

/* Ten rounds on two vectors of counters side by side; a word sits in the low half of its lane, the
 * high half is junk. */
INLINE void ISA_NAME(philox)(const U64 counter[2], const U64 keys[10][2], U64 word[4][2]) {
  const U64 zero = {0};
  const U64 m0 = zero + 0xD2511F53u, m1 = zero + 0xCD9E8D57u;
  U64 x0[2], x1[2], x2[2], x3[2];
#pragma GCC unroll 2
  for (int j = 0; j < 2; ++j) x0[j] = counter[j], x1[j] = counter[j] >> 32, x2[j] = x3[j] = zero;
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const U64 p0 = MUL_LOW_HALVES(x0[j], m0), p1 = MUL_LOW_HALVES(x2[j], m1);
      x0[j] = (p1 >> 32) ^ (x1[j] ^ keys[round][0]);
      x2[j] = (p0 >> 32) ^ (x3[j] ^ keys[round][1]);
      x1[j] = p1;
      x3[j] = p0;
    }
  }
#pragma GCC unroll 2
  for (int j = 0; j < 2; ++j) word[0][j] = x0[j], word[1][j] = x1[j], word[2][j] = x2[j], word[3][j] = x3[j];
}

/* The words of `groups` groups; word w of a group holds its places 16 w .. 16 w + 15. */
static __attribute__((noinline)) void ISA_NAME(words)(uint64_t seed, uint64_t first, size_t groups,
                                                      uint32_t *out) {
  static const uint64_t numbers[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  U64 lane, keys[10][2];
  memcpy(&lane, numbers, sizeof lane);
  ISA_NAME(key_schedule)(seed, keys);
  for (size_t group = 0; group < groups; ++group, out += GROUP)
#pragma GCC unroll 4
    for (int i = 0; i < PAIR_VECTORS; ++i) {
      const U64 at = lane + ((first + group) * 16 + (uint64_t)(i * LANES64));
      const U64 counter[2] = {at, at + 8};
      U64 word[4][2];
      ISA_NAME(philox)(counter, (const U64(*)[2])keys, word);
#pragma GCC unroll 4
      for (int w = 0; w < 4; ++w) {
        const U64 packed = (word[w][0] & 0xffffffffu) | (word[w][1] << 32);
        memcpy(out + 16 * w + i * LANES32, &packed, sizeof packed);
      }
    }
}

/* A step of the same formula for every vector of a group: the chains run side by side, which hides
 * their latency. */
#define SIDE_BY_SIDE _Pragma("GCC unroll 8") for (int i = 0; i < PAIR_VECTORS; ++i)

/* radius[i] = sqrt(-ln((2 v + 1) / 2^33)) for v = word >> 1: finite, zero only where the argument
 * rounds to 1. The logarithm is that of Cephes (logf), its polynomial summed as a tree. */
INLINE void ISA_NAME(radii)(const U32 *word, F32 *radius) {
  F32 x[PAIR_VECTORS], exponent[PAIR_VECTORS];
  SIDE_BY_SIDE {
    const F32 u = (__builtin_convertvector((I32)(word[i] >> 1), F32) + 0.5f) * 4.656612873077393e-10f;
    const I32 bits = (I32)u, shift = (bits - 0x3f3504f3) >> 23;
    x[i] = (F32)(bits - (shift << 23)) - 1.0f; /* in [sqrt(1/2), sqrt(2)) - 1 */
    exponent[i] = __builtin_convertvector(shift, F32) * 0.693147180559945f;
  }
  SIDE_BY_SIDE {
    const F32 x2 = x[i] * x[i], x4 = x2 * x2;
    const F32 p01 = x[i] * -2.4999993993e-1f + 3.3333331174e-1f;
    const F32 p23 = x[i] * -1.6668057665e-1f + 2.0000714765e-1f;
    const F32 p45 = x[i] * -1.2420140846e-1f + 1.4249322787e-1f;
    const F32 p67 = x[i] * -1.1514610310e-1f + 1.1676998740e-1f;
    const F32 high = (p67 + x2 * 7.0376836292e-2f) * x2 + p45;
    const F32 p = high * x4 + (p23 * x2 + p01);
    /* not below zero: x <= 0 where the exponent is zero, and ln 2 outweighs the rest elsewhere */
    radius[i] = SQRT(((x2 * 0.5f - p * (x[i] * x2)) - x[i]) - exponent[i]);
  }
}

/* Two normals from two words: radius from the first, angle and two signs from the second.
 * The angle is pi/4 + a with a in [-pi/4, pi/4), so sqrt(2) cos = cos a - sin a; sine and cosine
 * have the coefficients of Cephes (sinf, cosf). */
INLINE void ISA_NAME(box_muller)(const U32 *radius_word, const U32 *angle_word, F32 *first,
                                 F32 *second) {
  const U32 sign = (U32){0} + 0x80000000u;
  F32 radius[PAIR_VECTORS];
  ISA_NAME(radii)(radius_word, radius);
  SIDE_BY_SIDE {
    const U32 word = angle_word[i];
    const F32 a = __builtin_convertvector((I32)(word << 2), F32) * 3.6572951981679e-10f;
    const F32 z = a * a;
    const F32 odd = (z * -1.9515295891e-4f + 8.3321608736e-3f) * z - 1.6666654611e-1f;
    const F32 even = (z * 2.443315711809948e-5f - 1.388731625493765e-3f) * z + 4.166664568298827e-2f;
    const F32 sine = odd * (z * a) + a;
    const F32 cosine = even * (z * z) + (1.0f - z * 0.5f);
    first[i] = (F32)((U32)(radius[i] * (cosine - sine)) ^ (word & sign));
    second[i] = (F32)((U32)(radius[i] * (cosine + sine)) ^ ((word << 1) & sign));
  }
}

/* Words to normals, in place of each other: the words of a pair become the two normals. */
static __attribute__((noinline)) void ISA_NAME(words_to_normals)(const uint32_t *words,
                                                                 size_t groups, float *out) {
  for (size_t group = 0; group < groups; ++group, words += GROUP, out += GROUP) {
    U32 word[4][PAIR_VECTORS];
    F32 normal[4][PAIR_VECTORS];
    memcpy(word, words, sizeof word);
    ISA_NAME(box_muller)(word[0], word[1], normal[0], normal[1]);
    ISA_NAME(box_muller)(word[2], word[3], normal[2], normal[3]);
    memcpy(out, normal, sizeof normal);
  }
}

#define BATCH 16 /* groups made at a time: the words stay in the first-level cache */

/* Numbers first .. first + count - 1 of the stream. */
static void ISA_NAME(normals_f32)(uint64_t seed, uint64_t first, size_t count, void *to) {
  float *out = to;
  while (count) {
    uint32_t words[BATCH * GROUP] __attribute__((aligned(64)));
    const size_t offset = first % GROUP;
    size_t groups = (offset + count + GROUP - 1) / GROUP;
    if (groups > BATCH) groups = BATCH;
    const size_t made = groups * GROUP - offset, take = count < made ? count : made;
    ISA_NAME(words)(seed, first / GROUP, groups, words);
    if (take == groups * GROUP) {
      ISA_NAME(words_to_normals)(words, groups, out);
    } else {
      float normals[BATCH * GROUP] __attribute__((aligned(64)));
      ISA_NAME(words_to_normals)(words, groups, normals);
      memcpy(out, normals + offset, take * sizeof *out);
    }
    out += take, first += take, count -= take;
  }
}

/* The same numbers in double: a seed means the same noise in either precision. */
static void ISA_NAME(normals_f64)(uint64_t seed, uint64_t first, size_t count, void *to) {
  double *out = to;
  while (count) {
    float normals[BATCH * GROUP] __attribute__((aligned(64)));
    const size_t take = count < BATCH * GROUP ? count : BATCH * GROUP;
    ISA_NAME(normals_f32)(seed, first, take, normals);
    for (size_t i = 0; i < take; ++i) out[i] = (double)normals[i];
    out += take, first += take, count -= take;
  }
}

#undef BATCH
#undef SIDE_BY_SIDE
#undef PAIR_VECTORS
#undef LANES32
#undef LANES64
#undef U64
#undef U32
#undef I32
#undef F32
#undef MUL_LOW_HALVES
#undef SQRT
#undef GROUP
