/* One output of many inputs, for one element type: y[n] = x[n] . vec(W), where the weights are the
 * first `in` entries of W[i][j] = s1[i] c[i ^ j] s2[j], row by row, and c = H g / sqrt(size).
 *
 * Weights are made a few rows of W at a time, in the first-level cache, and used for all rows of x
 * there: they are never written to memory. Since i ^ j runs through the vectors of c in some order
 * and through the lanes of each in another, a row of W is c with its vectors and lanes exchanged.
 */

INLINE V NAME(exchange)(V v, int64_t lanes) {
  if (lanes & 1) v = SWAP_1(v);
  if (lanes & 2) v = SWAP_2(v);
  if (lanes & 4) v = SWAP_4(v);
  if (lanes & 8) v = SWAP_8(v);
  return v;
}

/* A task: rows [begin, end) of one replica's W, in pieces. */
typedef struct {
  const T *x, *s1, *c, *s2;
  int64_t replica, begin, end, piece_rows;
} NAME(column_task);

static NAME(column_task) NAME(open_column)(const Column *a, int64_t index) {
  NAME(column_task) t;
  const int64_t chunk = index % a->chunks;
  t.replica = index / a->chunks;
  t.x = (const T *)a->x + t.replica * a->rows * a->in_features;
  t.s1 = (const T *)a->s1 + t.replica * a->size;
  t.c = (const T *)a->c + t.replica * a->size;
  t.s2 = (const T *)a->s2 + t.replica * a->size;
  t.begin = chunk * a->chunk_rows;
  t.end = (a->in_features + a->size - 1) / a->size;
  if (t.begin + a->chunk_rows < t.end) t.end = t.begin + a->chunk_rows;
  t.piece_rows = a->size < COLUMN_PIECE ? COLUMN_PIECE / a->size : 1;
  return t;
}

/* Rows i .. i + rows - 1 of W. */
static void NAME(column_weights)(const NAME(column_task) * t, int64_t size, int64_t i, int64_t rows,
                                 T *weights) {
  for (const int64_t end = i + rows; i < end; ++i, weights += size) {
    const int64_t vectors = i & -(int64_t)LANES, lanes = i & (LANES - 1);
    for (int64_t j = 0; j < size; j += LANES) {
      const V c = NAME(exchange)(LOAD(t->c + (j ^ vectors)), lanes);
      STORE(weights + j, c * t->s1[i] * LOAD(t->s2 + j));
    }
  }
}

/* y[r] += x[r] . weights of several rows at once: memory is read faster in several streams. */
#define STREAMS 8
INLINE void NAME(dots)(const T *x, int64_t stride, int rows, const T *weights, int64_t count, T *y) {
  V sums[STREAMS][2] = {{{0}}};
  T rest[STREAMS] = {0};
  int64_t i = 0;
  for (; i + 2 * (int64_t)LANES <= count; i += 2 * LANES)
    for (int k = 0; k < 2; ++k) {
      const V w = LOAD(weights + i + k * LANES);
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) sums[r][k] = FMA(LOAD(x + r * stride + i + k * LANES), w, sums[r][k]);
    }
  for (; i < count; ++i)
    for (int r = 0; r < rows; ++r) rest[r] += x[r * stride + i] * weights[i];
  for (int r = 0; r < rows; ++r) {
    const V total = sums[r][0] + sums[r][1];
    for (int lane = 0; lane < LANES; ++lane) rest[r] += total[lane];
    y[r] += rest[r];
  }
}

/* Partial sums of y over the inputs of a chunk. */
static void NAME(column_forward_task)(const Column *a, int64_t index, void *scratch) {
  const NAME(column_task) t = NAME(open_column)(a, index);
  T *weights = scratch, *y = (T *)a->partials + index * a->rows;
  memset(y, 0, (size_t)a->rows * sizeof(T));
  for (int64_t i = t.begin; i < t.end; i += t.piece_rows) {
    const int64_t rows = t.end - i < t.piece_rows ? t.end - i : t.piece_rows;
    const int64_t first = i * a->size, left = a->in_features - first;
    const int64_t count = left < rows * a->size ? left : rows * a->size;
    NAME(column_weights)(&t, a->size, i, rows, weights);
    int64_t n = 0;
    for (; n + STREAMS <= a->rows; n += STREAMS)
      NAME(dots)(t.x + n * a->in_features + first, a->in_features, STREAMS, weights, count, y + n);
    for (; n < a->rows; ++n)
      NAME(dots)(t.x + n * a->in_features + first, a->in_features, 1, weights, count, y + n);
  }
}

/* sums += sum_r factors[r] x[r] */
INLINE void NAME(add_rows)(const T *x, int64_t stride, int rows, const T *factors, int64_t count, T *sums) {
  int64_t i = 0;
  for (; i + (int64_t)LANES <= count; i += LANES) {
    V sum = LOAD(sums + i);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) sum = FMA(LOAD(x + r * stride + i), (V){0} + factors[r], sum);
    STORE(sums + i, sum);
  }
  for (; i < count; ++i)
    for (int r = 0; r < rows; ++r) sums[i] += factors[r] * x[r * stride + i];
}

/* The gradients of row i of W: s1[i] = sum_j w c s2, c[i ^ j] += w s1 s2, s2[j] += w s1 c. */
static void NAME(column_gradients)(const NAME(column_task) * t, int64_t size, int64_t i, const T *grad,
                                   T *into_s1, T *into_c, T *into_s2) {
  const int64_t vectors = i & -(int64_t)LANES, lanes = i & (LANES - 1);
  V sums = {0};
  for (int64_t j = 0; j < size; j += LANES) {
    const V w = LOAD(grad + j), c = NAME(exchange)(LOAD(t->c + (j ^ vectors)), lanes);
    const V through = w * LOAD(t->s2 + j);
    T *const place = into_c + (j ^ vectors);
    sums = FMA(through, c, sums);
    STORE(place, LOAD(place) + NAME(exchange)(through * t->s1[i], lanes));
    STORE(into_s2 + j, LOAD(into_s2 + j) + w * c * t->s1[i]);
  }
  T sum = 0;
  for (int lane = 0; lane < LANES; ++lane) sum += sums[lane];
  *into_s1 = sum;
}

/* The gradient of x if it is wanted, that of s1, and partial sums of those of c and s2. */
static void NAME(column_backward_task)(const Column *a, int64_t index, void *scratch) {
  const NAME(column_task) t = NAME(open_column)(a, index);
  T *weights = scratch, *into_c = (T *)a->partials + 2 * index * a->size;
  const T *grad_y = (const T *)a->y + t.replica * a->rows;
  memset(into_c, 0, 2 * (size_t)a->size * sizeof(T));
  for (int64_t i = t.begin; i < t.end; i += t.piece_rows) {
    const int64_t rows = t.end - i < t.piece_rows ? t.end - i : t.piece_rows;
    const int64_t first = i * a->size, left = a->in_features - first;
    const int64_t count = left < rows * a->size ? left : rows * a->size;
    if (a->grad_x) {
      NAME(column_weights)(&t, a->size, i, rows, weights);
      for (int64_t n = 0; n < a->rows; ++n) {
        T *grad_x = (T *)a->grad_x + (t.replica * a->rows + n) * a->in_features + first;
        for (int64_t k = 0; k < count; ++k) grad_x[k] = grad_y[n] * weights[k];
      }
    }
    memset(weights, 0, (size_t)(rows * a->size) * sizeof(T)); /* from here on their gradient */
    int64_t n = 0;
    for (; n + STREAMS <= a->rows; n += STREAMS)
      NAME(add_rows)(t.x + n * a->in_features + first, a->in_features, STREAMS, grad_y + n, count, weights);
    for (; n < a->rows; ++n)
      NAME(add_rows)(t.x + n * a->in_features + first, a->in_features, 1, grad_y + n, count, weights);
    for (int64_t r = 0; r < rows; ++r)
      NAME(column_gradients)(&t, a->size, i + r, weights + r * a->size,
                             (T *)a->grad_s1 + t.replica * a->size + i + r, into_c, into_c + a->size);
  }
}

/* out[replica] = the sum of `width` entries, `stride` apart, over the chunks of a replica. */
static void NAME(column_reduce)(const Column *a, int64_t offset, int64_t width, int64_t stride, void *to) {
  for (int64_t replica = 0; replica < a->replicas; ++replica) {
    const T *from = (const T *)a->partials + replica * a->chunks * stride + offset;
    T *out = (T *)to + replica * width;
    memcpy(out, from, (size_t)width * sizeof(T));
    for (int64_t chunk = 1; chunk < a->chunks; ++chunk)
      for (int64_t k = 0; k < width; ++k) out[k] += from[chunk * stride + k];
  }
}
