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
 *   sum_{j > 0} p_j + d_0,  S - 2 (b + N p)_i  with S = sum_j p_j     and     the same of d, -p, a.
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

/* Sums of p_1 .. p_q, and (N p)_i; the compiler forms sums of equal pairs once. */
#define TWO(i, j) (p[i] + p[j])
#define SUM_6 (TWO(1, 2) + TWO(3, 4) + p[5])
#define CYCLE_6(i) p[((i) - 1) % 5 + 1]
#define FAR_6(i) (CYCLE_6((i) + 2) + CYCLE_6((i) + 3))

#define ROW_10(i) (TWO(((i) - 1) / 3 * 3 + 1, ((i) - 1) / 3 * 3 + 2) + p[((i) - 1) / 3 * 3 + 3])
#define COLUMN_10(i) (TWO(((i) - 1) % 3 + 1, ((i) - 1) % 3 + 4) + p[((i) - 1) % 3 + 7])
#define SUM_10 (ROW_10(1) + ROW_10(4) + ROW_10(7))
#define FAR_10(i) FMA(p[i], minus_two, ROW_10(i) + COLUMN_10(i))

#define CYCLE_14(i) p[((i) - 1) % 13 + 1]
#define PAIR_14(i) (CYCLE_14(i) + CYCLE_14((i) + 1))
#define SUM_14 (PAIR_14(1) + PAIR_14(3) + (PAIR_14(5) + PAIR_14(7)) + (PAIR_14(9) + PAIR_14(11)) + p[13])
#define FAR_14(i) ((PAIR_14((i) + 5) + PAIR_14((i) + 7)) + (CYCLE_14((i) + 2) + CYCLE_14((i) + 11)))

#define HALVES_6(i) p[i] = r[i] + r[i + 6], d[i] = r[i] - r[i + 6], a[i] = r[i], b[i] = r[i + 6];
#define HALVES_10(i) p[i] = r[i] + r[i + 10], d[i] = r[i] - r[i + 10], a[i] = r[i], b[i] = r[i + 10];
#define HALVES_14(i) p[i] = r[i] + r[i + 14], d[i] = r[i] - r[i + 14], a[i] = r[i], b[i] = r[i + 14];
#define HALF_6(i) out[i] = FMA(other[i] + FAR_6(i), minus_two, all);
#define HALF_10(i) out[i] = FMA(other[i] + FAR_10(i), minus_two, all);
#define HALF_14(i) out[i] = FMA(other[i] + FAR_14(i), minus_two, all);

/* H_m of the m vectors in r, m = 2 h */
#define DEFINE_HADAMARD(m, h)                                                             \
  INLINE void NAME(half_##m)(const V *p, V first, const V *other, V *out) {               \
    const V minus_two = (V){0} - 2, sum = SUM_##h, all = sum + p[0];                      \
    out[0] = sum + first;                                                                 \
    AFTER_FIRST_##h(HALF_##h)                                                             \
  }                                                                                       \
  INLINE void NAME(hadamard_##m)(V * r) {                                                 \
    V p[h], d[h], a[h], b[h];                                                             \
    EACH_##h(HALVES_##h) NAME(half_##m)(p, d[0], b, r);                                   \
    NAME(half_##m)(d, -p[0], a, r + h);                                                   \
  }                                                                                       \
  /* Columns [begin, end) of m parts that are `stride` entries apart. */                  \
  static void NAME(combine_##m)(T * x, size_t stride, size_t begin, size_t end, T scale) { \
    for (size_t j = begin; j < end; j += LANES) {                                         \
      const T *src = x + j;                                                               \
      T *dst = x + j;                                                                     \
      V r[m];                                                                             \
      EACH_##m(GET) NAME(hadamard_##m)(r);                                                \
      EACH_##m(TIMES) EACH_##m(PUT)                                                       \
    }                                                                                     \
  }                                                                                       \
  /* m parts that are shorter than a vector. */                                           \
  static void NAME(combine_short_##m)(T * x, size_t part, T scale) {                      \
    V r[m] = {{0}};                                                                       \
    for (size_t i = 0; i < m; ++i) memcpy(r + i, x + i * part, part * sizeof(T));         \
    NAME(hadamard_##m)(r);                                                                \
    EACH_##m(TIMES) for (size_t i = 0; i < m; ++i)                                        \
        memcpy(x + i * part, r + i, part * sizeof(T));                                    \
  }
DEFINE_HADAMARD(12, 6)
DEFINE_HADAMARD(20, 10)
DEFINE_HADAMARD(28, 14)

INLINE void NAME(combine)(T *x, size_t order, size_t part, size_t begin, size_t end, T scale) {
  if (order == 12) NAME(combine_12)(x, part, begin, end, scale);
  if (order == 20) NAME(combine_20)(x, part, begin, end, scale);
  if (order == 28) NAME(combine_28)(x, part, begin, end, scale);
}

INLINE void NAME(combine_short)(T *x, size_t order, size_t part, T scale) {
  if (order == 12) NAME(combine_short_12)(x, part, scale);
  if (order == 20) NAME(combine_short_20)(x, part, scale);
  if (order == 28) NAME(combine_short_28)(x, part, scale);
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
    NAME(power_rows)(src, dst, order, part, 1, NULL);
    if (part < LANES)
      NAME(combine_short)(dst, order, part, (T)factor);
    else
      NAME(combine)(dst, order, part, 0, part, (T)factor);
  }
}

/* A share of one long row, split in m parts or, of a power of two, in eight: first the parts, then
 * (second phase) columns of the parts. Used to spread a single row over threads. */
static void NAME(row_part)(const void *from, void *to, size_t size, size_t part) {
  const size_t order = order_of(size), entries = size / (order == 1 ? 8 : order), at = part * entries;
  NAME(long_row)((const T *)from + at, (T *)to + at, entries, 1);
}
static void NAME(row_columns)(void *to, size_t size, size_t begin, size_t end, double scale) {
  const size_t order = order_of(size);
  if (order == 1)
    NAME(top_pass)(to, size / 8, 8, begin, end, (T)scale);
  else
    NAME(combine)(to, order, size / order, begin, end, (T)scale);
}
