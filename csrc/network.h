/* The networks of an ensemble at rows of a table, for one instruction set and element type:
 *
 *   a = s1 H(g u) / D + b,  u = H(s2 h),  h <- phi(a)    layer by layer,    f = W h + c
 *
 * with phi = max(0, .) or sqrt(2) sin. A task is a few rows of one member: what all its draws of g and W
 * share, u of the first layer, is made once, and nothing but f leaves the cache. No sum depends on the
 * rows beside it.
 */

#define TILE_ROWS 6     /* of derivatives, times ... */
#define TILE_VECTORS (NREG == 16 ? 4 : 2) /* ... of displacements: what registers hold */
#define TILE_DEPTH 512  /* parameters whose displacements stay in the cache */

#define MEMBER(tensor, r, count) ((const T *)(intptr_t)(tensor) + (r) * (count))

INLINE int64_t NAME(padded)(int64_t entries) { return (entries + 63) & ~(int64_t)63; }
INLINE int64_t NAME(layer_width)(const NetworkLayer *l) { return l->blocks * l->size; }

INLINE void NAME(times)(const T *a, const T *b, int64_t count, T *to) {
  int64_t i = 0;
  for (; i + (int64_t)LANES <= count; i += LANES) STORE(to + i, LOAD(a + i) * LOAD(b + i));
  for (; i < count; ++i) to[i] = a[i] * b[i];
}

INLINE T NAME(lane_sum)(V v) {
  v += SWAP_1(v);
  if (LANES > 2) v += SWAP_2(v);
  if (LANES > 4) v += SWAP_4(v);
  if (LANES > 8) v += SWAP_8(v);
  return v[0];
}

static T NAME(inner_product)(const T *a, const T *b, int64_t count) {
  V sums[2] = {{0}};
  int64_t i = 0;
  for (; i + 2 * (int64_t)LANES <= count; i += 2 * LANES) {
    sums[0] = FMA(LOAD(a + i), LOAD(b + i), sums[0]);
    sums[1] = FMA(LOAD(a + i + LANES), LOAD(b + i + LANES), sums[1]);
  }
  T rest = 0;
  for (; i < count; ++i) rest += a[i] * b[i];
  return rest + NAME(lane_sum)(sums[0] + sums[1]);
}

/* ---- sines: x = m pi + r with |r| <= pi / 2 and a polynomial of r ---------------------------- */

#ifdef IS_FLOAT
#define FARTHEST_PHASE 8192.0f /* up to here m times the parts of pi is exact; 3 ulp */

/* sin x, or cos x with a `shift` of 1/2 */
INLINE V NAME(wave)(V x, float shift) {
  const V zero = {0}, scaled = x * 0.318309886183790672f - shift;
  const NAME(integers) sign = (NAME(integers))scaled & (int32_t)0x80000000;
  const V half = (V)((NAME(integers))(zero + 0.5f) | sign);
  const NAME(integers) n = __builtin_convertvector(scaled + half, NAME(integers));
  const V m = __builtin_convertvector(n, V) + shift;
  V r = FMA(m, zero - 3.140625f, x);
  r = FMA(m, zero - 9.67502593994140625e-4f, r);
  r = FMA(m, zero - 1.509957990978376432e-7f, r);
  const V s = r * r;
  V p = FMA(s, zero + 2.6083159809786593541503e-06f, zero - 0.0001981069071916863322258f);
  p = FMA(p, s, zero + 0.00833307858556509017944336f);
  p = FMA(p, s, zero - 0.166666597127914428710938f);
  p = FMA(s, p * r, r);
  const NAME(integers) odd = (n ^ (shift != 0)) << 31;
  return (V)((NAME(integers))p ^ odd);
}

/* sin or (shift 1/2) cos of entries times a factor; of those that are far from zero as the C library has it */
static void NAME(waves)(const T *x, int64_t count, T shift, T factor, T *to) {
  NAME(integers) far = {0};
  const V most = (V){0} + FARTHEST_PHASE;
  for (int64_t i = 0; i < count; i += LANES) {
    const int whole = i + (int64_t)LANES <= count;
    T rest[LANES] = {0};
    if (!whole) memcpy(rest, x + i, (size_t)(count - i) * sizeof(T));
    const V entries = LOAD(whole ? x + i : rest), values = NAME(wave)(entries, shift) * factor;
    far |= ~((entries <= most) & (entries >= -most));
    if (whole) {
      STORE(to + i, values);
    } else {
      STORE(rest, values);
      memcpy(to + i, rest, (size_t)(count - i) * sizeof(T));
    }
  }
  int any = 0;
  for (int lane = 0; lane < (int)LANES; ++lane) any |= far[lane];
  if (!any) return;
  for (int64_t i = 0; i < count; ++i)
    if (!(x[i] <= FARTHEST_PHASE && x[i] >= -FARTHEST_PHASE))
      to[i] = (shift != 0 ? __builtin_cosf(x[i]) : __builtin_sinf(x[i])) * factor;
}
#undef FARTHEST_PHASE
#else
static void NAME(waves)(const T *x, int64_t count, T shift, T factor, T *to) {
  for (int64_t i = 0; i < count; ++i) to[i] = (shift != 0 ? cos(x[i]) : sin(x[i])) * factor;
}
#endif

/* ---- layers ----------------------------------------------------------------------------------- */

/* The vectors of one layer and draw. */
typedef struct {
  const T *s1, *g, *s2, *bias;
} NAME(layer_draw);

INLINE NAME(layer_draw) NAME(draw_of_layer)(const Network *a, int64_t k, int64_t r, int64_t s) {
  const NetworkLayer *l = a->layers + k;
  const int64_t width = NAME(layer_width)(l);
  const NAME(layer_draw) d = {MEMBER(l->s1, r, width), MEMBER(l->g, r * a->draws + s, width),
                              MEMBER(l->s2, r, width), MEMBER(l->bias, r, l->out_features)};
  return d;
}

/* u = H(s2 h) */
INLINE void NAME(enter)(const NetworkLayer *l, const T *s2, const T *h, T *u) {
  for (int64_t k = 0; k < l->blocks; ++k) NAME(times)(h, s2 + k * l->size, l->size, u + k * l->size);
  NAME(rows)(u, u, (size_t)l->blocks, (size_t)l->size, 1, NULL);
}

/* t = H(g u) / D */
INLINE void NAME(turn)(const NetworkLayer *l, const T *g, const T *u, T *t) {
  NAME(times)(g, u, NAME(layer_width)(l), t);
  NAME(rows)(t, t, (size_t)l->blocks, (size_t)l->size, 1.0 / (double)l->size, NULL);
}

/* a = s1 t + b, in place of nothing but `a`; then h = phi(a) with zeros behind it */
INLINE void NAME(leave)(const NetworkLayer *l, const NAME(layer_draw) * d, const T *t, T *a, T *h,
                        int64_t width_of_h) {
  const int64_t count = l->out_features;
  const V zero = {0};
  int64_t i = 0;
  for (; i + (int64_t)LANES <= count; i += LANES) {
    const V v = LOAD(t + i) * LOAD(d->s1 + i) + LOAD(d->bias + i);
    STORE(a + i, v);
    if (!l->is_sine) STORE(h + i, (V)((__typeof__(v < zero))v & ~(v < zero))); /* NaN stays */
  }
  for (; i < count; ++i) {
    a[i] = t[i] * d->s1[i] + d->bias[i];
    if (!l->is_sine) h[i] = a[i] < 0 ? 0 : a[i];
  }
  if (l->is_sine) NAME(waves)(a, count, 0, (T)M_SQRT2, h);
  for (i = count; i < width_of_h; ++i) h[i] = 0;
}

/* Entries of h that the layer after layer k reads. */
INLINE int64_t NAME(read_after)(const Network *a, int64_t k) {
  return k + 1 < a->num_layers ? a->layers[k + 1].size : a->layers[k].out_features;
}

/* The inputs of the first layer: the columns, repeated where it is wider, then zeros. */
INLINE void NAME(tile_input)(const Network *a, const T *x, T *h) {
  const NetworkLayer *l = a->layers;
  int64_t i = 0;
  for (int64_t column = 0; i < l->in_features; ++i) {
    h[i] = x[column];
    if (++column == a->in_features) column = 0;
  }
  for (; i < l->size; ++i) h[i] = 0;
}

INLINE void NAME(last_layer)(const Network *a, int64_t r, int64_t s, const T *h, T *f) {
  const int64_t in = a->layers[a->num_layers - 1].out_features, out = a->out_features;
  const T *weight = MEMBER(a->weight, r * a->draws + s, out * in), *bias = MEMBER(a->bias, r, out);
  for (int64_t o = 0; o < out; ++o) f[o] = NAME(inner_product)(weight + o * in, h, in) + bias[o];
}

INLINE int64_t NAME(widest)(const Network *a) {
  int64_t most = 0;
  for (int64_t k = 0; k < a->num_layers; ++k) {
    const int64_t width = NAME(layer_width)(a->layers + k);
    most = width > most ? width : most; /* at least out_features and size */
  }
  for (int64_t k = 0; k < a->num_layers; ++k) {
    const int64_t read = NAME(read_after)(a, k);
    most = read > most ? read : most;
  }
  return NAME(padded)(most);
}

static size_t NAME(draws_scratch)(const NetworkRows *w) {
  const Network *a = w->network;
  return (size_t)(w->at_once * NAME(padded)(NAME(layer_width)(a->layers)) + 3 * NAME(widest)(a));
}

/* f (N, R, S, F) of the rows of a task and all draws of one member. */
static void NAME(draws_task)(const NetworkRows *w, int64_t task, void *scratch) {
  const Network *a = w->network;
  const int64_t r = task % a->members, first = task / a->members * w->at_once;
  const int64_t rows = w->rows - first < w->at_once ? w->rows - first : w->at_once;
  const int64_t width = NAME(padded)(NAME(layer_width)(a->layers)), widest = NAME(widest)(a);
  T *const shared = scratch, *const h = shared + w->at_once * width, *const u = h + widest,
           *const t = u + widest;
  for (int64_t n = 0; n < rows; ++n) {
    NAME(tile_input)(a, (const T *)w->x + r * w->x_r + (first + n) * a->in_features, h);
    NAME(enter)(a->layers, MEMBER(a->layers->s2, r, NAME(layer_width)(a->layers)), h, shared + n * width);
  }
  for (int64_t s = 0; s < a->draws; ++s)
    for (int64_t n = 0; n < rows; ++n) {
      for (int64_t k = 0; k < a->num_layers; ++k) {
        const NetworkLayer *l = a->layers + k;
        const NAME(layer_draw) d = NAME(draw_of_layer)(a, k, r, s);
        if (k) NAME(enter)(l, d.s2, h, u);
        NAME(turn)(l, d.g, k ? u : shared + n * width, t);
        NAME(leave)(l, &d, t, t, h, NAME(read_after)(a, k));
      }
      const int64_t at = (((first + n) * a->members + r) * a->draws + s) * a->out_features;
      NAME(last_layer)(a, r, s, h, (T *)w->f + at);
    }
}

/* ---- the networks linearised: J(x) delta ------------------------------------------------------ */

/* What the way back needs of a layer: its inputs, u, t and the slopes of phi. */
INLINE T *NAME(state_of)(const Network *a, T *states, int64_t k, int part) {
  return states + (NUM_LAYER_STATES * k + part) * NAME(widest)(a);
}

/* f of one row; fills the states. */
static void NAME(forward_row)(const Network *a, int64_t r, const T *x, T *states, T *last, T *f) {
  NAME(tile_input)(a, x, NAME(state_of)(a, states, 0, LAYER_INPUT));
  for (int64_t k = 0; k < a->num_layers; ++k) {
    const NetworkLayer *l = a->layers + k;
    const NAME(layer_draw) d = NAME(draw_of_layer)(a, k, r, 0);
    T *u = NAME(state_of)(a, states, k, LAYER_U), *t = NAME(state_of)(a, states, k, LAYER_T);
    T *slope = NAME(state_of)(a, states, k, LAYER_SLOPE);
    T *next = k + 1 < a->num_layers ? NAME(state_of)(a, states, k + 1, LAYER_INPUT) : last;
    NAME(enter)(l, d.s2, NAME(state_of)(a, states, k, LAYER_INPUT), u);
    NAME(turn)(l, d.g, u, t);
    NAME(leave)(l, &d, t, slope, next, NAME(read_after)(a, k));
    if (l->is_sine) NAME(waves)(slope, l->out_features, (T)0.5, (T)M_SQRT2, slope);
    else
      for (int64_t i = 0; i < l->out_features; ++i) slope[i] = slope[i] > 0;
  }
  NAME(last_layer)(a, r, 0, last, f);
}

/* The derivatives of output o with respect to all parameters, in the order of layers and in each s1, g,
 * s2 and bias; `work` has three rows of the widest layer. */
static void NAME(backward_row)(const Network *a, int64_t r, int64_t o, const T *states, const T *last,
                               T *work, T *derivatives) {
  const int64_t widest = NAME(widest)(a), in = a->layers[a->num_layers - 1].out_features;
  T *grad = work, *v = work + widest, *w = v + widest, *end = derivatives + a->parameters - a->out_features;
  memset(end - a->out_features * in, 0, (size_t)(a->out_features * (in + 1)) * sizeof(T));
  memcpy(end - (a->out_features - o) * in, last, (size_t)in * sizeof(T));
  end[o] = 1;
  memcpy(grad, MEMBER(a->weight, r, a->out_features * in) + o * in, (size_t)in * sizeof(T));
  end -= a->out_features * in;
  for (int64_t k = a->num_layers - 1; k >= 0; --k) {
    const NetworkLayer *l = a->layers + k;
    const NAME(layer_draw) d = NAME(draw_of_layer)(a, k, r, 0);
    const int64_t width = NAME(layer_width)(l), count = l->out_features;
    const T *h = NAME(state_of)(a, (T *)states, k, LAYER_INPUT), *u = NAME(state_of)(a, (T *)states, k, LAYER_U);
    T *const bias = end - count, *const s2 = bias - width, *const g = s2 - width, *const s1 = g - width;
    NAME(times)(grad, NAME(state_of)(a, (T *)states, k, LAYER_SLOPE), count, grad);
    for (int64_t i = count; i < width; ++i) grad[i] = 0;
    memcpy(bias, grad, (size_t)count * sizeof(T));
    NAME(times)(grad, NAME(state_of)(a, (T *)states, k, LAYER_T), width, s1);
    NAME(times)(grad, d.s1, width, v);
    NAME(rows)(v, v, (size_t)l->blocks, (size_t)l->size, 1, NULL);
    NAME(turn)(l, d.g, v, w);
    NAME(times)(v, u, width, g);
    for (int64_t i = 0; i < width; ++i) g[i] *= (T)1 / (T)l->size;
    for (int64_t b = 0; b < width; b += l->size) NAME(times)(w + b, h, l->size, s2 + b);
    NAME(times)(w, d.s2, width, grad);
    for (int64_t b = l->size; b < width; b += l->size)
      for (int64_t i = 0; i < l->size; ++i) grad[i] += grad[b + i];
    end = s1;
  }
}

/* sums (rows, columns) += derivatives (rows, parameters) times displacements (parameters, columns) */
static void NAME(project_tile)(const T *derivatives, int64_t stride, const T *moves, int64_t columns,
                               int64_t depth, T *sums) {
  V r[TILE_ROWS][TILE_VECTORS];
#pragma GCC unroll 6
  for (int n = 0; n < TILE_ROWS; ++n)
#pragma GCC unroll 4
    for (int c = 0; c < TILE_VECTORS; ++c) r[n][c] = LOAD(sums + n * columns + c * (int)LANES);
  for (int64_t p = 0; p < depth; ++p, moves += columns) {
    V m[TILE_VECTORS];
#pragma GCC unroll 4
    for (int c = 0; c < TILE_VECTORS; ++c) m[c] = LOAD(moves + c * (int)LANES);
#pragma GCC unroll 6
    for (int n = 0; n < TILE_ROWS; ++n) {
      const V d = derivatives[n * stride + p] - (V){0};
#pragma GCC unroll 4
      for (int c = 0; c < TILE_VECTORS; ++c) r[n][c] = FMA(d, m[c], r[n][c]);
    }
  }
#pragma GCC unroll 6
  for (int n = 0; n < TILE_ROWS; ++n)
#pragma GCC unroll 4
    for (int c = 0; c < TILE_VECTORS; ++c) STORE(sums + n * columns + c * (int)LANES, r[n][c]);
}

static void NAME(project)(const Network *a, int64_t r, const T *derivatives, int64_t stride, int64_t rows,
                          T *sums) {
  const T *moves = MEMBER(a->moves, r, a->parameters * a->columns);
  for (int64_t p = 0; p < a->parameters; p += TILE_DEPTH) {
    const int64_t depth = a->parameters - p < TILE_DEPTH ? a->parameters - p : TILE_DEPTH;
    for (int64_t n = 0; n < rows; n += TILE_ROWS)
      for (int64_t c = 0; c < a->columns; c += TILE_VECTORS * LANES)
        NAME(project_tile)(derivatives + n * stride + p, stride, moves + p * a->columns + c, a->columns,
                           depth, sums + n * a->columns + c);
  }
}

/* Rows of derivatives of a task, one for every row and output, in whole tiles. */
INLINE int64_t NAME(linear_pairs)(const NetworkRows *w) {
  return (w->at_once * w->outputs + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
}

static size_t NAME(linear_scratch)(const NetworkRows *w) {
  const Network *a = w->network;
  return (size_t)(NAME(linear_pairs)(w) * (NAME(padded)(a->parameters) + a->columns) +
                  (NUM_LAYER_STATES * a->num_layers + 4) * NAME(widest)(a));
}

/* f (N, R, F), mean squares of the changes (N, R, O) in double, and the first `kept` changes (N, R, O, kept). */
static void NAME(linear_task)(const NetworkRows *w, int64_t task, void *scratch) {
  const Network *a = w->network;
  const int64_t at_once = w->at_once, pairs = NAME(linear_pairs)(w), O = w->outputs;
  const int64_t r = task % a->members, first = task / a->members * at_once;
  const int64_t rows = w->rows - first < at_once ? w->rows - first : at_once;
  const int64_t stride = NAME(padded)(a->parameters), widest = NAME(widest)(a);
  T *const derivatives = scratch, *const sums = derivatives + pairs * stride;
  T *const states = sums + pairs * a->columns, *const last = states + NUM_LAYER_STATES * a->num_layers * widest;
  memset(sums, 0, (size_t)(pairs * a->columns) * sizeof(T));
  memset(derivatives + rows * O * stride, 0, (size_t)((pairs - rows * O) * stride) * sizeof(T));
  for (int64_t n = 0; n < rows; ++n) {
    const int64_t row = (first + n) * a->members + r;
    NAME(forward_row)(a, r, (const T *)w->x + r * w->x_r + (first + n) * a->in_features, states, last,
                      (T *)w->f + row * a->out_features);
    for (int64_t o = 0; o < O; ++o)
      NAME(backward_row)(a, r, o, states, last, last + widest, derivatives + (n * O + o) * stride);
  }
  NAME(project)(a, r, derivatives, stride, pairs, sums);
  for (int64_t pair = 0; pair < rows * O; ++pair) {
    const int64_t at = ((first + pair / O) * a->members + r) * O + pair % O;
    const T *changes = sums + pair * a->columns;
    double squares[8] = {0};
    for (int64_t i = 0; i < a->columns; i += 8)
      for (int j = 0; j < 8; ++j) squares[j] += (double)changes[i + j] * (double)changes[i + j];
    double total = 0;
    for (int j = 0; j < 8; ++j) total += squares[j];
    ((double *)w->variance)[at] = total / (double)a->displacements;
    if (w->kept) memcpy((T *)w->changes + at * w->kept, changes, (size_t)w->kept * sizeof(T));
  }
}

#undef TILE_ROWS
#undef TILE_VECTORS
#undef TILE_DEPTH
#undef MEMBER
