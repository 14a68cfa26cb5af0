/* Transform and product for one element type; takes back the names its parts define. */

#include "vectors.h"

#include "butterflies.h"

#include "exponential.h"

#include "product.h"

#include "tasks.h"

#include "gaussian.h"

#undef V
#undef LOAD
#undef STORE
#undef SHUFFLE
#undef FMA
#undef STREAM
#undef DIFFERENCE
#undef SCALED_SUM
#undef SCALED_DIFFERENCE
#undef LANE_1
#undef LANE_2
#undef LANE_4
#undef LANE_8
#undef LANE_LEVELS
#undef ALL_LANES
#undef BLOCK
#undef LEAF
#undef SHORT_ROWS_BLOCK
#undef IN_REGISTERS_BLOCK
#undef EACH_BLOCK
