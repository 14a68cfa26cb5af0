/* exp of an array, for one element type: a vector polynomial in float, the C library in double.
 *
 * float: x = n ln 2 + r with |r| <= ln(2)/2, exp x = 2^n exp r, coefficients of Cephes (expf);
 * arguments are kept within [-87, 88], where the result is a normal number.
 */

#ifdef IS_FLOAT
typedef int32_t NAME(integers) __attribute__((vector_size(VECTOR_BYTES)));

#define SELECT(mask, a, b) ((V)(((NAME(integers))(a) & (mask)) | ((NAME(integers))(b) & ~(mask))))

INLINE V NAME(exp_vector)(V x) {
  const V zero = {0}, most = zero + 88.0f, least = zero - 87.0f;
  x = SELECT(x > most, most, x);
  x = SELECT(x < least, least, x);
  const V scaled = x * 1.44269504088896341f;
  const V half = SELECT(scaled < 0, zero - 0.5f, zero + 0.5f);
  const NAME(integers) n = __builtin_convertvector(scaled + half, NAME(integers));
  const V whole = __builtin_convertvector(n, V);
  const V r = (x - whole * 0.693359375f) - whole * -2.12194440e-4f;
  V p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  return p * (V)((n + 127) << 23);
}

#undef SELECT

static void NAME(exponentials)(const T *in, int64_t count, T *out) {
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) STORE(out + i, NAME(exp_vector)(LOAD(in + i)));
  if (i < count) {
    T rest[LANES] = {0};
    memcpy(rest, in + i, (size_t)(count - i) * sizeof(T));
    STORE(rest, NAME(exp_vector)(LOAD(rest)));
    memcpy(out + i, rest, (size_t)(count - i) * sizeof(T));
  }
}
#else
static void NAME(exponentials)(const T *in, int64_t count, T *out) {
  for (int64_t i = 0; i < count; ++i) out[i] = exp(in[i]);
}
#endif
