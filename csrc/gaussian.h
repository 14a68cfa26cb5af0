/* Two small jobs of every training step, for one element type: the KL of a factorized Gaussian and
 * a dense layer of few outputs by local reparameterization. Plain loops; what counts is that each
 * is one call.
 */

#define KL_BLOCK (8 * LANES)

/* KL(N(loc, exp(log_scale)^2) || N(0, variance)) of n entries; variance <= 0 asks for the
 * minimiser, the mean of loc^2 + scale^2, which is written back. Sums of a block are formed in T,
 * sums of blocks in double. */
static double NAME(diagonal_kl)(const void *location, const void *log_scales, int64_t n,
                                double *variance) {
  double square = 0, log_volume = 0;
  for (int64_t first = 0; first < n; first += KL_BLOCK) {
    const int64_t count = n - first < KL_BLOCK ? n - first : KL_BLOCK;
    T loc[KL_BLOCK] = {0}, log_scale[KL_BLOCK] = {0}, scale[KL_BLOCK] = {0};
    memcpy(loc, (const T *)location + first, (size_t)count * sizeof(T));
    memcpy(log_scale, (const T *)log_scales + first, (size_t)count * sizeof(T));
    NAME(exponentials)(log_scale, count, scale);
    V squares = {0}, logs = {0};
    for (int64_t i = 0; i < KL_BLOCK; i += LANES) {
      squares += LOAD(loc + i) * LOAD(loc + i) + LOAD(scale + i) * LOAD(scale + i);
      logs += LOAD(log_scale + i);
    }
    for (int lane = 0; lane < LANES; ++lane) {
      square += (double)squares[lane];
      log_volume += (double)logs[lane];
    }
  }
  if (!(*variance > 0)) *variance = square / (double)n;
  return 0.5 * ((square / *variance) + (double)n * (log(*variance) - 1)) - log_volume;
}

/* Add its gradients times `grad`: loc / variance and scale^2 / variance - 1. */
static void NAME(diagonal_kl_backward)(const void *location, const void *log_scales, int64_t n,
                                       double variance, double grad, void *to_loc, void *to_scale) {
  const T factor = (T)(grad / variance), minus = (T)grad;
  for (int64_t first = 0; first < n; first += KL_BLOCK) {
    const int64_t count = n - first < KL_BLOCK ? n - first : KL_BLOCK;
    const T *loc = (const T *)location + first;
    T *grad_loc = (T *)to_loc + first, *grad_log_scale = (T *)to_scale + first;
    T scale[KL_BLOCK];
    NAME(exponentials)((const T *)log_scales + first, count, scale);
    for (int64_t i = 0; i < count; ++i) {
      grad_loc[i] += loc[i] * factor;
      grad_log_scale[i] += scale[i] * scale[i] * factor - minus;
    }
  }
}

#undef KL_BLOCK

/* y[n][o] = bias[o] + x[n] . loc[o] + spread[n][o] * eps[n][o], spread^2 = x[n]^2 . variance[o] */
static void NAME(dense_forward)(const Dense *a, int64_t replica) {
  const int64_t in = a->in_features, out = a->out_features, rows = a->rows;
  const T *loc = (const T *)a->loc + replica * out * in;
  const T *log_scale = (const T *)a->log_scale + replica * out * in;
  const T *bias = a->bias ? (const T *)a->bias + replica * out : NULL;
  T *variance = (T *)a->variance + replica * out * in;
  NAME(exponentials)(log_scale, out * in, variance);
  for (int64_t i = 0; i < out * in; ++i) variance[i] *= variance[i];
  for (int64_t n = replica * rows; n < (replica + 1) * rows; ++n) {
    const T *x = (const T *)a->x + n * in;
    for (int64_t o = 0; o < out; ++o) {
      V means = {0}, squares = {0};
      T mean = 0, square = 0;
      int64_t i = 0;
      for (; i + LANES <= in; i += LANES) {
        const V entry = LOAD(x + i);
        means += entry * LOAD(loc + o * in + i);
        squares += entry * entry * LOAD(variance + o * in + i);
      }
      for (; i < in; ++i) {
        mean += x[i] * loc[o * in + i];
        square += x[i] * x[i] * variance[o * in + i];
      }
      for (int lane = 0; lane < LANES; ++lane) mean += means[lane], square += squares[lane];
      const T spread = SQUARE_ROOT(square > (T)a->least ? square : (T)a->least);
      ((T *)a->spread)[n * out + o] = spread;
      ((T *)a->y)[n * out + o] = mean + spread * ((const T *)a->eps)[n * out + o] + (bias ? bias[o] : 0);
    }
  }
}

/* With r = grad * eps / (2 spread): loc += grad x, log_scale += 2 v r x^2, bias += grad,
 * x = sum_o grad loc + 2 x r v. Sums over rows by blocks of 64. */
static void NAME(dense_backward)(const Dense *a, int64_t replica, T *partial) {
  const int64_t in = a->in_features, out = a->out_features, rows = a->rows, weights = out * in;
  const T *loc = (const T *)a->loc + replica * weights;
  const T *variance = (const T *)a->variance + replica * weights;
  T *grad_loc = (T *)a->grad_loc + replica * weights;
  T *grad_scale = (T *)a->grad_log_scale + replica * weights;
  T *grad_bias = a->grad_bias ? (T *)a->grad_bias + replica * out : NULL;
  T *part_scale = partial + weights, *part_bias = partial + 2 * weights;
  memset(grad_loc, 0, (size_t)weights * sizeof(T));
  memset(grad_scale, 0, (size_t)weights * sizeof(T));
  if (grad_bias) memset(grad_bias, 0, (size_t)out * sizeof(T));
  for (int64_t first = 0; first < rows; first += 64) {
    const int64_t last = first + 64 < rows ? first + 64 : rows;
    memset(partial, 0, (size_t)(2 * weights + out) * sizeof(T));
    for (int64_t n = replica * rows + first; n < replica * rows + last; ++n) {
      const T *x = (const T *)a->x + n * in;
      T *grad_x = a->grad_x ? (T *)a->grad_x + n * in : NULL;
      if (grad_x) memset(grad_x, 0, (size_t)in * sizeof(T));
      for (int64_t o = 0; o < out; ++o) {
        const T grad = ((const T *)a->y)[n * out + o];
        const T twice = grad * ((const T *)a->eps)[n * out + o] / ((const T *)a->spread)[n * out + o];
        const T *m = loc + o * in, *v = variance + o * in;
        for (int64_t i = 0; i < in; ++i) {
          partial[o * in + i] += grad * x[i];
          part_scale[o * in + i] += twice * x[i] * x[i];
        }
        if (grad_x)
          for (int64_t i = 0; i < in; ++i) grad_x[i] += grad * m[i] + twice * x[i] * v[i];
        part_bias[o] += grad;
      }
    }
    for (int64_t i = 0; i < weights; ++i) grad_loc[i] += partial[i], grad_scale[i] += part_scale[i];
    if (grad_bias)
      for (int64_t o = 0; o < out; ++o) grad_bias[o] += part_bias[o];
  }
  for (int64_t i = 0; i < weights; ++i) grad_scale[i] *= variance[i];
}

static void NAME(dense_forward_task)(const Dense *a, int64_t replica, void *scratch) {
  (void)scratch;
  NAME(dense_forward)(a, replica);
}
static void NAME(dense_backward_task)(const Dense *a, int64_t replica, void *scratch) {
  NAME(dense_backward)(a, replica, scratch);
}
