/* The unnormalised Walsh-Hadamard transform of rows, for one instruction set and element type.
 *
 * H of size 2^d is a product of d commuting "levels"; level h = 2^l combines entries whose index
 * differs in bit l. BLOCK consecutive entries live in NREG registers, where the lowest levels run
 * without touching memory; the levels above are passes of radix 2, 4 or 8 over cached data,
 * depth first, so that a long row is transformed part by part while it is in cache.
 */

#define BLOCK ((size_t)(NREG * LANES))
#define LEAF ((size_t)32768 / sizeof(T)) /* 32 KiB: a row up to here is one run of passes */

#define EACH_1(M) M(0)
#define EACH_2(M) M(0) M(1)
#define EACH_4(M) EACH_2(M) M(2) M(3)
#define EACH_8(M) EACH_4(M) M(4) M(5) M(6) M(7)
#define EACH_16(M) EACH_8(M) M(8) M(9) M(10) M(11) M(12) M(13) M(14) M(15)

#define PAIR(i, j)             \
  {                            \
    const V sum = r[i] + r[j]; \
    r[j] = r[i] - r[j];        \
    r[i] = sum;                \
  }
/* The same with the difference on the multiply-add units, for passes that only add. */
#define SPREAD_PAIR(i, j)          \
  {                                \
    const V sum = r[i] + r[j];     \
    r[j] = DIFFERENCE(r[i], r[j]); \
    r[i] = sum;                    \
  }
/* The same pair times `scale`, which costs half a multiplication per entry. */
#define SCALED_PAIR(i, j)                     \
  {                                           \
    const V b = r[j] * scales;                \
    r[j] = SCALED_DIFFERENCE(r[i], scales, b); \
    r[i] = SCALED_SUM(r[i], scales, b);       \
  }
#define PAIRS_1(M)
#define PAIRS_2(M) M(0, 1)
#define LOWER_PAIRS_2(M)
#define LAST_PAIRS_2(M) M(0, 1)
#define LOWER_PAIRS_4(M) M(0, 1) M(2, 3)
#define LAST_PAIRS_4(M) M(0, 2) M(1, 3)
#define PAIRS_4(M) LOWER_PAIRS_4(M) LAST_PAIRS_4(M)
#define LOWER_PAIRS_8(M) M(0, 1) M(2, 3) M(4, 5) M(6, 7) M(0, 2) M(1, 3) M(4, 6) M(5, 7)
#define LAST_PAIRS_8(M) M(0, 4) M(1, 5) M(2, 6) M(3, 7)
#define PAIRS_8(M) LOWER_PAIRS_8(M) LAST_PAIRS_8(M)
#define PAIRS_16(M)                                                                   \
  PAIRS_8(M)                                                                          \
  M(8, 9) M(10, 11) M(12, 13) M(14, 15) M(8, 10) M(9, 11) M(12, 14) M(13, 15)         \
  M(8, 12) M(9, 13) M(10, 14) M(11, 15)                                               \
  M(0, 8) M(1, 9) M(2, 10) M(3, 11) M(4, 12) M(5, 13) M(6, 14) M(7, 15)

#define LEVEL_1(i) r[i] = LANE_1(r[i]);
#define LEVEL_2(i) r[i] = LANE_2(r[i]);
#define LEVEL_4(i) r[i] = LANE_4(r[i]);
#define LEVEL_8(i) r[i] = LANE_8(r[i]);
#define TIMES(i) r[i] *= scale;
#define GET(i) r[i] = LOAD(src + (i) * stride);
#define PUT(i) STORE(dst + (i) * stride, r[i]);
#define PUT_AROUND(i) STREAM(dst + (i) * stride, r[i]);

/* All levels of a run of n vectors held in registers. */
#define DEFINE_IN_REGISTERS(n)                    \
  INLINE void NAME(in_registers_##n)(V * r) {     \
    EACH_##n(LEVEL_1) EACH_##n(LEVEL_2) EACH_##n(LEVEL_4) EACH_##n(LEVEL_8) PAIRS_##n(PAIR) \
  }
DEFINE_IN_REGISTERS(1)
DEFINE_IN_REGISTERS(2)
DEFINE_IN_REGISTERS(4)
DEFINE_IN_REGISTERS(8)
#if NREG == 16
DEFINE_IN_REGISTERS(16)
#endif

/* Of a vector that holds several rows of n entries: all levels of each. */
#define LEVELS_BELOW_1(r)
#define LEVELS_BELOW_2(r) r[0] = LANE_1(r[0])
#define LEVELS_BELOW_4(r) r[0] = LANE_2(LANE_1(r[0]))
#define LEVELS_BELOW_8(r) r[0] = LANE_4(LANE_2(LANE_1(r[0])))

#if NREG == 16
#define SHORT_ROWS_BLOCK NAME(short_rows_16)
#define IN_REGISTERS_BLOCK NAME(in_registers_16)
#define EACH_BLOCK EACH_16
#else
#define SHORT_ROWS_BLOCK NAME(short_rows_8)
#define IN_REGISTERS_BLOCK NAME(in_registers_8)
#define EACH_BLOCK EACH_8
#endif

/* Rows of n vectors, contiguous: the whole transform in one trip through the registers. */
#define DEFINE_SHORT_ROWS(n)                                                              \
  static void NAME(short_rows_##n)(const T *src, T *dst, size_t rows, T scale, int around) { \
    const size_t stride = LANES;                                                          \
    for (size_t row = 0; row < rows; ++row, src += n * LANES, dst += n * LANES) {         \
      V r[n];                                                                             \
      EACH_##n(GET) NAME(in_registers_##n)(r);                                            \
      EACH_##n(TIMES) if (around) {                                                       \
        EACH_##n(PUT_AROUND)                                                              \
      }                                                                                   \
      else {                                                                              \
        EACH_##n(PUT)                                                                     \
      }                                                                                   \
    }                                                                                     \
  }
DEFINE_SHORT_ROWS(1)
DEFINE_SHORT_ROWS(2)
DEFINE_SHORT_ROWS(4)
DEFINE_SHORT_ROWS(8)
#if NREG == 16
DEFINE_SHORT_ROWS(16)
#endif

/* Rows of two blocks: the first block waits in a small buffer for the second, and the top level is run
 * while results are stored. One block is loaded at a time: the processor then has the loads of the next
 * in sight while it works on this one. With `ahead`, what comes that many entries later is asked for. */
#define WAIT(i) waiting[i] = r[i];
#define ASK(i) \
  if (ahead && (i) * VECTOR_BYTES % 64 == 0) __builtin_prefetch(src + ahead + (i) * stride, 0, 2);
#define PUT_BOTH(i)                                                \
  {                                                                \
    const V a = waiting[i];                                        \
    STORE(dst + (i) * stride, (a + r[i]) * scale);                 \
    STORE(dst + BLOCK + (i) * stride, (a - r[i]) * scale);         \
  }
#define PUT_SUM_AROUND(i) STREAM(dst + (i) * stride, (waiting[i] + r[i]) * scale);
#define PUT_DIFFERENCE_AROUND(i) STREAM(dst + BLOCK + (i) * stride, (waiting[i] - r[i]) * scale);
INLINE void NAME(double_rows)(const T *src, T *dst, size_t rows, T scale, int around, size_t ahead) {
  const size_t stride = LANES;
  for (size_t n = 0; n < rows; ++n, src += BLOCK, dst += 2 * BLOCK) {
    V r[NREG], waiting[NREG];
    EACH_BLOCK(GET) EACH_BLOCK(ASK) IN_REGISTERS_BLOCK(r);
    EACH_BLOCK(WAIT)
    __atomic_signal_fence(__ATOMIC_SEQ_CST); /* or the compiler loads both at once */
    src += BLOCK;
    EACH_BLOCK(GET) EACH_BLOCK(ASK) IN_REGISTERS_BLOCK(r);
    if (around) {
      EACH_BLOCK(PUT_SUM_AROUND) EACH_BLOCK(PUT_DIFFERENCE_AROUND)
    } else {
      EACH_BLOCK(PUT_BOTH)
    }
  }
}

/* The low levels of a long row; returns up to which size. Two blocks at a time where that saves
 * a pass: the levels left are then a multiple of three. */
INLINE size_t NAME(low_levels)(const T *src, T *dst, size_t size, size_t ahead) {
  const size_t stride = LANES;
  if (__builtin_ctzll(size / BLOCK) % 3 == 1) {
    NAME(double_rows)(src, dst, size / (2 * BLOCK), 1, 0, ahead);
    return 2 * BLOCK;
  }
  for (size_t at = 0; at < size; at += BLOCK, src += BLOCK, dst += BLOCK) {
    V r[NREG];
    EACH_BLOCK(GET) IN_REGISTERS_BLOCK(r);
    EACH_BLOCK(PUT)
  }
  return BLOCK;
}

/* Ask for n / 4 cache lines of the row to come: two passes of a row of common length, which take n
 * vectors at a time, ask for all of it while they run in cache and memory has nothing to do. */
#define ASK_AHEAD(n) \
  for (int line = 0; line < n / 4; ++line, coming += 64) __builtin_prefetch(coming, 0, 2);
#define TOP_LEVELS(n) \
  EACH_##n(GET) LOWER_PAIRS_##n(SPREAD_PAIR) LAST_PAIRS_##n(SCALED_PAIR)
#define PUT_LINE(i)                                       \
  STREAM(dst + (i) * stride, LOAD(x + j + (i) * stride)); \
  STREAM(dst + (i) * stride + LANES, r[i]);

/* log2(radix) levels at once, entries `stride` apart, over every group of radix * stride. */
#define DEFINE_PASS(n)                                                                         \
  INLINE const char *NAME(levels_##n)(T * x, size_t size, size_t stride, const char *coming) { \
    for (size_t group = 0; group < size; group += n * stride)                                  \
      for (size_t j = group; j < group + stride; j += LANES) {                                 \
        const T *src = x + j;                                                                  \
        T *dst = x + j;                                                                        \
        V r[n];                                                                                \
        if (coming) {                                                                          \
          ASK_AHEAD(n)                                                                         \
        }                                                                                      \
        EACH_##n(GET) PAIRS_##n(SPREAD_PAIR) EACH_##n(PUT)                                     \
      }                                                                                        \
    return coming;                                                                             \
  }                                                                                            \
  static void NAME(pass_##n)(T * x, size_t size, size_t stride) {                              \
    NAME(levels_##n)(x, size, stride, NULL);                                                   \
  }                                                                                            \
  /* The same, asking for what is at `coming`; returns what is to be asked for next. */        \
  static const char *NAME(asking_pass_##n)(T * x, size_t size, size_t stride, const char *coming) { \
    return NAME(levels_##n)(x, size, stride, coming);                                          \
  }                                                                                            \
  /* The top pass of a row: columns [begin, end) of the one group; scales the result. */       \
  static void NAME(top_pass_##n)(T * x, size_t stride, size_t begin, size_t end, T scale) {    \
    const V scales = (V){0} + scale;                                                           \
    for (size_t j = begin; j < end; j += LANES) {                                              \
      const T *src = x + j;                                                                    \
      T *dst = x + j;                                                                          \
      V r[n];                                                                                  \
      TOP_LEVELS(n) EACH_##n(PUT)                                                              \
    }                                                                                          \
  }                                                                                            \
  /* The same for all columns, from x to `out` around the cache: two vectors of each part at a \
   * time, so that whole lines are written at once. */                                         \
  static void NAME(top_around_##n)(T * x, T * out, size_t stride, T scale, const char *coming) { \
    const V scales = (V){0} + scale;                                                           \
    for (size_t j = 0; j < stride; j += 2 * LANES) {                                           \
      const T *src = x + j;                                                                    \
      T *dst = x + j;                                                                          \
      V r[n];                                                                                  \
      ASK_AHEAD(n)                                                                             \
      TOP_LEVELS(n) EACH_##n(PUT)                                                              \
      src += LANES, dst = out + j;                                                             \
      ASK_AHEAD(n)                                                                             \
      TOP_LEVELS(n) EACH_##n(PUT_LINE)                                                         \
    }                                                                                          \
  }
DEFINE_PASS(2)
DEFINE_PASS(4)
DEFINE_PASS(8)

/* The radix with which the levels between `done` (finished size) and `size` go on. */
INLINE size_t NAME(next_radix)(size_t done, size_t size) {
  const size_t left = size / done;
  return left == 2 ? 2 : left == 4 || left == 16 ? 4 : 8;
}

/* Levels done .. done * radix - 1 in place, for every group of the row. */
INLINE void NAME(pass)(T *x, size_t size, size_t stride, size_t radix) {
  if (radix == 2) NAME(pass_2)(x, size, stride);
  if (radix == 4) NAME(pass_4)(x, size, stride);
  if (radix == 8) NAME(pass_8)(x, size, stride);
}

INLINE const char *NAME(asking_pass)(T *x, size_t size, size_t stride, size_t radix,
                                     const char *coming) {
  if (radix == 2) return NAME(asking_pass_2)(x, size, stride, coming);
  if (radix == 4) return NAME(asking_pass_4)(x, size, stride, coming);
  return NAME(asking_pass_8)(x, size, stride, coming);
}

INLINE void NAME(top_pass)(T *x, size_t stride, size_t radix, size_t begin, size_t end, T scale) {
  if (radix == 2) NAME(top_pass_2)(x, stride, begin, end, scale);
  if (radix == 4) NAME(top_pass_4)(x, stride, begin, end, scale);
  if (radix == 8) NAME(top_pass_8)(x, stride, begin, end, scale);
}

INLINE void NAME(top_around)(T *x, T *out, size_t stride, size_t radix, T scale,
                             const char *coming) {
  if (radix == 2) NAME(top_around_2)(x, out, stride, scale, coming);
  if (radix == 4) NAME(top_around_4)(x, out, stride, scale, coming);
  if (radix == 8) NAME(top_around_8)(x, out, stride, scale, coming);
}

/* Fewer levels than lanes: `levels` of them inside every vector of a flat array. */
static void NAME(lanes_only)(const T *src, T *dst, size_t vectors, int levels, T scale) {
  for (size_t i = 0; i < vectors; ++i, src += LANES, dst += LANES) {
    V v = LOAD(src);
    if (levels > 0) v = LANE_1(v);
    if (levels > 1) v = LANE_2(v);
    if (levels > 2) v = LANE_4(v);
    STORE(dst, v * scale);
  }
}

/* Rows shorter than a vector, contiguous; the ragged end goes through a padded copy. */
static void NAME(tiny_rows)(const T *src, T *dst, size_t rows, size_t size, T scale) {
  const int levels = __builtin_ctzll(size);
  const size_t total = rows * size, vectors = total / LANES, rest = total % LANES;
  NAME(lanes_only)(src, dst, vectors, levels, scale);
  if (rest) {
    T padded[LANES] = {0};
    memcpy(padded, src + vectors * LANES, rest * sizeof(T));
    NAME(lanes_only)(padded, padded, 1, levels, scale);
    memcpy(dst + vectors * LANES, padded, rest * sizeof(T));
  }
}

/* One row of at least BLOCK entries, H(src) * scale -> dst (dst may be src). */
static void NAME(long_row)(const T *src, T *dst, size_t size, T scale) {
  if (size == BLOCK) {
    SHORT_ROWS_BLOCK(src, dst, 1, scale, 0);
    return;
  }
  if (size > LEAF) {
    const size_t radix = size / LEAF < 8 ? size / LEAF : 8, part = size / radix;
    for (size_t i = 0; i < radix; ++i) NAME(long_row)(src + i * part, dst + i * part, part, 1);
    NAME(top_pass)(dst, part, radix, 0, part, scale);
    return;
  }
  size_t done = NAME(low_levels)(src, dst, size, 0);
  size_t radix = NAME(next_radix)(done, size);
  for (; done * radix < size; done *= radix, radix = NAME(next_radix)(done, size))
    NAME(pass)(dst, size, done, radix);
  NAME(top_pass)(dst, done, radix, 0, done, scale);
}

/* One row of 4 BLOCK to LEAF entries: the passes run in `scratch`, the result goes to dst around the
 * cache, and meanwhile the row at `next` is on its way. */
static void NAME(row_around)(const T *src, T *dst, size_t size, T scale, T *scratch, const T *next) {
  const char *coming = (const char *)next;
  size_t done = NAME(low_levels)(src, scratch, size, size);
  size_t radix = NAME(next_radix)(done, size);
  for (; done * radix < size; done *= radix, radix = NAME(next_radix)(done, size))
    coming = NAME(asking_pass)(scratch, size, done, radix, coming);
  NAME(top_around)(scratch, dst, done, radix, scale, coming);
}

/* Contiguous rows of a power of two. With `scratch` (size entries, at most LEAF) results go around
 * the cache. */
static void NAME(power_rows)(const void *from, void *to, size_t rows, size_t size, double factor,
                             void *scratch) {
  const T *src = from;
  T *dst = to;
  const T scale = (T)factor;
  const int around = scratch != NULL;
  if (size < LANES) {
    NAME(tiny_rows)(src, dst, rows, size, scale);
    return;
  }
  switch (size / LANES) {
    case 1: NAME(short_rows_1)(src, dst, rows, scale, around); return;
    case 2: NAME(short_rows_2)(src, dst, rows, scale, around); return;
    case 4: NAME(short_rows_4)(src, dst, rows, scale, around); return;
    case 8: NAME(short_rows_8)(src, dst, rows, scale, around); return;
#if NREG == 16
    case 16: NAME(short_rows_16)(src, dst, rows, scale, around); return;
#endif
    default: break;
  }
  if (size == 2 * BLOCK) {
    NAME(double_rows)(src, dst, rows, scale, around, 0);
    return;
  }
  for (size_t row = 0; row < rows; ++row, src += size, dst += size) {
    if (around) {
      NAME(row_around)(src, dst, size, scale, scratch, row + 1 < rows ? src + size : src);
    } else {
      NAME(long_row)(src, dst, size, scale);
    }
  }
}
