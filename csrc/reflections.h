/* A learned butterfly for one element type: levels of 2 x 2 reflections, with gradients.
 *
 * Level l maps pairs (a, b), h = 2^l entries apart, to (c a + s b, s a - c b); pairs are numbered by the
 * index of a. A level is its own inverse, so the backward pass takes the outputs back through it, and
 * the gradient of an angle needs no more than these: grad_b a - grad_a b.
 *
 * Coefficients are read once for a group of rows. Levels below a vector have theirs spread over the
 * lanes: v becomes v * cosines + swapped v * sines. Levels above go by pairs where there are two.
 */

#define LANE_LEVELS (LANES == 16 ? 4 : LANES == 8 ? 3 : LANES == 4 ? 2 : 1)

/* Rows that go through the levels together: v and, backward, their gradients g. The first pass reads
 * them from elsewhere. */
typedef struct {
  T *v, *g;
  const T *from_v, *from_g;
  const T *cosines, *sines; /* (levels, size / 2) */
  const T *lanes;           /* (LANE_LEVELS, 2, size): cosines with signs, sines */
  T *sums, *lane_sums;      /* gradients of angles: (levels, size / 2), (LANE_LEVELS, size) */
  int64_t rows, size;
} NAME(rows_of_levels);

#define REFLECT(v, i, j, c, s)                      \
  {                                                 \
    const V first = FMA(s, v[j], c * v[i]);         \
    v[j] = FMA(s, v[i], -(c * v[j]));               \
    v[i] = first;                                   \
  }
#define REFLECT_PAIR(k, i, j)                                     \
  {                                                               \
    if (backward) {                                               \
      d[k] = FMA(-g[i], v[j], FMA(g[j], v[i], d[k]));             \
      REFLECT(g, i, j, c[k], s[k])                                \
    }                                                             \
    REFLECT(v, i, j, c[k], s[k])                                  \
  }

/* Levels l and, with radix 4, l + 1; the other way round if `reverse`. */
INLINE void NAME(reflect_pass)(NAME(rows_of_levels) * t, int l, const int radix, const int reverse,
                               const int backward) {
  const int64_t h = (int64_t)1 << l, half = t->size / 2;
  const T *cosines = t->cosines + l * half, *sines = t->sines + l * half;
  for (int64_t group = 0; group < t->size; group += radix * h)
    for (int64_t i = group; i < group + h; i += LANES) {
      /* pairs (0, 1), (2, 3) of level l and (0, 2), (1, 3) of level l + 1 */
      const int64_t at = group / 2 + (i - group);
      const int64_t places[4] = {at, at + h, half + at, half + at + h};
      const int num = radix == 4 ? 4 : 1;
      V c[4], s[4], d[4] = {{0}};
      for (int k = 0; k < num; ++k) c[k] = LOAD(cosines + places[k]), s[k] = LOAD(sines + places[k]);
      for (int64_t row = 0; row < t->rows; ++row) {
        const int64_t place = row * t->size + i;
        V v[4], g[4];
        for (int k = 0; k < radix; ++k) v[k] = LOAD(t->from_v + place + k * h);
        if (backward)
          for (int k = 0; k < radix; ++k) g[k] = LOAD(t->from_g + place + k * h);
        if (radix == 4 && reverse) {
          REFLECT_PAIR(2, 0, 2) REFLECT_PAIR(3, 1, 3)
        }
        REFLECT_PAIR(0, 0, 1)
        if (radix == 4) REFLECT_PAIR(1, 2, 3)
        if (radix == 4 && !reverse) {
          REFLECT_PAIR(2, 0, 2) REFLECT_PAIR(3, 1, 3)
        }
        for (int k = 0; k < radix; ++k) STORE(t->v + place + k * h, v[k]);
        if (backward)
          for (int k = 0; k < radix; ++k) STORE(t->g + place + k * h, g[k]);
      }
      if (backward)
        for (int k = 0; k < num; ++k) {
          T *const sum = t->sums + l * half + places[k];
          STORE(sum, LOAD(sum) + d[k]);
        }
    }
  t->from_v = t->v, t->from_g = t->g;
}

#define LANE_REFLECT(k, SWAP)                             \
  if (k < LANE_LEVELS) {                                  \
    if (backward) {                                       \
      d[k] = FMA(SWAP(g), v, d[k]);                       \
      g = FMA(SWAP(g), s[k], g * c[k]);                   \
    }                                                     \
    v = FMA(SWAP(v), s[k], v * c[k]);                     \
  }

/* The levels inside a vector. The sum of lane i is grad[partner] * v, of which a pair has two. */
INLINE void NAME(reflect_lanes)(NAME(rows_of_levels) * t, const int reverse, const int backward) {
  for (int64_t i = 0; i < t->size; i += LANES) {
    V c[4], s[4], d[4] = {{0}};
    for (int k = 0; k < LANE_LEVELS; ++k)
      c[k] = LOAD(t->lanes + 2 * k * t->size + i), s[k] = LOAD(t->lanes + (2 * k + 1) * t->size + i);
    for (int64_t row = 0; row < t->rows; ++row) {
      const int64_t place = row * t->size + i;
      V v = LOAD(t->from_v + place), g = backward ? LOAD(t->from_g + place) : v;
      if (reverse) {
        LANE_REFLECT(3, SWAP_8) LANE_REFLECT(2, SWAP_4) LANE_REFLECT(1, SWAP_2) LANE_REFLECT(0, SWAP_1)
      } else {
        LANE_REFLECT(0, SWAP_1) LANE_REFLECT(1, SWAP_2) LANE_REFLECT(2, SWAP_4) LANE_REFLECT(3, SWAP_8)
      }
      STORE(t->v + place, v);
      if (backward) STORE(t->g + place, g);
    }
    if (backward)
      for (int k = 0; k < LANE_LEVELS; ++k) {
        T *const sum = t->lane_sums + k * t->size + i;
        STORE(sum, LOAD(sum) + d[k]);
      }
  }
  t->from_v = t->v, t->from_g = t->g;
}

/* All levels, upwards or (reverse) downwards; an odd one among the high levels is the first of them. */
INLINE void NAME(reflect)(NAME(rows_of_levels) * t, const int reverse, const int backward) {
  const int levels = __builtin_ctzll((unsigned long long)t->size), odd = (levels - LANE_LEVELS) & 1;
  if (!reverse) {
    NAME(reflect_lanes)(t, 0, backward);
    if (odd) NAME(reflect_pass)(t, LANE_LEVELS, 2, 0, backward);
    for (int l = LANE_LEVELS + odd; l < levels; l += 2) NAME(reflect_pass)(t, l, 4, 0, backward);
  } else {
    for (int l = levels - 2; l >= LANE_LEVELS + odd; l -= 2) NAME(reflect_pass)(t, l, 4, 1, backward);
    if (odd) NAME(reflect_pass)(t, LANE_LEVELS, 2, 1, backward);
    NAME(reflect_lanes)(t, 1, backward);
  }
}

/* Spread the coefficients of the levels inside a vector over the lanes. */
static void NAME(spread_lanes)(const void *cosines, const void *sines, int64_t size, void *to) {
  for (int k = 0; k < LANE_LEVELS; ++k) {
    const T *c = (const T *)cosines + k * size / 2, *s = (const T *)sines + k * size / 2;
    T *lanes = (T *)to + 2 * k * size;
    const int64_t h = (int64_t)1 << k;
    for (int64_t i = 0; i < size; i += 2 * h)
      for (int64_t j = i; j < i + h; ++j, ++c, ++s)
        lanes[j] = *c, lanes[j + h] = -*c, lanes[size + j] = lanes[size + j + h] = *s;
  }
}

/* Rows whose `arrays` fit half of the first-level cache, but two at least; backward (two arrays) four,
 * for there are sums to be read and written beside the coefficients. */
INLINE int64_t NAME(group_rows)(int64_t size, int arrays) {
  const int64_t fit = (int64_t)LEAF / (2 * arrays * size), least = 2 * arrays;
  return fit > 8 ? 8 : fit < least ? least : fit;
}

/* A task: rows [begin, end) of one replica. */
INLINE NAME(rows_of_levels) NAME(open_levels)(const Levels *a, int64_t index, int64_t *begin, int64_t *end) {
  const int64_t replica = index / a->chunks, half = a->size / 2 * a->levels;
  NAME(rows_of_levels) t = {.size = a->size};
  t.cosines = (const T *)a->cosines + replica * half, t.sines = (const T *)a->sines + replica * half;
  t.lanes = (const T *)a->lanes + replica * 2 * LANE_LEVELS * a->size;
  const int64_t first = index % a->chunks * a->chunk_rows, last = first + a->chunk_rows;
  *begin = replica * a->rows + first;
  *end = replica * a->rows + (last < a->rows ? last : a->rows);
  return t;
}

static void NAME(levels_task)(const Levels *a, int64_t index, void *scratch) {
  int64_t begin, end;
  NAME(rows_of_levels) t = NAME(open_levels)(a, index, &begin, &end);
  const int64_t most = NAME(group_rows)(a->size, 1);
  (void)scratch;
  for (int64_t n = begin; n < end; n += t.rows) {
    t.rows = end - n < most ? end - n : most;
    t.v = (T *)a->y + n * a->size, t.from_v = (const T *)a->x + n * a->size;
    if (a->reverse)
      NAME(reflect)(&t, 1, 0);
    else
      NAME(reflect)(&t, 0, 0);
  }
}

/* The outputs y go back to inputs in scratch, the gradient x to that of the input in grad_x. */
static void NAME(levels_backward_task)(const Levels *a, int64_t index, void *scratch) {
  int64_t begin, end;
  NAME(rows_of_levels) t = NAME(open_levels)(a, index, &begin, &end);
  const int64_t most = NAME(group_rows)(a->size, 2), half = a->size / 2;
  t.v = scratch, t.lane_sums = t.v + most * a->size;
  t.sums = (T *)a->partials + index * a->levels * half;
  memset(t.lane_sums, 0, (size_t)(LANE_LEVELS * a->size) * sizeof(T));
  memset(t.sums, 0, (size_t)(a->levels * half) * sizeof(T));
  for (int64_t n = begin; n < end; n += t.rows) {
    t.rows = end - n < most ? end - n : most;
    t.g = (T *)a->grad_x + n * a->size;
    t.from_v = (const T *)a->y + n * a->size, t.from_g = (const T *)a->x + n * a->size;
    if (a->reverse)
      NAME(reflect)(&t, 0, 1);
    else
      NAME(reflect)(&t, 1, 1);
  }
  for (int k = 0; k < LANE_LEVELS; ++k) {
    const T *lanes = t.lane_sums + k * a->size;
    T *sum = t.sums + k * half;
    const int64_t h = (int64_t)1 << k;
    for (int64_t i = 0; i < a->size; i += 2 * h)
      for (int64_t j = i; j < i + h; ++j) *sum++ = lanes[j] - lanes[j + h];
  }
}

static size_t NAME(levels_scratch)(const Levels *a, int backward) {
  return backward ? (size_t)((NAME(group_rows)(a->size, 2) + LANE_LEVELS) * a->size) : 0;
}
