/* Rows of a structured product by chunks: the unit of work a thread takes.
 *
 * Chunks are fixed by the shapes alone and every sum over rows is first a sum inside a chunk, then
 * a pairwise sum of chunks, so that results do not depend on the number of threads and a float32
 * sum over many rows keeps its digits.
 */

typedef struct {
  T *work, *x, *y, *g, *sum_x, *eps, *scales; /* scratch rows, NULL where not needed */
  T *repeated_x, *repeated_grad;              /* vectors, with blocks shorter than one */
  const T *scale;                             /* of block 0; the next block is scale_k away */
  int64_t scale_k;
  int64_t r, s, problem, begin, end;
} NAME(task);

/* How many blocks, from the first, are one run: short ones that lie side by side and are whole in the
 * output, of those shorter than a vector as many as fill vectors. */
INLINE int64_t NAME(run_blocks)(const Product *a) {
  const int64_t size = a->size, in_vector = size < (int64_t)LANES ? (int64_t)LANES / size : 1;
  const int apart = a->s1_k != size || a->s2_k != size || a->g_k != size || a->y_k != size;
  if (size > (int64_t)BLOCK || order_of((size_t)size) > 1 || apart) return 0;
  const int64_t whole = a->out_features / size;
  return (whole < a->blocks ? whole : a->blocks) / in_vector * in_vector;
}

/* Lay scratch rows out from `memory` on; returns how many entries they take. A long row wants as
 * little as possible: memory that is mapped afresh at every call costs more than the arithmetic. */
static size_t NAME(lay_out)(const Product *a, T *memory, NAME(task) * t) {
  const size_t size = (size_t)a->size, width = size * (size_t)a->blocks;
  const int padded = a->in_features < a->size, trimmed = a->out_features % a->size != 0;
  const size_t run = (size_t)NAME(run_blocks)(a) * size, vector = run && size < LANES ? LANES : 0;
  T **const rows[] = {&t->work, &t->x,      &t->y,          &t->g,            &t->sum_x,
                      &t->eps,  &t->scales, &t->repeated_x, &t->repeated_grad};
  const size_t wanted[] = {2 * size,
                           padded ? size : 0,
                           trimmed ? size : 0,
                           a->scale ? (run > size ? run : size) : 0,
                           padded || !a->grad_x ? size : 0,
                           a->scale && !a->eps ? width : 0,
                           a->log_scale ? width : 0,
                           vector,
                           vector};
  size_t used = 0;
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; used += wanted[i++])
    *rows[i] = memory && wanted[i] ? memory + used : NULL;
  return used;
}

/* Entries to allocate for one task. */
static size_t NAME(scratch_entries)(const Product *a) {
  NAME(task) t;
  return NAME(lay_out)(a, NULL, &t);
}

static NAME(task) NAME(open_task)(const Product *a, int64_t index, T *memory) {
  const int64_t size = a->size, chunk = index % a->chunks;
  NAME(task) t;
  NAME(lay_out)(a, memory, &t);
  t.problem = index / a->chunks;
  t.r = t.problem / a->draws, t.s = t.problem % a->draws;
  t.begin = chunk * a->chunk_rows;
  t.end = t.begin + a->chunk_rows < a->rows ? t.begin + a->chunk_rows : a->rows;
  t.scale = a->scale ? (const T *)a->scale + t.r * a->g_r + t.s * a->g_s : NULL;
  t.scale_k = a->g_k;
  if (a->log_scale) {
    for (int64_t k = 0; k < a->blocks; ++k)
      NAME(exponentials)(t.scale + k * a->g_k, size, t.scales + k * size);
    t.scale = t.scales, t.scale_k = size;
  }
  /* the padding of inputs and of gradients */
  if (a->in_features < size) memset(t.x, 0, (size_t)size * sizeof(T));
  if (a->out_features % size) memset(t.y, 0, (size_t)size * sizeof(T));
  return t;
}

/* Row n of x, padded with zeros to the block size. */
INLINE const T *NAME(input_row)(const Product *a, const NAME(task) * t, int64_t n) {
  const T *x = (const T *)a->x + t->r * a->x_r + t->s * a->x_s + n * a->x_n;
  if (a->in_features == a->size) return x;
  memcpy(t->x, x, (size_t)a->in_features * sizeof(T));
  return t->x;
}

/* Entries of block k that exist in the output. */
INLINE int64_t NAME(width)(const Product *a, int64_t k) {
  const int64_t left = a->out_features - k * a->size;
  return left < a->size ? left : a->size;
}

INLINE T *NAME(output)(const Product *a, const NAME(task) * t, int64_t n, int64_t k) {
  return (T *)a->y + t->r * a->y_r + t->s * a->y_s + n * a->y_n + k * a->y_k;
}

/* eps of rows [begin, end) of a problem: where they are kept, or row by row in scratch. */
INLINE T *NAME(noise_of_row)(const Product *a, const NAME(task) * t, int64_t n) {
  const int64_t width = a->blocks * a->size, first = (t->problem * a->rows + n) * width;
  if (a->eps) return (T *)a->eps + first;
  NORMALS(a->seed, (uint64_t)first, (size_t)width, t->eps);
  return t->eps;
}

/* g of row n and `count` entries from block k on. */
INLINE const T *NAME(gain)(const Product *a, const NAME(task) * t, int64_t n, int64_t k,
                           int64_t count, const T *eps) {
  const int64_t at = t->r * a->g_r + t->s * a->g_s + n * a->g_n + k * a->g_k;
  const T *mean = (const T *)a->g + at;
  if (!a->scale) return mean;
  const T *scale = t->scale + k * t->scale_k;
  const T *noise = eps + k * a->size;
  for (int64_t i = 0; i < count; ++i) t->g[i] = mean[i] + scale[i] * noise[i];
  return t->g;
}

INLINE NAME(operands) NAME(operands_of)(const Product *a, const NAME(task) * t, int64_t k, const T *x,
                                        const T *g) {
  NAME(operands) p;
  p.x = x, p.g = g, p.bias = NULL;
  p.s1 = (const T *)a->s1 + t->r * a->s1_r + t->s * a->s1_s + k * a->s1_k;
  p.s2 = (const T *)a->s2 + t->r * a->s2_r + t->s * a->s2_s + k * a->s2_k;
  return p;
}

/* What the blocks of a run share: x, or x once for every block of a vector. */
INLINE const T *NAME(shared_input)(const Product *a, const NAME(task) * t, const T *x) {
  if (!t->repeated_x) return x;
  for (int64_t i = 0; i < (int64_t)LANES; ++i) t->repeated_x[i] = x[i & (a->size - 1)];
  return t->repeated_x;
}

/* The sum over the blocks of a vector. */
INLINE void NAME(fold)(const Product *a, const T *vector, T *x) {
  for (int64_t i = 0; i < a->size; ++i) {
    x[i] = vector[i];
    for (int64_t j = i + a->size; j < (int64_t)LANES; j += a->size) x[i] += vector[j];
  }
}

static void NAME(forward_task)(const Product *a, int64_t index, void *memory) {
  NAME(task) t = NAME(open_task)(a, index, memory);
  const T norm = (T)(1.0 / (double)a->size);
  const int64_t run = NAME(run_blocks)(a);
  const NAME(short_product) *short_blocks = run ? NAME(short_product_of)((size_t)a->size) : NULL;
  if (a->scale && a->eps) {
    const int64_t width = a->blocks * a->size, first = (t.problem * a->rows + t.begin) * width;
    NORMALS(a->seed, (uint64_t)first, (size_t)((t.end - t.begin) * width), (T *)a->eps + first);
  }
  for (int64_t n = t.begin; n < t.end; ++n) {
    const T *x = NAME(input_row)(a, &t, n);
    const T *eps = a->scale ? NAME(noise_of_row)(a, &t, n) : NULL;
    if (run) {
      const T *g = NAME(gain)(a, &t, n, 0, run * a->size, eps);
      NAME(operands) p = NAME(operands_of)(a, &t, 0, NAME(shared_input)(a, &t, x), g);
      p.bias = a->bias ? (const T *)a->bias + t.r * a->bias_r : NULL;
      short_blocks->forward(&p, (size_t)(run * a->size), norm, NAME(output)(a, &t, n, 0));
    }
    for (int64_t k = run; k < a->blocks; ++k) {
      const int64_t width = NAME(width)(a, k);
      const T *bias = a->bias ? (const T *)a->bias + t.r * a->bias_r + k * a->size : NULL;
      NAME(operands) p = NAME(operands_of)(a, &t, k, x, NAME(gain)(a, &t, n, k, a->size, eps));
      T *y = NAME(output)(a, &t, n, k);
      if (width == a->size) {
        p.bias = bias;
        NAME(row_forward)(&p, (size_t)a->size, norm, t.work, y);
      } else {
        NAME(row_forward)(&p, (size_t)a->size, norm, t.work, t.y);
        for (int64_t i = 0; i < width; ++i) y[i] = bias ? t.y[i] + bias[i] : t.y[i];
      }
    }
  }
}

/* Where this task adds up gradient `kind` of block k: the gradient itself if the problem is one
 * chunk, else a partial sum of its own. */
INLINE T *NAME(sum_of)(const Product *a, int64_t index, int kind, int64_t k) {
  if (a->direct[kind]) return (T *)a->direct[kind] + (index * a->blocks + k) * a->size;
  return (T *)a->partials + ((index * NUM_SUMS + kind) * a->blocks + k) * a->size;
}

/* Where the gradients of row n and block k go. */
INLINE NAME(gradients) NAME(gradients_of)(const Product *a, const NAME(task) * t, int64_t index,
                                         int64_t n, int64_t k, const T *eps) {
  const int64_t row = t->problem * a->rows + n;
  const int whole = a->grad_x && a->in_features == a->size;
  NAME(gradients) q;
  q.s1 = NAME(sum_of)(a, index, INTO_S1, k), q.s2 = NAME(sum_of)(a, index, INTO_S2, k);
  q.g_row = a->g_n ? (T *)a->grad_g + (row * a->blocks + k) * a->size : NULL;
  q.g_sum = a->g_n ? NULL : NAME(sum_of)(a, index, INTO_G, k);
  q.scale = a->scale ? NAME(sum_of)(a, index, INTO_SCALE, k) : NULL;
  q.bias = a->grad_bias ? NAME(sum_of)(a, index, INTO_BIAS, k) : NULL;
  q.eps = eps ? eps + k * a->size : NULL;
  q.x = whole ? (T *)a->grad_x + row * a->size : t->sum_x;
  q.add_x = k > 0;
  return q;
}

static void NAME(backward_task)(const Product *a, int64_t index, void *memory) {
  NAME(task) t = NAME(open_task)(a, index, memory);
  const T norm = (T)(1.0 / (double)a->size);
  const int64_t size = a->size, in = a->in_features, run = NAME(run_blocks)(a);
  const NAME(short_product) *short_blocks = run ? NAME(short_product_of)((size_t)size) : NULL;
  for (int kind = 0; kind < NUM_SUMS; ++kind)
    if (a->wanted[kind])
      memset(NAME(sum_of)(a, index, kind, 0), 0, (size_t)(a->blocks * size) * sizeof(T));
  for (int64_t n = t.begin; n < t.end; ++n) {
    const T *x = NAME(input_row)(a, &t, n);
    const T *eps = a->scale ? NAME(noise_of_row)(a, &t, n) : NULL;
    if (run) {
      const T *g = NAME(gain)(a, &t, n, 0, run * size, eps);
      const NAME(operands) p = NAME(operands_of)(a, &t, 0, NAME(shared_input)(a, &t, x), g);
      NAME(gradients) q = NAME(gradients_of)(a, &t, index, n, 0, eps);
      T *const into_x = q.x;
      if (t.repeated_grad) q.x = t.repeated_grad;
      short_blocks->backward(&p, (size_t)(run * size), norm, NAME(output)(a, &t, n, 0), &q);
      if (t.repeated_grad) NAME(fold)(a, t.repeated_grad, into_x);
    }
    for (int64_t k = run; k < a->blocks; ++k) {
      const int64_t width = NAME(width)(a, k);
      const NAME(operands) p =
          NAME(operands_of)(a, &t, k, x, NAME(gain)(a, &t, n, k, a->size, eps));
      const NAME(gradients) q = NAME(gradients_of)(a, &t, index, n, k, eps);
      const T *grad = NAME(output)(a, &t, n, k);
      if (width < size) grad = memcpy(t.y, grad, (size_t)width * sizeof(T));
      NAME(row_backward)(&p, (size_t)size, norm, t.work, grad, &q);
    }
    if (a->grad_x && in < size)
      memcpy((T *)a->grad_x + (t.problem * a->rows + n) * in, t.sum_x, (size_t)in * sizeof(T));
  }
}

/* Pairwise sum of the chunks of one problem, then out to the gradients. */
static void NAME(reduce_task)(const Product *a, int64_t problem, void *memory) {
  const int64_t length = a->blocks * a->size, first = problem * a->chunks;
  for (int kind = 0; kind < NUM_SUMS; ++kind) {
    if (!a->wanted[kind] || a->direct[kind]) continue;
    for (int64_t step = 1; step < a->chunks; step *= 2)
      for (int64_t i = 0; i + step < a->chunks; i += 2 * step) {
        T *into = NAME(sum_of)(a, first + i, kind, 0);
        const T *from = NAME(sum_of)(a, first + i + step, kind, 0);
        for (int64_t j = 0; j < length; ++j) into[j] += from[j];
      }
    const int64_t width = kind == INTO_BIAS ? a->out_features : length;
    memcpy((T *)a->wanted[kind] + problem * width, NAME(sum_of)(a, first, kind, 0),
           (size_t)width * sizeof(T));
  }
  if (a->log_scale) { /* d scale / d log scale = scale */
    const T *log_scale = (const T *)a->scale + problem / a->draws * a->g_r + problem % a->draws * a->g_s;
    T *grad = (T *)a->grad_scale + problem * length, *scale = memory;
    for (int64_t k = 0; k < a->blocks; ++k, grad += a->size) {
      NAME(exponentials)(log_scale + k * a->g_k, a->size, scale);
      for (int64_t i = 0; i < a->size; ++i) grad[i] *= scale[i];
    }
  }
}
