/* The Hartley transform for one element type, and the cosine transform that it gives.
 *
 * One level splits N entries, h = N / 2, into two transforms of h:
 *
 *   even coefficients:  x[n] + x[n + h]
 *   odd coefficients:   c d[n] + s d[h - n],  d[n] = x[n] - x[n + h],  (c, s) = (cos, sin)(2 pi n / N)
 *
 * so the differences n and h - n are reflected, as in a butterfly with fixed angles. Downwards, from the
 * whole row to pairs, rows end in bit-reversed order; upwards the transposed levels take them back from
 * it, so that M(g) = T diag(g) T needs no reordering. A cosine transform is a Hartley transform whose
 * coefficients k and D - k are reflected, of a row in another order.
 *
 * LANES rows are transformed side by side: entry n of all of them is one vector.
 */

/* Exchange lanes and vectors: lane j of v[i] becomes lane i of v[j]. */
#define CHOOSE(SIGNS, a, b) \
  ((V)(((__typeof__(SIGNS > 0))(a) & (SIGNS > 0)) | ((__typeof__(SIGNS > 0))(b) & ~(SIGNS > 0))))
#define EXCHANGE(h, SWAP, SIGNS)                                     \
  for (int i = 0; i < LANES; ++i)                                    \
    if (!(i & h)) {                                                  \
      const V a = v[i], b = v[i + h];                                \
      v[i] = CHOOSE(SIGNS, a, SWAP(b)), v[i + h] = CHOOSE(SIGNS, SWAP(a), b); \
    }

INLINE void NAME(transpose_lanes)(V *v) {
  EXCHANGE(1, SWAP_1, SIGNS_1)
#if LANES > 2
  EXCHANGE(2, SWAP_2, SIGNS_2)
#endif
#if LANES > 4
  EXCHANGE(4, SWAP_4, SIGNS_4)
#endif
#if LANES > 8
  EXCHANGE(8, SWAP_8, SIGNS_8)
#endif
}

INLINE void NAME(load_rows)(const T *src, int64_t rows, int64_t size, T *x) {
  for (int64_t n = 0; n < size; n += LANES) {
    V v[LANES];
    for (int r = 0; r < LANES; ++r) v[r] = r < rows ? LOAD(src + r * size + n) : (V){0};
    NAME(transpose_lanes)(v);
    for (int r = 0; r < LANES; ++r) STORE(x + (n + r) * LANES, v[r]);
  }
}

INLINE void NAME(store_rows)(const T *x, int64_t rows, int64_t size, T scale, T *dst) {
  for (int64_t n = 0; n < size; n += LANES) {
    V v[LANES];
    for (int r = 0; r < LANES; ++r) v[r] = LOAD(x + (n + r) * LANES) * scale;
    NAME(transpose_lanes)(v);
    for (int r = 0; r < LANES; ++r)
      if (r < rows) STORE(dst + r * size + n, v[r]);
  }
}

#define ENTRY(n) LOAD(x + (n) * LANES)
#define SET(n, v) STORE(x + (n) * LANES, v)
/* (a, b) becomes (c a + s b, s a - c b) */
#define REFLECTED(a, b, c, s)                              \
  {                                                        \
    const V first = FMA((V){0} + (s), b, (c) * (a));       \
    b = FMA((V){0} + (s), a, -((c) * (b)));                \
    a = first;                                             \
  }
#define BOTH(a, b) \
  {                              \
    const V sum = a + b;         \
    b = a - b;                   \
    a = sum;                     \
  }

/* Entries 0, N/4, N/2, 3N/4 of two levels, and those N/8 further. */
INLINE void NAME(hartley_few)(T *x, int64_t n, int64_t quarter, const T root, const int up) {
  V a = ENTRY(n), b = ENTRY(n + quarter), c = ENTRY(n + 2 * quarter), d = ENTRY(n + 3 * quarter);
  if (up) {
    BOTH(a, b)
    if (n) {
      c = c * root, d = d * root;
    } else {
      BOTH(c, d)
    }
  }
  BOTH(a, c)
  BOTH(b, d)
  if (!up) {
    BOTH(a, b)
    if (n) {
      c = c * root, d = d * root;
    } else {
      BOTH(c, d)
    }
  }
  SET(n, a), SET(n + quarter, b), SET(n + 2 * quarter, c), SET(n + 3 * quarter, d);
}

/* Two levels of N entries; waves[2 k], waves[2 k + 1] = (cos, sin)(2 pi k / (N stride)). */
INLINE void NAME(hartley_pass)(T *x, int64_t N, const T *waves, int64_t stride, const int up) {
  const int64_t h = N / 2, q = N / 4;
  const T root = (T)1.41421356237309504880;
  NAME(hartley_few)(x, 0, q, root, up);
  if (N >= 8) NAME(hartley_few)(x, N / 8, q, root, up);
  for (int64_t n = 1; n < N / 8; ++n) {
    const T *const wave = waves + 2 * n * stride, *const twice = waves + 4 * n * stride;
    const T c1 = wave[0], s1 = wave[1], c2 = twice[0], s2 = twice[1];
    V a0 = ENTRY(n), a1 = ENTRY(q - n), a2 = ENTRY(q + n), a3 = ENTRY(h - n);
    V b0 = ENTRY(h + n), b1 = ENTRY(h + q - n), b2 = ENTRY(h + q + n), b3 = ENTRY(N - n);
    if (up) {
      REFLECTED(a2, a3, c2, s2)
      REFLECTED(b2, b3, c2, s2)
      BOTH(a0, a2) BOTH(a1, a3)
      BOTH(b0, b2) BOTH(b1, b3)
      REFLECTED(b0, b3, c1, s1)
      REFLECTED(b1, b2, s1, c1)
    }
    BOTH(a0, b0) BOTH(a1, b1)
    BOTH(a2, b2) BOTH(a3, b3)
    if (!up) {
      REFLECTED(b0, b3, c1, s1)
      REFLECTED(b1, b2, s1, c1)
      BOTH(a0, a2) BOTH(a1, a3)
      BOTH(b0, b2) BOTH(b1, b3)
      REFLECTED(a2, a3, c2, s2)
      REFLECTED(b2, b3, c2, s2)
    }
    SET(n, a0), SET(q - n, a1), SET(q + n, a2), SET(h - n, a3);
    SET(h + n, b0), SET(h + q - n, b1), SET(h + q + n, b2), SET(N - n, b3);
  }
}

/* The last levels (down) or the first (up): 8 or 16 entries. */
INLINE void NAME(hartley_end)(T *x, const int64_t N, const T *waves, int64_t stride, const int up) {
  if (!up) NAME(hartley_pass)(x, N, waves, stride, 0);
  for (int k = 0; k < 4; ++k) {
    T *const part = x + k * (N / 4) * LANES;
    if (N == 16) {
      NAME(hartley_pass)(part, 4, waves, 4 * stride, up);
    } else {
      V a = LOAD(part), b = LOAD(part + LANES);
      BOTH(a, b)
      STORE(part, a), STORE(part + LANES, b);
    }
  }
  if (up) NAME(hartley_pass)(x, N, waves, stride, 1);
}

static void NAME(hartley_down)(T *x, int64_t N, const T *waves, int64_t stride) {
  if (N == 8)
    NAME(hartley_end)(x, 8, waves, stride, 0);
  else if (N == 16)
    NAME(hartley_end)(x, 16, waves, stride, 0);
  else {
    NAME(hartley_pass)(x, N, waves, stride, 0);
    for (int k = 0; k < 4; ++k) NAME(hartley_down)(x + k * (N / 4) * LANES, N / 4, waves, 4 * stride);
  }
}

static void NAME(hartley_up)(T *x, int64_t N, const T *waves, int64_t stride) {
  if (N == 8)
    NAME(hartley_end)(x, 8, waves, stride, 1);
  else if (N == 16)
    NAME(hartley_end)(x, 16, waves, stride, 1);
  else {
    for (int k = 0; k < 4; ++k) NAME(hartley_up)(x + k * (N / 4) * LANES, N / 4, waves, 4 * stride);
    NAME(hartley_pass)(x, N, waves, stride, 1);
  }
}

/* Reflect coefficients k and D - k: from Hartley to cosine, and back. */
INLINE void NAME(to_cosines)(T *x, int64_t size, const T *turns) {
  for (int64_t k = 1; k < size / 2; ++k) {
    V a = ENTRY(k), b = ENTRY(size - k);
    REFLECTED(a, b, turns[2 * k], turns[2 * k + 1])
    SET(k, a), SET(size - k, b);
  }
}

/* A task: LANES rows. */
static void NAME(hartley_task)(const Hartley *a, int64_t index, void *scratch) {
  const int64_t first = index * LANES, left = a->rows - first, at = first * a->size;
  const int64_t rows = left < LANES ? left : LANES;
  T *const x = scratch;
  NAME(load_rows)((const T *)a->x + at, rows, a->size, x);
  if (a->up) {
    NAME(hartley_up)(x, a->size, a->waves, 1);
    if (a->turns) NAME(to_cosines)(x, a->size, a->turns);
  } else {
    if (a->turns) NAME(to_cosines)(x, a->size, a->turns);
    NAME(hartley_down)(x, a->size, a->waves, 1);
  }
  NAME(store_rows)(x, rows, a->size, (T)(1 / __builtin_sqrt((double)a->size)), (T *)a->y + at);
}

#undef CHOOSE
#undef EXCHANGE
#undef ENTRY
#undef SET
#undef REFLECTED
#undef BOTH
