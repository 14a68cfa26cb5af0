/* Transform and product for one element type; takes back the names its parts define. */

#include "vectors.h"

#include "butterflies.h"

#include "orders.h"

#include "exponential.h"

#include "product.h"

#include "tasks.h"

#include "gaussian.h"

#include "column.h"

#include "reflections.h"

#include "hartley.h"

#include "network.h"

#undef V
#undef LOAD
#undef STORE
#undef SHUFFLE
#undef FMA
#undef STREAM
#undef DIFFERENCE
#undef SCALED_SUM
#undef SCALED_DIFFERENCE
#undef SWAP_1
#undef SIGNS_1
#undef SWAP_2
#undef SIGNS_2
#undef SWAP_4
#undef SIGNS_4
#undef SWAP_8
#undef SIGNS_8
#undef LANE_1
#undef LANE_2
#undef LANE_4
#undef LANE_8
#undef LANE_LEVELS
#undef BLOCK
#undef LEAF
#undef SHORT_ROWS_BLOCK
#undef IN_REGISTERS_BLOCK
#undef EACH_BLOCK
