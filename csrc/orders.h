/* Rows of m 2^k entries, m = 12, 20 or 28: H = H_m (x) H_n, for one instruction set and element type.
 *
 * Each of the m parts of a row is transformed by itself; then H_m combines entries n = 2^k apart.
 * H_m is Paley's second matrix of q = 5, 9, 13, which is symmetric: with J of ones and N the adjacency
 * matrix of nonresidues mod q (of a 3 x 3 rook's graph for q = 9, where numbers are those of GF(9)),
 *
 *   H_m = [C + I, C - I; C - I, -C - I]      C = [0, 1'; 1, J - I - 2 N]      m = 2 (q + 1).
 *
 * For halves a, b of the entries, p = a + b and d = a - b this is (C p + d, C d - p), or
 *
 *   sum_{j > 0} p_j + d_0,  S - 2 b_i - 2 (N p)_i  with S = sum_j p_j    and    the same of d, -p, a.
 *
 * Sums are spread over the units that add and those that multiply and add.
 */

#define EACH_6(M) EACH_4(M) M(4) M(5)
#define EACH_10(M) EACH_8(M) M(8) M(9)
#define EACH_12(M) EACH_8(M) M(8) M(9) M(10) M(11)
#define EACH_14(M) EACH_12(M) M(12) M(13)
#define EACH_20(M) EACH_16(M) M(16) M(17) M(18) M(19)
#define EACH_28(M) EACH_20(M) M(20) M(21) M(22) M(23) M(24) M(25) M(26) M(27)
#define AFTER_FIRST_6(M) M(1) M(2) M(3) M(4) M(5)
#define AFTER_FIRST_10(M) AFTER_FIRST_6(M) M(6) M(7) M(8) M(9)
#define AFTER_FIRST_14(M) AFTER_FIRST_10(M) M(10) M(11) M(12) M(13)

/* Sums of p_1 .. p_q, and rest - 2 (N p)_i; the compiler forms sums of equal pairs once. */
#define TWO(i, j) (p[i] + p[j])
#define SUM_6 (TWO(1, 2) + TWO(3, 4) + p[5])
#define CYCLE_6(i) p[((i) - 1) % 5 + 1]
#define LESS_FAR_6(i, rest) FMA(CYCLE_6((i) + 2) + CYCLE_6((i) + 3), minus_two, rest)

#define ROW_10(i) (TWO(((i) - 1) / 3 * 3 + 1, ((i) - 1) / 3 * 3 + 2) + p[((i) - 1) / 3 * 3 + 3])
#define COLUMN_10(i) (TWO(((i) - 1) % 3 + 1, ((i) - 1) % 3 + 4) + p[((i) - 1) % 3 + 7])
#define SUM_10 (ROW_10(1) + ROW_10(4) + ROW_10(7))
#define LESS_FAR_10(i, rest) FMA(FMA(p[i], minus_two, ROW_10(i) + COLUMN_10(i)), minus_two, rest)

#define CYCLE_14(i) p[((i) - 1) % 13 + 1]
#define PAIR_14(i) (CYCLE_14(i) + CYCLE_14((i) + 1))
#define SUM_14 (PAIR_14(1) + PAIR_14(3) + (PAIR_14(5) + PAIR_14(7)) + (PAIR_14(9) + PAIR_14(11)) + p[13])
#define FAR_14(i) FMA(PAIR_14((i) + 5) + PAIR_14((i) + 7), one, CYCLE_14((i) + 2) + CYCLE_14((i) + 11))
#define LESS_FAR_14(i, rest) FMA(FAR_14(i), minus_two, rest)

#define A(i) LOAD(src + (i) * from)
#define B(i) LOAD(src + ((i) + half) * from)
#define SUM_OF(i) p[i] = A(i) + B(i);
#define DIFFERENCE_OF(i) p[i] = DIFFERENCE(A(i), B(i));
#define LESS_TWICE(other) FMA(other, minus_two, all)
#define UPPER_6(i) STORE(dst + (i) * to, LESS_FAR_6(i, LESS_TWICE(B(i))));
#define UPPER_10(i) STORE(dst + (i) * to, LESS_FAR_10(i, LESS_TWICE(B(i))));
#define UPPER_14(i) STORE(dst + (i) * to, LESS_FAR_14(i, LESS_TWICE(B(i))));
#define LOWER_6(i) STORE(dst + ((i) + half) * to, LESS_FAR_6(i, LESS_TWICE(A(i))));
#define LOWER_10(i) STORE(dst + ((i) + half) * to, LESS_FAR_10(i, LESS_TWICE(A(i))));
#define LOWER_14(i) STORE(dst + ((i) + half) * to, LESS_FAR_14(i, LESS_TWICE(A(i))));

/* H_m of m = 2 h vectors that are `from` entries apart in src and `to` apart in dst. 12 and 20 are
 * read into registers first. 28 do not fit: they are read twice, so that dst must be other memory, one
 * half after the other, and in a function of their own, where no others want the registers. */
#define DEFINE_HALVES(m, h)                                                                     \
  INLINE void NAME(halves_##m)(const T *src, size_t from, T *dst, size_t to) {                  \
    const size_t half = h;                                                                      \
    const V minus_two = (V){0} - 2, one = (V){0} + 1;                                           \
    V p[h], sum, all;                                                                           \
    (void)one;                                                                                  \
    EACH_##h(SUM_OF) sum = SUM_##h, all = sum + p[0];                                           \
    STORE(dst, sum + (A(0) - B(0)));                                                            \
    AFTER_FIRST_##h(UPPER_##h)                                                                  \
    EACH_##h(DIFFERENCE_OF) sum = SUM_##h, all = sum + p[0];                                    \
    STORE(dst + h * to, sum - (A(0) + B(0)));                                                   \
    AFTER_FIRST_##h(LOWER_##h)                                                                  \
  }
DEFINE_HALVES(12, 6)
DEFINE_HALVES(20, 10)
DEFINE_HALVES(28, 14)

#define READ(i) r[i] = LOAD(src + (i) * from);
INLINE void NAME(hadamard_12)(const T *src, size_t from, T *dst, size_t to) {
  V r[12];
  EACH_12(READ) NAME(halves_12)((const T *)r, LANES, dst, to);
}
INLINE void NAME(hadamard_20)(const T *src, size_t from, T *dst, size_t to) {
  V r[20];
  EACH_20(READ) NAME(halves_20)((const T *)r, LANES, dst, to);
}
static __attribute__((noinline)) void NAME(hadamard_28)(const T *src, size_t from, T *dst, size_t to) {
  NAME(halves_28)(src, from, dst, to);
}

#define DEFINE_COMBINE(m)                                                                       \
  /* Columns [begin, end) of m parts of `part` entries. In place if dst is src. */              \
  static void NAME(combine_##m)(const T *src, T *dst, size_t part, size_t begin, size_t end) {  \
    for (size_t j = begin; j < end; j += LANES) {                                               \
      V r[m];                                                                                   \
      if (m < 28 || src != dst) {                                                               \
        NAME(hadamard_##m)(src + j, part, dst + j, part);                                       \
        continue;                                                                               \
      }                                                                                         \
      NAME(hadamard_##m)(src + j, part, (T *)r, LANES);                                         \
      for (size_t i = 0; i < m; ++i) STORE(dst + j + i * part, r[i]);                           \
    }                                                                                           \
  }                                                                                             \
  /* m parts that are shorter than a vector. */                                                 \
  static void NAME(combine_short_##m)(const T *src, T *dst, size_t part) {                      \
    V r[m] = {{0}}, sums[m];                                                                    \
    for (size_t i = 0; i < m; ++i) memcpy(r + i, src + i * part, part * sizeof(T));             \
    NAME(hadamard_##m)((const T *)r, LANES, (T *)sums, LANES);                                  \
    for (size_t i = 0; i < m; ++i) memcpy(dst + i * part, sums + i, part * sizeof(T));          \
  }
DEFINE_COMBINE(12)
DEFINE_COMBINE(20)
DEFINE_COMBINE(28)

INLINE void NAME(combine)(const T *src, T *dst, size_t order, size_t part, size_t begin, size_t end) {
  if (order == 12) NAME(combine_12)(src, dst, part, begin, end);
  if (order == 20) NAME(combine_20)(src, dst, part, begin, end);
  if (order == 28) NAME(combine_28)(src, dst, part, begin, end);
}

INLINE void NAME(combine_short)(const T *src, T *dst, size_t order, size_t part) {
  if (order == 12) NAME(combine_short_12)(src, dst, part);
  if (order == 20) NAME(combine_short_20)(src, dst, part);
  if (order == 28) NAME(combine_short_28)(src, dst, part);
}

/* Contiguous rows of any size, H(src) * factor -> dst. `scratch` is for powers of two. */
static void NAME(rows)(const void *from, void *to, size_t rows, size_t size, double factor,
                       void *scratch) {
  const size_t order = order_of(size), part = size / order;
  if (order == 1) {
    NAME(power_rows)(from, to, rows, size, factor, scratch);
    return;
  }
  const T *src = from;
  T *dst = to;
  for (size_t row = 0; row < rows; ++row, src += size, dst += size) {
    if (part < LANES)
      NAME(combine_short)(src, dst, order, part);
    else
      NAME(combine)(src, dst, order, part, 0, part);
    NAME(power_rows)(dst, dst, order, part, factor, NULL);
  }
}

/* A share of one long row, to spread it over threads: a part, of m or of eight for a power of two,
 * and columns of all parts. A power of two has its parts first, in which `scale` is 1. */
static void NAME(row_part)(const void *from, void *to, size_t size, size_t part, double scale) {
  const size_t order = order_of(size), entries = size / (order == 1 ? 8 : order), at = part * entries;
  NAME(long_row)((const T *)from + at, (T *)to + at, entries, (T)scale);
}
static void NAME(row_columns)(const void *from, void *to, size_t size, size_t begin, size_t end,
                              double scale) {
  const size_t order = order_of(size);
  if (order == 1)
    NAME(top_pass)(to, size / 8, 8, begin, end, (T)scale);
  else
    NAME(combine)(from, to, order, size / order, begin, end);
}
