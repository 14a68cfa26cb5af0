/* The AVX-512 intrinsics that the kernel uses, each as two AVX2 halves.
 *
 * Lets a processor without AVX-512 run that section of the kernel in tests: run.py compiles a copy
 * of the sources with this header in front and "avx512…" taken out of the section's target.
 */

#pragma once
#include <immintrin.h>

#define __builtin_cpu_supports(name) 1

/* always inline: arguments of 64 bytes on the stack lose their alignment under the sanitizer */
#define EMULATED static inline __attribute__((always_inline, target("avx2,fma"), unused))
#define HALVES(whole, half) \
  union {                   \
    whole all;              \
    half part[2];           \
  }

EMULATED __m512 emulated_fmadd_ps(__m512 a, __m512 b, __m512 c) {
  HALVES(__m512, __m256) x = {a}, y = {b}, z = {c};
  for (int i = 0; i < 2; ++i) x.part[i] = _mm256_fmadd_ps(x.part[i], y.part[i], z.part[i]);
  return x.all;
}

EMULATED __m512d emulated_fmadd_pd(__m512d a, __m512d b, __m512d c) {
  HALVES(__m512d, __m256d) x = {a}, y = {b}, z = {c};
  for (int i = 0; i < 2; ++i) x.part[i] = _mm256_fmadd_pd(x.part[i], y.part[i], z.part[i]);
  return x.all;
}

EMULATED void emulated_stream_ps(float *to, __m512 a) {
  HALVES(__m512, __m256) x = {a};
  for (int i = 0; i < 2; ++i) _mm256_stream_ps(to + 8 * i, x.part[i]);
}

EMULATED void emulated_stream_pd(double *to, __m512d a) {
  HALVES(__m512d, __m256d) x = {a};
  for (int i = 0; i < 2; ++i) _mm256_stream_pd(to + 4 * i, x.part[i]);
}

EMULATED __m512i emulated_mul_epu32(__m512i a, __m512i b) {
  HALVES(__m512i, __m256i) x = {a}, y = {b};
  for (int i = 0; i < 2; ++i) x.part[i] = _mm256_mul_epu32(x.part[i], y.part[i]);
  return x.all;
}

EMULATED __m512 emulated_sqrt_ps(__m512 a) {
  HALVES(__m512, __m256) x = {a};
  for (int i = 0; i < 2; ++i) x.part[i] = _mm256_sqrt_ps(x.part[i]);
  return x.all;
}

#define _mm512_fmadd_ps emulated_fmadd_ps
#define _mm512_fmadd_pd emulated_fmadd_pd
#undef _mm512_stream_ps
#undef _mm512_stream_pd
#define _mm512_stream_ps emulated_stream_ps
#define _mm512_stream_pd emulated_stream_pd
#define _mm512_mul_epu32 emulated_mul_epu32
#define _mm512_sqrt_ps emulated_sqrt_ps
