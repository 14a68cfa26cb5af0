/* All routines of one instruction set: noise, then transform and product in float and double.
 *
 * Included by kernel.c once per set with ISA (its name), VECTOR_BYTES and NREG (vectors that a
 * register run holds).
 */

#define ISA_NAME(x) CAT(x, ISA)
#include "noise.h"

#define T float
#define IS_FLOAT 1
#define INTEGER_T int32_t
#define SQUARE_ROOT __builtin_sqrtf
#define LANES (VECTOR_BYTES / 4)
#define NAME(x) CAT(CAT(x, f32), ISA)
#define NORMALS ISA_NAME(normals_f32)
#include "element.h"
#undef T
#undef IS_FLOAT
#undef INTEGER_T
#undef SQUARE_ROOT
#undef LANES
#undef NAME
#undef NORMALS

#define T double
#define INTEGER_T int64_t
#define SQUARE_ROOT __builtin_sqrt
#define LANES (VECTOR_BYTES / 8)
#define NAME(x) CAT(CAT(x, f64), ISA)
#define NORMALS ISA_NAME(normals_f64)
#include "element.h"
#undef T
#undef INTEGER_T
#undef SQUARE_ROOT
#undef LANES
#undef NAME
#undef NORMALS

#define ROUTINES(type, c_type)                                                          \
  {CAT(CAT(rows, type), ISA), CAT(CAT(row_part, type), ISA),                            \
   CAT(CAT(row_columns, type), ISA), CAT(CAT(normals, type), ISA),                      \
   CAT(CAT(forward_task, type), ISA), CAT(CAT(backward_task, type), ISA),               \
   CAT(CAT(reduce_task, type), ISA), CAT(CAT(scratch_entries, type), ISA),              \
   CAT(CAT(diagonal_kl, type), ISA), CAT(CAT(diagonal_kl_backward, type), ISA),         \
   CAT(CAT(dense_forward_task, type), ISA), CAT(CAT(dense_backward_task, type), ISA),   \
   CAT(CAT(column_forward_task, type), ISA), CAT(CAT(column_backward_task, type), ISA), \
   CAT(CAT(column_reduce, type), ISA), CAT(CAT(spread_lanes, type), ISA),               \
   CAT(CAT(levels_task, type), ISA), CAT(CAT(levels_backward_task, type), ISA),         \
   CAT(CAT(levels_scratch, type), ISA), CAT(CAT(hartley_task, type), ISA),              \
   CAT(CAT(draws_task, type), ISA), CAT(CAT(linear_task, type), ISA),                   \
   CAT(CAT(draws_scratch, type), ISA), CAT(CAT(linear_scratch, type), ISA),             \
   sizeof(c_type), 32768 / sizeof(c_type), VECTOR_BYTES}
#define STRING_(x) #x
#define STRING(x) STRING_(x)
static const InstructionSet ISA_NAME(instructions) = {
    STRING(ISA), ROUTINES(f32, float), ROUTINES(f64, double), ISA_NAME(words)};
#undef ROUTINES
#undef STRING_
#undef STRING
#undef ISA_NAME
#undef ISA
#undef VECTOR_BYTES
#undef NREG
