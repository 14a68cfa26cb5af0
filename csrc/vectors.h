/* One instruction set, one element type: the vector type and the operations on it.
 *
 * Included once per (instruction set, element type) with these macros set:
 *   T            float or double; IS_FLOAT is defined for float
 *   NAME(x)      x with a suffix unique to this pair
 *   LANES        elements in a vector register: 2, 4, 8 or 16
 *   VECTOR_BYTES LANES * sizeof(T)
 * and gives V (a vector), LOAD, STORE, STREAM and the butterflies between lanes.
 */

typedef T NAME(vector) __attribute__((vector_size(VECTOR_BYTES)));
typedef T NAME(unaligned) __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(T)), may_alias));
#define V NAME(vector)
#define LOAD(p) ((V)(*(const NAME(unaligned) *)(p)))
#define STORE(p, v) (*(NAME(unaligned) *)(p) = (NAME(unaligned))(v))

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(v, ...) __builtin_shufflevector(v, v, __VA_ARGS__)
#else
typedef INTEGER_T NAME(index) __attribute__((vector_size(VECTOR_BYTES)));
#define SHUFFLE(v, ...) __builtin_shuffle(v, (NAME(index)){__VA_ARGS__})
#endif

/* STREAM writes around the cache; its address must be a multiple of VECTOR_BYTES. */
#if VECTOR_BYTES == 64 && defined(IS_FLOAT)
#define FMA(a, b, c) ((V)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define STREAM(p, v) _mm512_stream_ps((p), (__m512)(v))
#elif VECTOR_BYTES == 64
#define FMA(a, b, c) ((V)_mm512_fmadd_pd((__m512d)(a), (__m512d)(b), (__m512d)(c)))
#define STREAM(p, v) _mm512_stream_pd((p), (__m512d)(v))
#elif VECTOR_BYTES == 32 && defined(IS_FLOAT)
#define FMA(a, b, c) ((V)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define STREAM(p, v) _mm256_stream_ps((p), (__m256)(v))
#elif VECTOR_BYTES == 32
#define FMA(a, b, c) ((V)_mm256_fmadd_pd((__m256d)(a), (__m256d)(b), (__m256d)(c)))
#define STREAM(p, v) _mm256_stream_pd((p), (__m256d)(v))
#else
#define FMA(a, b, c) ((a) * (b) + (c))
#define STREAM(p, v) STORE(p, v)
#endif

#if VECTOR_BYTES > 16
/* Some processors add on two units and multiply-add on two others: use all four. */
#define DIFFERENCE(a, b) FMA(b, ((V){0} - 1), a)
#define SCALED_SUM(a, s, b) FMA(a, s, b)
#define SCALED_DIFFERENCE(a, s, b) FMA(a, s, -(b))
#else
#define DIFFERENCE(a, b) ((a) - (b))
#define SCALED_SUM(a, s, b) ((a) * (s) + (b))
#define SCALED_DIFFERENCE(a, s, b) ((a) * (s) - (b))
#endif

/* SWAP_h exchanges lanes whose number differs in bit h; a level does the same with sums: lane i
 * becomes v[i & ~h] + v[i | h] or, where i has bit h, v[i & ~h] - v[i | h]. */
#if LANES == 16
#define SWAP_1(v) SHUFFLE(v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)
#define SIGNS_1 ((V){1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1})
#define SWAP_2(v) SHUFFLE(v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)
#define SIGNS_2 ((V){1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1})
#define SWAP_4(v) SHUFFLE(v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)
#define SIGNS_4 ((V){1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1})
#define SWAP_8(v) SHUFFLE(v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)
#define SIGNS_8 ((V){1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1})
#elif LANES == 8
#define SWAP_1(v) SHUFFLE(v, 1, 0, 3, 2, 5, 4, 7, 6)
#define SIGNS_1 ((V){1, -1, 1, -1, 1, -1, 1, -1})
#define SWAP_2(v) SHUFFLE(v, 2, 3, 0, 1, 6, 7, 4, 5)
#define SIGNS_2 ((V){1, 1, -1, -1, 1, 1, -1, -1})
#define SWAP_4(v) SHUFFLE(v, 4, 5, 6, 7, 0, 1, 2, 3)
#define SIGNS_4 ((V){1, 1, 1, 1, -1, -1, -1, -1})
#elif LANES == 4
#define SWAP_1(v) SHUFFLE(v, 1, 0, 3, 2)
#define SIGNS_1 ((V){1, -1, 1, -1})
#define SWAP_2(v) SHUFFLE(v, 2, 3, 0, 1)
#define SIGNS_2 ((V){1, 1, -1, -1})
#elif LANES == 2
#define SWAP_1(v) SHUFFLE(v, 1, 0)
#define SIGNS_1 ((V){1, -1})
#endif

#define LANE_1(v) FMA(v, SIGNS_1, SWAP_1(v))
#if LANES > 2
#define LANE_2(v) FMA(v, SIGNS_2, SWAP_2(v))
#else
#define SWAP_2(v) (v)
#define LANE_2(v) (v)
#endif
#if LANES > 4
#define LANE_4(v) FMA(v, SIGNS_4, SWAP_4(v))
#else
#define SWAP_4(v) (v)
#define LANE_4(v) (v)
#endif
#if LANES > 8
#define LANE_8(v) FMA(v, SIGNS_8, SWAP_8(v))
#else
#define SWAP_8(v) (v)
#define LANE_8(v) (v)
#endif
