/* y = s1 * H(g * H(s2 * x)) / D for rows, and its gradients, for one instruction set and type.
 *
 * H is unnormalised here; the two factors D^-1/2 of the orthonormal transform are the one 1/D.
 * A row is worked on while it is in cache. Rows longer than a register block use that the levels
 * of H commute: low levels, then (top levels)(multiply by g)(top levels) in one pass, then low
 * levels again, so the middle costs one trip through memory. H_m of a row m 2^k is such a top.
 */

/* g of one row and block: a tensor's row, or mean + scale * eps written into a buffer. */
typedef struct {
  const T *x, *s1, *s2, *g, *bias; /* bias may be NULL */
} NAME(operands);

/* Where the gradients of one row and block go. Sums over rows are added to; g and x may be stored
 * instead. NULL: not wanted. */
typedef struct {
  T *s1, *s2;        /* added to */
  T *g_row, *g_sum;  /* stored, or added to: one of the two is set */
  T *scale, *bias;   /* added to */
  const T *eps;      /* the noise behind g, with `scale` */
  T *x;              /* stored, or added to with `add_x` */
  int add_x;
} NAME(gradients);

/* The pointers of p and q as variables of the function: a store may change what p and q point to,
 * for all the compiler knows, and would make it read them again and again. */
#define OPEN_OPERANDS(p)                                                                       \
  const T *const x = (p)->x, *const s1 = (p)->s1, *const s2 = (p)->s2, *const gain = (p)->g,   \
                 *const bias = (p)->bias;                                                      \
  (void)x, (void)s1, (void)s2, (void)gain, (void)bias;
#define OPEN_GRADIENTS(q)                                                                      \
  T *const into_s1 = (q)->s1, *const into_s2 = (q)->s2, *const g_row = (q)->g_row,             \
           *const g_sum = (q)->g_sum, *const into_scale = (q)->scale,                          \
           *const into_bias = (q)->bias, *const into_x = (q)->x;                               \
  const T *const eps = (q)->eps;                                                               \
  int add_x = (q)->add_x;                                                                      \
  (void)into_s1, (void)into_s2, (void)g_row, (void)g_sum, (void)into_scale, (void)into_bias;   \
  (void)into_x, (void)eps, (void)add_x;

#define ADD_TO(sum, at, v) STORE((sum) + (at), LOAD((sum) + (at)) + (v))

/* Steps for vector i of a run that begins at entry `at`, its vectors `stride` apart; of x, which
 * blocks share, at entry `input`. */
#define PLACE(i) (at + (i) * stride)
#define INPUT_PLACE(i) (input + (i) * stride)
#define GET_PRODUCT(i) r[i] = LOAD(left + PLACE(i)) * LOAD(right + PLACE(i));
#define TIMES_G(i) r[i] *= LOAD(gain + PLACE(i));
#define TIMES_S1(i) r[i] = r[i] * norm * LOAD(s1 + PLACE(i));
#define PLUS_BIAS(i) r[i] += LOAD(bias + PLACE(i));
#define PUT_Y(i) STORE(y + PLACE(i), r[i]);
#define KEEP_U(i) u[i] = r[i];
#define KEEP_V(i) v[i] = r[i];
#define T_OF_U(i) r[i] = u[i] * LOAD(gain + PLACE(i));
#define W_OF_V(i) r[i] = v[i] * LOAD(gain + PLACE(i));
#define PUT_G(i) STORE(g_row + PLACE(i), d[i]);
#define ADD_G(i) ADD_TO(g_sum, PLACE(i), d[i]);
#define ADD_SCALE(i) ADD_TO(into_scale, PLACE(i), d[i] * LOAD(eps + PLACE(i)));
#define ADD_S1(i) ADD_TO(into_s1, PLACE(i), LOAD(grad + PLACE(i)) * (r[i] * norm));
#define ADD_BIAS(i) ADD_TO(into_bias, PLACE(i), LOAD(grad + PLACE(i)));
#define TIMES_NORM(i) r[i] *= norm;
#define ADD_S2(i) ADD_TO(into_s2, PLACE(i), r[i] * LOAD(x + INPUT_PLACE(i)));
#define ADD_X(i) ADD_TO(into_x, INPUT_PLACE(i), r[i] * LOAD(s2 + PLACE(i)));
#define PUT_X(i) STORE(into_x + INPUT_PLACE(i), r[i] * LOAD(s2 + PLACE(i)));

/* y = s1 * r * norm + bias */
#define TAKE_Y(EACH)               \
  EACH(TIMES_S1)                   \
  if (bias) {                      \
    EACH(PLUS_BIAS)                \
  }                                \
  EACH(PUT_Y)
/* The gradient d of g, and of the scale that multiplies eps in it */
#define TAKE_GRAD_G(EACH)          \
  if (g_row) {                     \
    EACH(PUT_G)                    \
  } else {                         \
    EACH(ADD_G)                    \
  }                                \
  if (into_scale) {                \
    EACH(ADD_SCALE)                \
  }
/* From t = r * norm: s1 += grad * t, bias += grad */
#define TAKE_GRAD_S1(EACH)         \
  EACH(ADD_S1)                     \
  if (into_bias) {                 \
    EACH(ADD_BIAS)                 \
  }
/* From w = r * norm: s2 += w * x, x = w * s2 */
#define TAKE_GRAD_X(EACH)          \
  EACH(TIMES_NORM)                 \
  EACH(ADD_S2)                     \
  if (add_x) {                     \
    EACH(ADD_X)                    \
  } else {                         \
    EACH(PUT_X)                    \
  }

/* ---- rows of one register run: nothing leaves the registers ------------------------------- */

#define GET_X(i) r[i] = LOAD(x + INPUT_PLACE(i)) * LOAD(s2 + PLACE(i));
#define GET_GRAD(i) r[i] = LOAD(grad + PLACE(i)) * LOAD(s1 + PLACE(i));
#define GRAD_OF_G(i) d[i] = u[i] * v[i] * norm;

/* Blocks side by side, `entries` in all, that share x. LEVELS runs the levels of H on r. */
#define DEFINE_SHORT_PRODUCT(n, name, LEVELS)                                                   \
  static void NAME(name##_forward)(const NAME(operands) * p, size_t entries, T norm, T *y) {    \
    const size_t input = 0, stride = LANES;                                                     \
    OPEN_OPERANDS(p)                                                                            \
    for (size_t at = 0; at < entries; at += n * LANES) {                                        \
      V r[n];                                                                                   \
      EACH_##n(GET_X) LEVELS(r);                                                                \
      EACH_##n(TIMES_G) LEVELS(r);                                                              \
      TAKE_Y(EACH_##n)                                                                          \
    }                                                                                           \
  }                                                                                             \
  static void NAME(name##_backward)(const NAME(operands) * p, size_t entries, T norm,           \
                                    const T *grad, const NAME(gradients) * q) {                 \
    const size_t input = 0, stride = LANES;                                                     \
    OPEN_OPERANDS(p)                                                                            \
    OPEN_GRADIENTS(q)                                                                           \
    for (size_t at = 0; at < entries; at += n * LANES, add_x = 1) {                             \
      V r[n], u[n], v[n], d[n];                                                                 \
      EACH_##n(GET_X) LEVELS(r);                                                                \
      EACH_##n(KEEP_U) EACH_##n(GET_GRAD) LEVELS(r);                                            \
      EACH_##n(KEEP_V) EACH_##n(GRAD_OF_G) TAKE_GRAD_G(EACH_##n)                                \
      EACH_##n(T_OF_U) LEVELS(r);                                                               \
      TAKE_GRAD_S1(EACH_##n)                                                                    \
      EACH_##n(W_OF_V) LEVELS(r);                                                               \
      TAKE_GRAD_X(EACH_##n)                                                                     \
    }                                                                                           \
  }
DEFINE_SHORT_PRODUCT(1, short_1, NAME(in_registers_1))
DEFINE_SHORT_PRODUCT(2, short_2, NAME(in_registers_2))
DEFINE_SHORT_PRODUCT(4, short_4, NAME(in_registers_4))
DEFINE_SHORT_PRODUCT(8, short_8, NAME(in_registers_8))
#if NREG == 16
DEFINE_SHORT_PRODUCT(16, short_16, NAME(in_registers_16))
#endif

/* Blocks of 1, 2, 4 or 8 entries, so many that they fill a vector: the entries of x are repeated
 * for every block, and its gradients come one for every repetition. */
DEFINE_SHORT_PRODUCT(1, packed_1, LEVELS_BELOW_1)
DEFINE_SHORT_PRODUCT(1, packed_2, LEVELS_BELOW_2)
DEFINE_SHORT_PRODUCT(1, packed_4, LEVELS_BELOW_4)
DEFINE_SHORT_PRODUCT(1, packed_8, LEVELS_BELOW_8)

typedef struct {
  void (*forward)(const NAME(operands) *, size_t, T, T *);
  void (*backward)(const NAME(operands) *, size_t, T, const T *, const NAME(gradients) *);
} NAME(short_product);
#define SHORT_PRODUCT(name) {NAME(name##_forward), NAME(name##_backward)}
static const NAME(short_product) NAME(short_products)[] = {
    SHORT_PRODUCT(short_1), SHORT_PRODUCT(short_2), SHORT_PRODUCT(short_4), SHORT_PRODUCT(short_8),
#if NREG == 16
    SHORT_PRODUCT(short_16),
#endif
};
static const NAME(short_product) NAME(packed_products)[] = {
    SHORT_PRODUCT(packed_1), SHORT_PRODUCT(packed_2), SHORT_PRODUCT(packed_4), SHORT_PRODUCT(packed_8),
};

/* Of blocks of a power of two, up to BLOCK */
INLINE const NAME(short_product) * NAME(short_product_of)(size_t size) {
  return size < LANES ? &NAME(packed_products)[__builtin_ctzll(size)]
                      : &NAME(short_products)[__builtin_ctzll(size / LANES)];
}

/* ---- longer rows in pieces of a register run   -------------------------------------------- */

/* The low levels of a row, n vectors at a time, with what comes before and after them:
 *   low_in      work = low levels of (left * right)
 *   low_out     y = s1 * (low levels of work) * norm + bias
 *   low_out_s1  from t = low levels of work * norm: s1 += grad * t
 *   low_out_x   from w = low levels of work * norm: s2 += w * x, x = w * s2 */
#define DEFINE_LOW(n)                                                                           \
  static void NAME(low_in_##n)(const T *left, const T *right, T *work, size_t size) {           \
    const size_t stride = LANES;                                                                \
    for (size_t at = 0; at < size; at += n * LANES) {                                           \
      T *dst = work + at;                                                                       \
      V r[n];                                                                                   \
      EACH_##n(GET_PRODUCT) NAME(in_registers_##n)(r);                                          \
      EACH_##n(PUT)                                                                             \
    }                                                                                           \
  }                                                                                             \
  static void NAME(low_out_##n)(const NAME(operands) * p, const T *work, size_t size, T norm,   \
                                T *y) {                                                         \
    const size_t stride = LANES;                                                                \
    OPEN_OPERANDS(p)                                                                            \
    for (size_t at = 0; at < size; at += n * LANES) {                                           \
      const T *src = work + at;                                                                 \
      V r[n];                                                                                   \
      EACH_##n(GET) NAME(in_registers_##n)(r);                                                  \
      TAKE_Y(EACH_##n)                                                                          \
    }                                                                                           \
  }                                                                                             \
  static void NAME(low_out_s1_##n)(const T *work, const T *grad, size_t size, T norm,           \
                                   const NAME(gradients) * q) {                                 \
    const size_t stride = LANES;                                                                \
    OPEN_GRADIENTS(q)                                                                           \
    for (size_t at = 0; at < size; at += n * LANES) {                                           \
      const T *src = work + at;                                                                 \
      V r[n];                                                                                   \
      EACH_##n(GET) NAME(in_registers_##n)(r);                                                  \
      TAKE_GRAD_S1(EACH_##n)                                                                    \
    }                                                                                           \
  }                                                                                             \
  static void NAME(low_out_x_##n)(const NAME(operands) * p, const T *work, size_t size, T norm, \
                                  const NAME(gradients) * q) {                                  \
    const size_t stride = LANES;                                                                \
    OPEN_OPERANDS(p)                                                                            \
    OPEN_GRADIENTS(q)                                                                           \
    for (size_t at = 0; at < size; at += n * LANES) {                                           \
      const size_t input = at;                                                                  \
      const T *src = work + at;                                                                 \
      V r[n];                                                                                   \
      EACH_##n(GET) NAME(in_registers_##n)(r);                                                  \
      TAKE_GRAD_X(EACH_##n)                                                                     \
    }                                                                                           \
  }
DEFINE_LOW(1)
DEFINE_LOW(2)
DEFINE_LOW(4)
DEFINE_LOW(8)
#if NREG == 16
DEFINE_LOW(16)
#endif

/* The four of them for runs of 1, 2, 4, ... vectors. */
typedef struct {
  void (*in)(const T *, const T *, T *, size_t);
  void (*out)(const NAME(operands) *, const T *, size_t, T, T *);
  void (*out_s1)(const T *, const T *, size_t, T, const NAME(gradients) *);
  void (*out_x)(const NAME(operands) *, const T *, size_t, T, const NAME(gradients) *);
} NAME(low_passes);
#define LOW_PASSES(n) \
  {NAME(low_in_##n), NAME(low_out_##n), NAME(low_out_s1_##n), NAME(low_out_x_##n)}
static const NAME(low_passes) NAME(low)[] = {
    LOW_PASSES(1), LOW_PASSES(2), LOW_PASSES(4), LOW_PASSES(8),
#if NREG == 16
    LOW_PASSES(16),
#endif
};

/* A row m 2^k has runs of 2^k entries, or of a register block if they are longer. */
INLINE const NAME(low_passes) * NAME(low_of)(size_t size) {
  const size_t part = size / order_of(size);
  return &NAME(low)[__builtin_ctzll((part < BLOCK ? part : BLOCK) / LANES)];
}

#define GRAD_OF_GAIN(i) d[i] = u[i] * r[i] * norm;

/* The levels from size / n up */
#define TOP_2 PAIRS_2(SPREAD_PAIR)
#define TOP_4 PAIRS_4(SPREAD_PAIR)
#define TOP_8 PAIRS_8(SPREAD_PAIR)

/* work = top(g * top(work)) */
#define DEFINE_TOP_FORWARD(n)                                                                \
  static void NAME(top_forward_##n)(T * work, const T *gain, size_t size) {                  \
    const size_t stride = size / n;                                                          \
    for (size_t at = 0; at < stride; at += LANES) {                                          \
      const T *src = work + at;                                                              \
      T *dst = work + at;                                                                    \
      V r[n];                                                                                \
      EACH_##n(GET) TOP_##n EACH_##n(TIMES_G) TOP_##n                                        \
      EACH_##n(PUT)                                                                          \
    }                                                                                        \
  }
#define DEFINE_TOP_BACKWARD(n)                                                               \
  /* u = top(work_u), v = top(work_v); grad_g = u v norm; work = top(g u), top(g v) */       \
  static void NAME(top_backward_##n)(T * work_u, T * work_v, const T *gain, size_t size,     \
                                     T norm, const NAME(gradients) * q) {                    \
    const size_t stride = size / n;                                                          \
    OPEN_GRADIENTS(q)                                                                        \
    for (size_t at = 0; at < stride; at += LANES) {                                          \
      V r[n], u[n], d[n];                                                                    \
      const T *src = work_u + at;                                                            \
      T *dst = work_u + at;                                                                  \
      EACH_##n(GET) TOP_##n EACH_##n(KEEP_U) EACH_##n(TIMES_G) TOP_##n EACH_##n(PUT)         \
      src = work_v + at;                                                                     \
      dst = work_v + at;                                                                     \
      EACH_##n(GET) TOP_##n EACH_##n(GRAD_OF_GAIN) TAKE_GRAD_G(EACH_##n)                     \
      EACH_##n(TIMES_G) TOP_##n EACH_##n(PUT)                                                \
    }                                                                                        \
  }
DEFINE_TOP_FORWARD(2)
DEFINE_TOP_FORWARD(4)
DEFINE_TOP_FORWARD(8)
DEFINE_TOP_BACKWARD(2)
DEFINE_TOP_BACKWARD(4)
DEFINE_TOP_BACKWARD(8)

/* The same where the top is H_n; what it takes and gives lies in a buffer. */
#define DEFINE_ORDER_TOP(n)                                                                  \
  static void NAME(top_forward_##n)(T * work, const T *gain, size_t size) {                  \
    const size_t stride = size / n;                                                          \
    for (size_t at = 0; at < stride; at += LANES) {                                          \
      V r[n];                                                                                \
      NAME(hadamard_##n)(work + at, stride, (T *)r, LANES);                                  \
      EACH_##n(TIMES_G) NAME(hadamard_##n)((const T *)r, LANES, work + at, stride);          \
    }                                                                                        \
  }                                                                                          \
  static void NAME(top_backward_##n)(T * work_u, T * work_v, const T *gain, size_t size,     \
                                     T norm, const NAME(gradients) * q) {                    \
    const size_t stride = size / n;                                                          \
    OPEN_GRADIENTS(q)                                                                        \
    for (size_t at = 0; at < stride; at += LANES) {                                          \
      V r[n], u[n], d[n];                                                                    \
      NAME(hadamard_##n)(work_u + at, stride, (T *)u, LANES);                                \
      EACH_##n(T_OF_U) NAME(hadamard_##n)((const T *)r, LANES, work_u + at, stride);         \
      NAME(hadamard_##n)(work_v + at, stride, (T *)r, LANES);                                \
      EACH_##n(GRAD_OF_GAIN) TAKE_GRAD_G(EACH_##n)                                           \
      EACH_##n(TIMES_G) NAME(hadamard_##n)((const T *)r, LANES, work_v + at, stride);        \
    }                                                                                        \
  }
DEFINE_ORDER_TOP(12)
DEFINE_ORDER_TOP(20)
DEFINE_ORDER_TOP(28)

/* How many parts of a row of more than one block the pass with g combines: m of m 2^k; of 2^k eight
 * where that makes the number of passes smaller, for they need more registers than there may be. */
INLINE size_t NAME(top_radix)(size_t size) {
  const size_t blocks = size / BLOCK, order = order_of(size);
  if (order > 1) return order;
  return __builtin_ctzll(blocks) % 3 == 0 ? 8 : blocks == 2 ? 2 : 4;
}

/* The levels between a register block and the top, in place. */
INLINE void NAME(middle_levels)(T *work, size_t size, size_t top) {
  for (size_t done = BLOCK; done * top < size;) {
    const size_t radix = NAME(next_radix)(done, size / top);
    NAME(pass)(work, size, done, radix);
    done *= radix;
  }
}

static void NAME(long_forward)(const NAME(operands) * p, size_t size, T norm, T *work, T *out) {
  const size_t top = NAME(top_radix)(size);
  const NAME(low_passes) *low = NAME(low_of)(size);
  low->in(p->x, p->s2, work, size);
  NAME(middle_levels)(work, size, top);
  if (top == 2) NAME(top_forward_2)(work, p->g, size);
  if (top == 4) NAME(top_forward_4)(work, p->g, size);
  if (top == 8) NAME(top_forward_8)(work, p->g, size);
  if (top == 12) NAME(top_forward_12)(work, p->g, size);
  if (top == 20) NAME(top_forward_20)(work, p->g, size);
  if (top == 28) NAME(top_forward_28)(work, p->g, size);
  NAME(middle_levels)(work, size, top);
  low->out(p, work, size, norm, out);
}

static void NAME(long_backward)(const NAME(operands) * p, size_t size, T norm, T *work,
                                const T *grad, const NAME(gradients) * q) {
  const size_t top = NAME(top_radix)(size);
  const NAME(low_passes) *low = NAME(low_of)(size);
  T *work_u = work, *work_v = work + size;
  low->in(p->x, p->s2, work_u, size);
  low->in(grad, p->s1, work_v, size);
  NAME(middle_levels)(work_u, size, top);
  NAME(middle_levels)(work_v, size, top);
  if (top == 2) NAME(top_backward_2)(work_u, work_v, p->g, size, norm, q);
  if (top == 4) NAME(top_backward_4)(work_u, work_v, p->g, size, norm, q);
  if (top == 8) NAME(top_backward_8)(work_u, work_v, p->g, size, norm, q);
  if (top == 12) NAME(top_backward_12)(work_u, work_v, p->g, size, norm, q);
  if (top == 20) NAME(top_backward_20)(work_u, work_v, p->g, size, norm, q);
  if (top == 28) NAME(top_backward_28)(work_u, work_v, p->g, size, norm, q);
  NAME(middle_levels)(work_u, size, top);
  NAME(middle_levels)(work_v, size, top);
  low->out_s1(work_u, grad, size, norm, q);
  low->out_x(p, work_v, size, norm, q);
}

/* ---- rows beyond the cache, and rows shorter than a vector: plain steps ------------------- */

static void NAME(plain_transform)(T *x, size_t size) { NAME(rows)(x, x, 1, size, 1.0, NULL); }

static void NAME(plain_forward)(const NAME(operands) * p, size_t size, T norm, T *work, T *out) {
  for (size_t i = 0; i < size; ++i) work[i] = p->x[i] * p->s2[i];
  NAME(plain_transform)(work, size);
  for (size_t i = 0; i < size; ++i) work[i] *= p->g[i];
  NAME(plain_transform)(work, size);
  for (size_t i = 0; i < size; ++i) out[i] = work[i] * norm * p->s1[i];
  if (p->bias)
    for (size_t i = 0; i < size; ++i) out[i] += p->bias[i];
}

static void NAME(plain_backward)(const NAME(operands) * p, size_t size, T norm, T *work,
                                 const T *grad, const NAME(gradients) * q) {
  T *u = work, *v = work + size;
  for (size_t i = 0; i < size; ++i) u[i] = p->x[i] * p->s2[i], v[i] = grad[i] * p->s1[i];
  NAME(plain_transform)(u, size);
  NAME(plain_transform)(v, size);
  for (size_t i = 0; i < size; ++i) {
    const T grad_g = u[i] * v[i] * norm;
    if (q->g_row)
      q->g_row[i] = grad_g;
    else
      q->g_sum[i] += grad_g;
    if (q->scale) q->scale[i] += grad_g * q->eps[i];
    u[i] *= p->g[i], v[i] *= p->g[i];
  }
  NAME(plain_transform)(u, size);
  NAME(plain_transform)(v, size);
  for (size_t i = 0; i < size; ++i) {
    const T w = v[i] * norm;
    q->s1[i] += grad[i] * u[i] * norm;
    q->s2[i] += w * p->x[i];
    q->x[i] = w * p->s2[i] + (q->add_x ? q->x[i] : 0);
    if (q->bias) q->bias[i] += grad[i];
  }
}

/* ---- one row of one block, any size ------------------------------------------------------- */

static void NAME(row_forward)(const NAME(operands) * p, size_t size, T norm, T *work, T *out) {
  if (size / order_of(size) < LANES || size > LEAF) {
    NAME(plain_forward)(p, size, norm, work, out);
    return;
  }
  if (order_of(size) == 1 && size <= BLOCK) {
    NAME(short_product_of)(size)->forward(p, size, norm, out);
  } else {
    NAME(long_forward)(p, size, norm, work, out);
  }
}

/* `work` has 2 * size entries. */
static void NAME(row_backward)(const NAME(operands) * p, size_t size, T norm, T *work,
                               const T *grad, const NAME(gradients) * q) {
  if (size / order_of(size) < LANES || size > LEAF) {
    NAME(plain_backward)(p, size, norm, work, grad, q);
    return;
  }
  if (order_of(size) == 1 && size <= BLOCK) {
    NAME(short_product_of)(size)->backward(p, size, norm, grad, q);
  } else {
    NAME(long_backward)(p, size, norm, work, grad, q);
  }
}
