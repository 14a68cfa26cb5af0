/* y = s1 * H(g * H(s2 * x)) / D for rows, and its gradients, for one instruction set and type.
 *
 * H is unnormalised here; the two factors D^-1/2 of the orthonormal transform are the one 1/D.
 * A row is worked on while it is in cache. Rows longer than a register block use that the levels
 * of H commute: low levels, then (top levels)(multiply by g)(top levels) in one pass, then low
 * levels again, so the middle costs one trip through memory.
 */

#define TOP_MAX ((size_t)4)

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

#define ADD_TO(sum, at, v) STORE((sum) + (at), LOAD((sum) + (at)) + (v))

INLINE void NAME(take_grad_g)(const NAME(gradients) * q, size_t at, V grad_g) {
  if (q->g_row)
    STORE(q->g_row + at, grad_g);
  else
    ADD_TO(q->g_sum, at, grad_g);
  if (q->scale) ADD_TO(q->scale, at, grad_g * LOAD(q->eps + at));
}

INLINE void NAME(take_grad_s1)(const NAME(gradients) * q, size_t at, V t, V grad) {
  ADD_TO(q->s1, at, grad * t);
  if (q->bias) ADD_TO(q->bias, at, grad);
}

INLINE void NAME(take_grad_x)(const NAME(gradients) * q, size_t at, V w, V x, V s2) {
  ADD_TO(q->s2, at, w * x);
  if (q->add_x)
    ADD_TO(q->x, at, w * s2);
  else
    STORE(q->x + at, w * s2);
}

/* ---- rows of one register run: nothing leaves the registers ------------------------------- */

#define GET_X(i) r[i] = LOAD(p->x + (i) * LANES) * LOAD(p->s2 + (i) * LANES);
#define TIMES_G(i) r[i] *= LOAD(p->g + (i) * LANES);
#define PUT_Y(i)                                           \
  {                                                        \
    V y = r[i] * norm * LOAD(p->s1 + (i) * LANES);         \
    if (p->bias) y += LOAD(p->bias + (i) * LANES);         \
    STORE(out + (i) * LANES, y);                           \
  }
#define GET_GRAD(i) r[i] = LOAD(grad + (i) * LANES) * LOAD(p->s1 + (i) * LANES);
#define KEEP_U(i) u[i] = r[i];
#define KEEP_V(i) v[i] = r[i];
#define GRAD_G(i) NAME(take_grad_g)(q, (i) * LANES, u[i] * v[i] * norm);
#define T_OF_U(i) r[i] = u[i] * LOAD(p->g + (i) * LANES);
#define GRAD_S1(i) NAME(take_grad_s1)(q, at + (i) * LANES, r[i] * norm, LOAD(grad + at + (i) * LANES));
#define W_OF_V(i) r[i] = v[i] * LOAD(p->g + (i) * LANES);
#define GRAD_X(i)                                                                      \
  NAME(take_grad_x)(q, at + (i) * LANES, r[i] * norm, LOAD(p->x + at + (i) * LANES),   \
                    LOAD(p->s2 + at + (i) * LANES));

#define DEFINE_SHORT_PRODUCT(n)                                                                 \
  static void NAME(short_forward_##n)(const NAME(operands) * p, T norm, T *out) {               \
    V r[n];                                                                                     \
    EACH_##n(GET_X) NAME(in_registers_##n)(r);                                                  \
    EACH_##n(TIMES_G) NAME(in_registers_##n)(r);                                                \
    EACH_##n(PUT_Y)                                                                             \
  }                                                                                             \
  static void NAME(short_backward_##n)(const NAME(operands) * p, T norm, const T *grad,         \
                                       const NAME(gradients) * q) {                             \
    const size_t at = 0;                                                                        \
    V r[n], u[n], v[n];                                                                         \
    EACH_##n(GET_X) NAME(in_registers_##n)(r);                                                  \
    EACH_##n(KEEP_U) EACH_##n(GET_GRAD) NAME(in_registers_##n)(r);                              \
    EACH_##n(KEEP_V) EACH_##n(GRAD_G) EACH_##n(T_OF_U) NAME(in_registers_##n)(r);               \
    EACH_##n(GRAD_S1) EACH_##n(W_OF_V) NAME(in_registers_##n)(r);                               \
    EACH_##n(GRAD_X)                                                                            \
  }
DEFINE_SHORT_PRODUCT(1)
DEFINE_SHORT_PRODUCT(2)
DEFINE_SHORT_PRODUCT(4)
DEFINE_SHORT_PRODUCT(8)
#if NREG == 16
DEFINE_SHORT_PRODUCT(16)
#endif

/* ---- longer rows in pieces of a register block -------------------------------------------- */

/* work = low levels of (a * b) */
static void NAME(low_in)(const T *a, const T *b, T *work, size_t size) {
  for (size_t at = 0; at < size; at += BLOCK) {
    const T *left = a + at, *right = b + at;
    T *dst = work + at;
    const size_t stride = LANES;
    V r[NREG];
#define GET_PRODUCT(i) r[i] = LOAD(left + (i) * LANES) * LOAD(right + (i) * LANES);
    EACH_BLOCK(GET_PRODUCT) IN_REGISTERS_BLOCK(r);
    EACH_BLOCK(PUT)
  }
}

/* y = s1 * (low levels of work) * norm + bias */
static void NAME(low_out)(const NAME(operands) * row, T *work, size_t size, T norm, T *y) {
  for (size_t at = 0; at < size; at += BLOCK) {
    const T *src = work + at;
    T *out = y + at;
    const size_t stride = LANES;
    const NAME(operands) shifted = {NULL, row->s1 + at, NULL, NULL, row->bias ? row->bias + at : NULL};
    const NAME(operands) *p = &shifted;
    V r[NREG];
    EACH_BLOCK(GET) IN_REGISTERS_BLOCK(r);
    EACH_BLOCK(PUT_Y)
  }
}

/* t = low levels of work * norm: s1 += grad * t */
static void NAME(low_out_s1)(const T *work, const T *grad, size_t size, T norm,
                             const NAME(gradients) * q) {
  for (size_t at = 0; at < size; at += BLOCK) {
    const T *src = work + at;
    const size_t stride = LANES;
    V r[NREG];
    EACH_BLOCK(GET) IN_REGISTERS_BLOCK(r);
    EACH_BLOCK(GRAD_S1)
  }
}

/* w = low levels of work * norm: s2 += w * x, x = w * s2 */
static void NAME(low_out_x)(const NAME(operands) * p, const T *work, size_t size, T norm,
                            const NAME(gradients) * q) {
  for (size_t at = 0; at < size; at += BLOCK) {
    const T *src = work + at;
    const size_t stride = LANES;
    V r[NREG];
    EACH_BLOCK(GET) IN_REGISTERS_BLOCK(r);
    EACH_BLOCK(GRAD_X)
  }
}

/* work = top(g * top(work)), the levels from size / n up */
#define DEFINE_TOP_FORWARD(n)                                                                        \
  static void NAME(top_forward_##n)(T * work, const T *g, size_t size) {                     \
    const size_t stride = size / n;                                                          \
    for (size_t j = 0; j < stride; j += LANES) {                                             \
      const T *src = work + j, *gain = g + j;                                                \
      T *dst = work + j;                                                                     \
      V r[n];                                                                                \
      EACH_##n(GET) PAIRS_##n(SPREAD_PAIR) EACH_##n(TIMES_GAIN) PAIRS_##n(SPREAD_PAIR) EACH_##n(PUT)                   \
    }                                                                                        \
  }
#define DEFINE_TOP_BACKWARD(n)                                                               \
  /* u = top(work_u), v = top(work_v); grad_g = u v norm; work = top(g u), top(g v) */       \
  static void NAME(top_backward_##n)(T * work_u, T * work_v, const T *g, size_t size, T norm, \
                                     const NAME(gradients) * q) {                            \
    const size_t stride = size / n;                                                          \
    for (size_t j = 0; j < stride; j += LANES) {                                             \
      const T *gain = g + j;                                                                 \
      V r[n], u[n];                                                                          \
      const T *src = work_u + j;                                                             \
      T *dst = work_u + j;                                                                   \
      EACH_##n(GET) PAIRS_##n(SPREAD_PAIR) EACH_##n(KEEP_U) EACH_##n(TIMES_GAIN) PAIRS_##n(SPREAD_PAIR) EACH_##n(PUT)  \
      src = work_v + j;                                                                      \
      dst = work_v + j;                                                                      \
      EACH_##n(GET) PAIRS_##n(SPREAD_PAIR) EACH_##n(PUT_GRAD_G) EACH_##n(TIMES_GAIN) PAIRS_##n(SPREAD_PAIR) EACH_##n(PUT) \
    }                                                                                        \
  }
#define TIMES_GAIN(i) r[i] *= LOAD(gain + (i) * stride);
#define PUT_GRAD_G(i) NAME(take_grad_g)(q, j + (i) * stride, u[i] * r[i] * norm);
DEFINE_TOP_FORWARD(2)
DEFINE_TOP_FORWARD(4)
DEFINE_TOP_FORWARD(8)
DEFINE_TOP_BACKWARD(2)
DEFINE_TOP_BACKWARD(4)
DEFINE_TOP_BACKWARD(8)

/* The levels between a register block and the top, in place. */
INLINE void NAME(middle_levels)(T *work, size_t size, size_t top) {
  for (size_t done = BLOCK; done * top < size;) {
    const size_t radix = NAME(next_radix)(done, size / top);
    NAME(pass)(work, size, done, radix);
    done *= radix;
  }
}

static void NAME(long_forward)(const NAME(operands) * p, size_t size, T norm, T *work, T *out) {
  const size_t top = size / BLOCK < TOP_MAX ? size / BLOCK : TOP_MAX;
  NAME(low_in)(p->x, p->s2, work, size);
  NAME(middle_levels)(work, size, top);
  if (top == 2) NAME(top_forward_2)(work, p->g, size);
  if (top == 4) NAME(top_forward_4)(work, p->g, size);
  if (top == 8) NAME(top_forward_8)(work, p->g, size);
  NAME(middle_levels)(work, size, top);
  NAME(low_out)(p, work, size, norm, out);
}

static void NAME(long_backward)(const NAME(operands) * p, size_t size, T norm, T *work,
                                const T *grad, const NAME(gradients) * q) {
  const size_t top = size / BLOCK < TOP_MAX ? size / BLOCK : TOP_MAX;
  T *work_u = work, *work_v = work + size;
  NAME(low_in)(p->x, p->s2, work_u, size);
  NAME(low_in)(grad, p->s1, work_v, size);
  NAME(middle_levels)(work_u, size, top);
  NAME(middle_levels)(work_v, size, top);
  if (top == 2) NAME(top_backward_2)(work_u, work_v, p->g, size, norm, q);
  if (top == 4) NAME(top_backward_4)(work_u, work_v, p->g, size, norm, q);
  if (top == 8) NAME(top_backward_8)(work_u, work_v, p->g, size, norm, q);
  NAME(middle_levels)(work_u, size, top);
  NAME(middle_levels)(work_v, size, top);
  NAME(low_out_s1)(work_u, grad, size, norm, q);
  NAME(low_out_x)(p, work_v, size, norm, q);
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
  if (size < LANES || size > LEAF) {
    NAME(plain_forward)(p, size, norm, work, out);
    return;
  }
  switch (size / LANES) {
    case 1: NAME(short_forward_1)(p, norm, out); return;
    case 2: NAME(short_forward_2)(p, norm, out); return;
    case 4: NAME(short_forward_4)(p, norm, out); return;
    case 8: NAME(short_forward_8)(p, norm, out); return;
#if NREG == 16
    case 16: NAME(short_forward_16)(p, norm, out); return;
#endif
    default: NAME(long_forward)(p, size, norm, work, out);
  }
}

/* `work` has 2 * size entries. */
static void NAME(row_backward)(const NAME(operands) * p, size_t size, T norm, T *work,
                               const T *grad, const NAME(gradients) * q) {
  if (size < LANES || size > LEAF) {
    NAME(plain_backward)(p, size, norm, work, grad, q);
    return;
  }
  switch (size / LANES) {
    case 1: NAME(short_backward_1)(p, norm, grad, q); return;
    case 2: NAME(short_backward_2)(p, norm, grad, q); return;
    case 4: NAME(short_backward_4)(p, norm, grad, q); return;
    case 8: NAME(short_backward_8)(p, norm, grad, q); return;
#if NREG == 16
    case 16: NAME(short_backward_16)(p, norm, grad, q); return;
#endif
    default: NAME(long_backward)(p, size, norm, work, grad, q);
  }
}
