/* The C kernel of whvi: Walsh-Hadamard transform, structured product, counter-based normals.
 *
 * Plain C over raw pointers: no torch header, CPython's limited API, one translation unit. Each
 * instruction set is a section compiled with its own target options; the best one the processor
 * has is chosen when the module is loaded (or WHVI_ISA names one).
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dlfcn.h>
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define INLINE static inline __attribute__((always_inline, unused))
#define CAT_(a, b) a##_##b
#define CAT(a, b) CAT_(a, b)

/* The sums over rows that a backward pass makes. */
enum { INTO_S1, INTO_S2, INTO_G, INTO_SCALE, INTO_BIAS, NUM_SUMS };

/* A structured product over (replicas, draws, rows, blocks). Strides are in elements, 0 where an
 * operand is shared. With `scale`, g is the mean and scale (laid out as g) the standard deviation
 * of a normal from which every row draws its own gains with noise eps. */
typedef struct {
  int64_t replicas, draws, rows, blocks, size, in_features, out_features;
  const void *x, *s1, *g, *s2, *scale, *bias;
  int64_t x_r, x_s, x_n;
  int64_t s1_r, s1_s, s1_k;
  int64_t g_r, g_s, g_n, g_k;
  int64_t s2_r, s2_s, s2_k;
  int64_t bias_r;
  int64_t log_scale; /* whether `scale` holds the logarithm of the standard deviation */
  uint64_t seed;
  void *eps; /* (replicas, draws, rows, blocks, size): the noise kept, or NULL: made again */
  void *y;   /* the output, or (backward) the gradient that came in */
  int64_t y_r, y_s, y_n, y_k;
  void *grad_x, *grad_s1, *grad_g, *grad_s2, *grad_scale, *grad_bias;
  void *wanted[NUM_SUMS]; /* where each sum over rows goes in the end, or NULL */
  void *direct[NUM_SUMS]; /* the same where a task may add into it at once, else NULL */
  void *partials;
  int64_t chunk_rows, chunks;
} Product;

/* A dense layer with independent Gaussian weights, one replica after the other. */
typedef struct {
  int64_t replicas, rows, in_features, out_features;
  const void *x, *loc, *log_scale, *bias, *eps;
  void *y;                 /* the output, or (backward) the gradient that came in */
  void *variance, *spread; /* written forward, read backward */
  void *grad_x, *grad_loc, *grad_log_scale, *grad_bias;
  double least; /* of the variance of an output: keeps its root differentiable */
} Dense;

#define COLUMN_PIECE 16384 /* weights that are made at a time, unless a row of W is longer */

/* A single output that takes its weights from vec(W) of one block, for each replica. */
typedef struct {
  int64_t replicas, rows, size, in_features;
  const void *x, *s1, *c, *s2;
  void *y; /* the output, or (backward) the gradient that came in */
  void *grad_x, *grad_s1, *grad_c, *grad_s2;
  void *partials; /* sums of a task: y, or the gradients of c and s2 */
  int64_t chunk_rows, chunks; /* rows of W in a task, tasks of a replica */
} Column;

/* Levels of reflections of rows, for each replica, upwards or (reverse) downwards. */
typedef struct {
  int64_t replicas, rows, size, levels, reverse;
  const void *cosines, *sines; /* (replicas, levels, size / 2) */
  const void *x;               /* the input, or (backward) the gradient that came in */
  void *y;                     /* the output */
  void *grad_x, *partials;     /* gradients; that of the angles (replicas, chunks, levels, size / 2) */
  void *lanes;                 /* coefficients of levels inside a vector, spread */
  int64_t chunk_rows, chunks;
} Levels;

/* Hartley transforms of rows down to bit-reversed order, or up from it; with `turns`, cosine ones. */
typedef struct {
  int64_t rows, size, up;
  const void *x, *waves, *turns;
  void *y;
} Hartley;

/* The networks of an ensemble, in the order in which Python writes the table: sizes and addresses. */
typedef struct {
  int64_t in_features, out_features, size, blocks, is_sine;
  int64_t s1, g, s2, bias; /* (R, K D), (R, S, K D), (R, K D), (R, out) */
} NetworkLayer;

typedef struct {
  int64_t members, draws, in_features, out_features, num_layers;
  int64_t weight, bias; /* of the last layer, (R, S, F, in) and (R, F) */
  int64_t parameters, displacements, columns, moves; /* (R, P, columns); zeros after the displacements */
  NetworkLayer layers[];
} Network;

/* What the way back through a linearised network needs of each layer. */
enum { LAYER_INPUT, LAYER_U, LAYER_T, LAYER_SLOPE, NUM_LAYER_STATES };

/* Rows (N, in), or x_r entries from one member to the next, and what is to be known of them. */
typedef struct {
  const Network *network;
  int64_t rows, x_r, outputs, kept, at_once;
  const void *x;
  void *f, *variance, *changes;
} NetworkRows;

typedef struct {
  void (*rows)(const void *, void *, size_t, size_t, double, void *);
  void (*row_part)(const void *, void *, size_t, size_t, double);
  void (*row_columns)(const void *, void *, size_t, size_t, size_t, double);
  void (*normals)(uint64_t, uint64_t, size_t, void *);
  void (*forward_task)(const Product *, int64_t, void *);
  void (*backward_task)(const Product *, int64_t, void *);
  void (*reduce_task)(const Product *, int64_t, void *);
  size_t (*scratch_entries)(const Product *);
  double (*diagonal_kl)(const void *, const void *, int64_t, double *);
  void (*diagonal_kl_backward)(const void *, const void *, int64_t, double, double, void *, void *);
  void (*dense_forward_task)(const Dense *, int64_t, void *);
  void (*dense_backward_task)(const Dense *, int64_t, void *);
  void (*column_forward_task)(const Column *, int64_t, void *);
  void (*column_backward_task)(const Column *, int64_t, void *);
  void (*column_reduce)(const Column *, int64_t, int64_t, int64_t, void *);
  void (*spread_lanes)(const void *, const void *, int64_t, void *);
  void (*levels_task)(const Levels *, int64_t, void *);
  void (*levels_backward_task)(const Levels *, int64_t, void *);
  size_t (*levels_scratch)(const Levels *, int);
  void (*hartley_task)(const Hartley *, int64_t, void *);
  void (*draws_task)(const NetworkRows *, int64_t, void *);
  void (*linear_task)(const NetworkRows *, int64_t, void *);
  size_t (*draws_scratch)(const NetworkRows *);
  size_t (*linear_scratch)(const NetworkRows *);
  size_t element_bytes, leaf, vector_bytes;
} Routines;

typedef struct {
  const char *name;
  Routines f32, f64;
  void (*words)(uint64_t, uint64_t, size_t, uint32_t *);
} InstructionSet;

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#define HAS_X86 1
#endif

#include "threads.h"

/* m of a size m 2^k: 1, or 12, 20, 28 for the odd parts 3, 5, 7. */
INLINE size_t order_of(size_t size) {
  const size_t odd = size ? size >> __builtin_ctzll(size) : 1;
  return odd == 1 ? 1 : 4 * odd;
}

#if HAS_X86
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")
#define ISA avx512
#define VECTOR_BYTES 64
#define NREG 16
#include "isa.h"
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define ISA avx2
#define VECTOR_BYTES 32
#define NREG 8
#include "isa.h"
#pragma GCC pop_options
#endif

#define ISA baseline
#define VECTOR_BYTES 16
#define NREG 8
#include "isa.h"

static const InstructionSet *const instruction_sets[] = {
#if HAS_X86
    &instructions_avx512,
    &instructions_avx2,
#endif
    &instructions_baseline,
};
#define NUM_SETS (sizeof instruction_sets / sizeof *instruction_sets)

static const InstructionSet *active;

static int processor_has(const char *name) {
#if HAS_X86
  if (!strcmp(name, "avx512"))
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("fma");
  if (!strcmp(name, "avx2")) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  return !strcmp(name, "baseline");
}

static const InstructionSet *find_set(const char *name) {
  for (size_t i = 0; i < NUM_SETS; ++i)
    if (processor_has(instruction_sets[i]->name) && (!name || !strcmp(name, instruction_sets[i]->name)))
      return instruction_sets[i];
  return NULL;
}

/* ---- the transform ------------------------------------------------------------------------ */

#define SERIAL_ELEMENTS 32768          /* below this a second thread costs more than it gives */
#define TASK_ELEMENTS 16384            /* what a thread takes at a time */
#define STREAM_BYTES ((size_t)16 << 20) /* outputs from here on are written around the cache */

typedef struct {
  const Routines *f;
  const char *src;
  char *dst;
  size_t rows, size, parts, rows_per_task, columns_per_task;
  double scale;
  int around;
} Transform;

static void transform_rows(void *context, int64_t task, void *scratch) {
  const Transform *t = context;
  const size_t first = (size_t)task * t->rows_per_task, left = t->rows - first;
  const size_t rows = left < t->rows_per_task ? left : t->rows_per_task;
  const size_t at = first * t->size * t->f->element_bytes;
  t->f->rows(t->src + at, t->dst + at, rows, t->size, t->scale, t->around ? scratch : NULL);
#if HAS_X86
  if (t->around) _mm_sfence();
#endif
}

static void transform_part(void *context, int64_t task, void *scratch) {
  const Transform *t = context;
  (void)scratch;
  const size_t row = (size_t)task / t->parts * t->size * t->f->element_bytes;
  const int is_last = order_of(t->size) > 1;
  t->f->row_part((is_last ? t->dst : t->src) + row, t->dst + row, t->size, (size_t)task % t->parts,
                 is_last ? t->scale : 1.0);
}

static void transform_columns(void *context, int64_t task, void *scratch) {
  const Transform *t = context;
  (void)scratch;
  const size_t per_row = t->size / t->parts / t->columns_per_task;
  const size_t begin = (size_t)task % per_row * t->columns_per_task;
  const size_t row = (size_t)task / per_row * t->size * t->f->element_bytes;
  t->f->row_columns(t->src + row, t->dst + row, t->size, begin, begin + t->columns_per_task, t->scale);
}

static int transform(const Routines *f, const char *src, char *dst, size_t rows, size_t size,
                     double scale, int64_t threads) {
  const size_t elements = rows * size, order = order_of(size), parts = order == 1 ? 8 : order;
  Transform t = {f, src, dst, rows, size, parts, 1, 0, scale, 0};
  if (elements < SERIAL_ELEMENTS) threads = 1;
  if (threads > 1 && rows < (size_t)threads && size >= 16 * f->leaf) {
    t.columns_per_task = f->leaf / 8;
    const int64_t columns = (int64_t)(rows * (size / parts / t.columns_per_task));
    /* H_m comes before the levels of 2^k, as in a row that has one thread */
    if (order > 1 && run_tasks(transform_columns, &t, columns, 0, threads)) return -1;
    if (run_tasks(transform_part, &t, (int64_t)(rows * parts), 0, threads)) return -1;
    return order > 1 ? 0 : run_tasks(transform_columns, &t, columns, 0, threads);
  }
  if (threads > 1) {
    t.rows_per_task = size < TASK_ELEMENTS ? TASK_ELEMENTS / size : 1;
  } else {
    t.rows_per_task = rows ? rows : 1;
  }
  t.around = src != dst && elements * f->element_bytes >= STREAM_BYTES && size <= f->leaf &&
             order == 1 && size * f->element_bytes >= f->vector_bytes && (uintptr_t)dst % f->vector_bytes == 0;
  const int64_t tasks = (int64_t)((rows + t.rows_per_task - 1) / t.rows_per_task);
  return run_tasks(transform_rows, &t, tasks, t.around ? size * f->element_bytes : 0, threads);
}

/* ---- the product -------------------------------------------------------------------------- */

typedef struct {
  const Product *product;
  void (*task)(const Product *, int64_t, void *);
} ProductTeam;

static void product_task(void *context, int64_t task, void *scratch) {
  const ProductTeam *team = context;
  team->task(team->product, task, scratch);
}

/* Rows per chunk: enough work for a task, few enough for accurate sums, and so many that the
 * partial sums of one problem stay below 2^22 elements however long the rows are. */
static void choose_chunks(Product *p) {
  const int64_t width = p->blocks * p->size;
  int64_t rows = TASK_ELEMENTS / width;
  if (rows > 64) rows = 64;
  if (rows < 1) rows = 1;
  int64_t most = ((int64_t)1 << 22) / (NUM_SUMS * width);
  if (most < 2) most = 2;
  if ((p->rows + rows - 1) / rows > most) rows = (p->rows + most - 1) / most;
  p->chunk_rows = rows;
  p->chunks = p->rows ? (p->rows + rows - 1) / rows : 1;
}

/* Decide where sums are formed; 1 if some need partial sums. */
static int choose_sums(Product *p) {
  void *const wanted[NUM_SUMS] = {p->grad_s1, p->grad_s2, p->g_n ? NULL : p->grad_g, p->grad_scale,
                                  p->grad_bias};
  const int trimmed = p->out_features % p->size != 0;
  int partial = 0;
  for (int kind = 0; kind < NUM_SUMS; ++kind) {
    p->wanted[kind] = wanted[kind];
    p->direct[kind] = p->chunks == 1 && !(kind == INTO_BIAS && trimmed) ? wanted[kind] : NULL;
    partial |= wanted[kind] != NULL && p->direct[kind] == NULL;
  }
  return partial;
}

static int product(const Routines *f, Product *p, int backward, int64_t threads) {
  if (p->replicas * p->draws * p->blocks * p->size == 0) return 0;
  choose_chunks(p);
  const int64_t problems = p->replicas * p->draws, tasks = problems * p->chunks;
  if (problems * p->rows * p->blocks * p->size < SERIAL_ELEMENTS) threads = 1;
  const size_t scratch = f->scratch_entries(p) * f->element_bytes;
  ProductTeam team = {p, f->forward_task};
  if (!backward) return run_tasks(product_task, &team, tasks, scratch, threads);
  if (choose_sums(p)) {
    p->partials = malloc((size_t)(tasks * NUM_SUMS * p->blocks * p->size) * f->element_bytes + 1);
    if (!p->partials) return -1;
  }
  team.task = f->backward_task;
  int status = run_tasks(product_task, &team, tasks, scratch, threads);
  team.task = f->reduce_task;
  if (!status && (p->partials || p->log_scale))
    status = run_tasks(product_task, &team, problems, scratch, threads);
  free(p->partials);
  return status;
}

/* ---- Python ------------------------------------------------------------------------------- */

static int read_integers(PyObject *const *args, Py_ssize_t given, Py_ssize_t wanted, int64_t *values) {
  if (given != wanted) {
    PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", wanted, given);
    return -1;
  }
  for (Py_ssize_t i = 0; i < wanted; ++i) {
    values[i] = PyLong_AsLongLong(args[i]);
    if (values[i] == -1 && PyErr_Occurred()) return -1;
  }
  return 0;
}

static const Routines *routines(int64_t element_bytes) {
  return element_bytes == 8 ? &active->f64 : &active->f32;
}

static PyObject *finish(int status) {
  if (status) return PyErr_NoMemory();
  Py_RETURN_NONE;
}

/* fwht(element_bytes, threads, src, dst, rows, size, normalize) */
static PyObject *py_fwht(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  int64_t v[7];
  (void)self;
  if (read_integers(args, count, 7, v)) return NULL;
  const double scale = v[6] ? 1.0 / __builtin_sqrt((double)v[5]) : 1.0;
  int status;
  Py_BEGIN_ALLOW_THREADS;
  status = transform(routines(v[0]), (const char *)(intptr_t)v[2], (char *)(intptr_t)v[3],
                     (size_t)v[4], (size_t)v[5], scale, v[1]);
  Py_END_ALLOW_THREADS;
  return finish(status);
}

#define POINTER(value) ((void *)(intptr_t)(value))

/* ---- tensors as arguments: to read their addresses here takes half as long as in Python ---- */

enum { X, S1, G, S2, SCALE, BIAS, NUM_OPERANDS };

static PyObject *contiguous_name, *data_ptr_name;

/* A contiguous form of `tensor` (itself, if it is) and its address; NULL for None. */
static int open_tensor(PyObject *tensor, PyObject **owner, void **address) {
  if (tensor == Py_None) return 0;
  *owner = PyObject_CallMethodObjArgs(tensor, contiguous_name, NULL);
  if (!*owner) return -1;
  PyObject *number = PyObject_CallMethodObjArgs(*owner, data_ptr_name, NULL);
  if (!number) return -1;
  *address = PyLong_AsVoidPtr(number);
  Py_DECREF(number);
  return PyErr_Occurred() ? -1 : 0;
}

/* Open `count` tensors; the rest up to `most` are as good as None. */
static int open_tensors(PyObject *const *tensors, Py_ssize_t count, Py_ssize_t most, PyObject **owners,
                        void **addresses) {
  if (count < 0 || count > most) {
    PyErr_Format(PyExc_TypeError, "expected up to %zd tensors, got %zd", most, count);
    return -1;
  }
  for (Py_ssize_t i = 0; i < count; ++i)
    if (open_tensor(tensors[i], owners + i, addresses + i)) return -1;
  return 0;
}

/* Read a list of gradients, which are contiguous and stay alive by their list. */
static int open_gradients(PyObject *gradients, void **addresses) {
  if (!PyList_Check(gradients)) {
    PyErr_SetString(PyExc_TypeError, "expected a list of tensors for the gradients");
    return -1;
  }
  const Py_ssize_t count = PyList_Size(gradients);
  PyObject *tensors[NUM_OPERANDS], *owners[NUM_OPERANDS] = {0};
  for (Py_ssize_t i = 0; i < count && i < NUM_OPERANDS; ++i) tensors[i] = PyList_GetItem(gradients, i);
  int status = open_tensors(tensors, count, NUM_OPERANDS, owners, addresses);
  for (int i = 0; i < NUM_OPERANDS; ++i) {
    if (!status && owners[i] && owners[i] != tensors[i]) {
      PyErr_SetString(PyExc_ValueError, "the tensors for the gradients must be contiguous");
      status = -1;
    }
    Py_XDECREF(owners[i]);
  }
  return status;
}

/* The sizes and strides that a layout lists: sizes, strides of x, s1, g, s2, y, bias, log_scale. */
static Product product_of_layout(const int64_t *t) {
  return (Product){
      .replicas = t[0], .draws = t[1], .rows = t[2], .blocks = t[3], .size = t[4],
      .in_features = t[5], .out_features = t[6],
      .x_r = t[7], .x_s = t[8], .x_n = t[9],
      .s1_r = t[10], .s1_s = t[11], .s1_k = t[12],
      .g_r = t[13], .g_s = t[14], .g_n = t[15], .g_k = t[16],
      .s2_r = t[17], .s2_s = t[18], .s2_k = t[19],
      .y_r = t[20], .y_s = t[21], .y_n = t[22], .y_k = t[23],
      .bias_r = t[24], .log_scale = t[25],
  };
}

#define NUM_NUMBERS 4

/* product_forward(element_bytes, threads, address of the layout, seed, y, noise, x, s1, g, s2, scale,
 * bias) and product_backward with the gradient in place of y and, after the noise, a list of tensors
 * for the gradients of x, s1, g, s2, scale and bias. None where there is none; the last may be left
 * out. What is written to must be contiguous. */
static PyObject *run_product(PyObject *const *args, Py_ssize_t count, int backward) {
  const int first = NUM_NUMBERS + 2 + backward;
  int64_t v[NUM_NUMBERS];
  if (count < first) return PyErr_Format(PyExc_TypeError, "expected %d arguments or more, got %zd", first, count);
  if (read_integers(args, NUM_NUMBERS, NUM_NUMBERS, v)) return NULL;
  PyObject *owners[2 + NUM_OPERANDS] = {0};
  void *results[2] = {0}, *operands[NUM_OPERANDS] = {0}, *gradients[NUM_OPERANDS] = {0};
  int status = -1;
  if (open_tensors(args + NUM_NUMBERS, 2, 2, owners, results) ||
      open_tensors(args + first, count - first, NUM_OPERANDS, owners + 2, operands) ||
      (backward && open_gradients(args[first - 1], gradients)))
    goto close;
  Product p = product_of_layout(POINTER(v[2]));
  p.seed = (uint64_t)v[3], p.y = results[0], p.eps = results[1];
  p.x = operands[X], p.s1 = operands[S1], p.g = operands[G], p.s2 = operands[S2];
  p.scale = operands[SCALE], p.bias = operands[BIAS];
  p.grad_x = gradients[X], p.grad_s1 = gradients[S1], p.grad_g = gradients[G];
  p.grad_s2 = gradients[S2], p.grad_scale = gradients[SCALE], p.grad_bias = gradients[BIAS];
  Py_BEGIN_ALLOW_THREADS;
  status = product(routines(v[0]), &p, backward, v[1]);
  Py_END_ALLOW_THREADS;
  if (status) PyErr_NoMemory();
close:
  for (int i = 0; i < 2 + NUM_OPERANDS; ++i) Py_XDECREF(owners[i]);
  if (status) return NULL;
  Py_RETURN_NONE;
}

static PyObject *py_product_forward(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  (void)self;
  return run_product(args, count, 0);
}

static PyObject *py_product_backward(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  (void)self;
  return run_product(args, count, 1);
}

/* diagonal_kl(element_bytes, replicas, n, loc, log_scale, variances, values): adds the KL of each
 * replica to values[r] (double); variances[r] (double) <= 0 is replaced by the minimiser */
static PyObject *py_diagonal_kl(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  int64_t v[7];
  (void)self;
  if (read_integers(args, count, 7, v)) return NULL;
  double *variance = POINTER(v[5]), *value = POINTER(v[6]);
  Py_BEGIN_ALLOW_THREADS;
  for (int64_t r = 0; r < v[1]; ++r) {
    const int64_t at = r * v[2] * v[0];
    value[r] += routines(v[0])->diagonal_kl((char *)POINTER(v[3]) + at, (char *)POINTER(v[4]) + at,
                                            v[2], variance + r);
  }
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

/* diagonal_kl_backward(element_bytes, replicas, n, loc, log_scale, variances, grads, grad_loc,
 * grad_log_scale): adds to the gradients; variances and grads are doubles, one per replica */
static PyObject *py_diagonal_kl_backward(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  int64_t v[9];
  (void)self;
  if (read_integers(args, count, 9, v)) return NULL;
  const double *variance = POINTER(v[5]), *grad = POINTER(v[6]);
  Py_BEGIN_ALLOW_THREADS;
  for (int64_t r = 0; r < v[1]; ++r) {
    const int64_t at = r * v[2] * v[0];
    routines(v[0])->diagonal_kl_backward((char *)POINTER(v[3]) + at, (char *)POINTER(v[4]) + at, v[2],
                                         variance[r], grad[r], (char *)POINTER(v[7]) + at,
                                         (char *)POINTER(v[8]) + at);
  }
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

typedef struct {
  const Dense *dense;
  void (*task)(const Dense *, int64_t, void *);
} DenseTeam;

static void dense_task(void *context, int64_t replica, void *scratch) {
  const DenseTeam *team = context;
  team->task(team->dense, replica, scratch);
}

/* element_bytes, threads, replicas, rows, in, out, then pointers to x, loc, log_scale, bias, eps,
 * y (or its gradient), variance, spread and, backward, to the gradients of x, loc, log_scale and
 * bias; 0 where there is none */
static PyObject *run_dense(PyObject *const *args, Py_ssize_t count, int backward) {
  int64_t v[18];
  if (read_integers(args, count, backward ? 18 : 14, v)) return NULL;
  Dense d = {
      .replicas = v[2], .rows = v[3], .in_features = v[4], .out_features = v[5],
      .x = POINTER(v[6]), .loc = POINTER(v[7]), .log_scale = POINTER(v[8]), .bias = POINTER(v[9]),
      .eps = POINTER(v[10]), .y = POINTER(v[11]), .variance = POINTER(v[12]), .spread = POINTER(v[13]),
      .least = v[0] == 8 ? sqrt(DBL_MIN) : sqrt((double)FLT_MIN),
  };
  if (backward) {
    d.grad_x = POINTER(v[14]), d.grad_loc = POINTER(v[15]), d.grad_log_scale = POINTER(v[16]);
    d.grad_bias = POINTER(v[17]);
  }
  const Routines *f = routines(v[0]);
  const int64_t work = d.replicas * d.rows * d.in_features * d.out_features;
  const DenseTeam team = {&d, backward ? f->dense_backward_task : f->dense_forward_task};
  const size_t scratch = (size_t)(d.out_features * (2 * d.in_features + 1)) * f->element_bytes;
  int status;
  Py_BEGIN_ALLOW_THREADS;
  status = run_tasks(dense_task, (void *)&team, d.replicas, backward ? scratch : 0,
                    work < SERIAL_ELEMENTS ? 1 : v[1]);
  Py_END_ALLOW_THREADS;
  return finish(status);
}

static PyObject *py_dense_forward(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  (void)self;
  return run_dense(args, count, 0);
}

static PyObject *py_dense_backward(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  (void)self;
  return run_dense(args, count, 1);
}

typedef struct {
  const Column *column;
  void (*task)(const Column *, int64_t, void *);
} ColumnTeam;

static void column_task(void *context, int64_t task, void *scratch) {
  const ColumnTeam *team = context;
  team->task(team->column, task, scratch);
}

#define COLUMN_CHUNKS 8 /* of a replica, at most */

static int column(const Routines *f, Column *a, int backward, int64_t threads) {
  const int64_t used = (a->in_features + a->size - 1) / a->size;
  const int64_t piece = a->size < COLUMN_PIECE ? COLUMN_PIECE / a->size : 1;
  a->chunk_rows = (used + COLUMN_CHUNKS - 1) / COLUMN_CHUNKS;
  if (a->chunk_rows < piece) a->chunk_rows = piece;
  a->chunks = (used + a->chunk_rows - 1) / a->chunk_rows;
  const int64_t tasks = a->replicas * a->chunks, width = backward ? 2 * a->size : a->rows;
  a->partials = malloc((size_t)(tasks * width) * f->element_bytes + 1);
  if (!a->partials) return -1;
  ColumnTeam team = {a, backward ? f->column_backward_task : f->column_forward_task};
  if (a->replicas * (a->rows + 1) * a->in_features < SERIAL_ELEMENTS) threads = 1;
  const int status = run_tasks(column_task, &team, tasks, (size_t)(piece * a->size) * f->element_bytes, threads);
  if (!status && !backward) f->column_reduce(a, 0, width, width, a->y);
  if (!status && backward) {
    f->column_reduce(a, 0, a->size, width, a->grad_c);
    f->column_reduce(a, a->size, a->size, width, a->grad_s2);
  }
  free(a->partials);
  return status;
}

/* element_bytes, threads, replicas, rows, size, in_features, then pointers to x, s1, c, s2, y (or
 * its gradient) and, backward, to the gradients of x (or 0), s1 (zeros), c and s2 */
static PyObject *run_column(PyObject *const *args, Py_ssize_t count, int backward) {
  int64_t v[15];
  if (read_integers(args, count, backward ? 15 : 11, v)) return NULL;
  Column a = {
      .replicas = v[2], .rows = v[3], .size = v[4], .in_features = v[5],
      .x = POINTER(v[6]), .s1 = POINTER(v[7]), .c = POINTER(v[8]), .s2 = POINTER(v[9]),
      .y = POINTER(v[10]),
  };
  if (backward) {
    a.grad_x = POINTER(v[11]), a.grad_s1 = POINTER(v[12]), a.grad_c = POINTER(v[13]);
    a.grad_s2 = POINTER(v[14]);
  }
  int status;
  Py_BEGIN_ALLOW_THREADS;
  status = column(routines(v[0]), &a, backward, v[1]);
  Py_END_ALLOW_THREADS;
  return finish(status);
}

static PyObject *py_column_forward(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  (void)self;
  return run_column(args, count, 0);
}

static PyObject *py_column_backward(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  (void)self;
  return run_column(args, count, 1);
}

typedef struct {
  const Levels *levels;
  void (*task)(const Levels *, int64_t, void *);
} LevelsTeam;

static void levels_task(void *context, int64_t task, void *scratch) {
  const LevelsTeam *team = context;
  team->task(team->levels, task, scratch);
}

static int levels(const Routines *f, Levels *a, int backward, int64_t threads) {
  const int64_t half = a->levels * a->size / 2;
  size_t lane_levels = 0;
  while (((size_t)2 << lane_levels) * f->element_bytes <= f->vector_bytes) ++lane_levels;
  const size_t spread = 2 * lane_levels * (size_t)a->size * f->element_bytes;
  a->chunks = (a->rows + a->chunk_rows - 1) / a->chunk_rows;
  if (posix_memalign(&a->lanes, 64, (size_t)a->replicas * spread + 64)) return -1;
  for (int64_t r = 0; r < a->replicas; ++r) {
    const size_t at = (size_t)(r * half) * f->element_bytes;
    f->spread_lanes((const char *)a->cosines + at, (const char *)a->sines + at, a->size,
                    (char *)a->lanes + (size_t)r * spread);
  }
  const LevelsTeam team = {a, backward ? f->levels_backward_task : f->levels_task};
  if (a->replicas * a->rows * a->size < SERIAL_ELEMENTS) threads = 1;
  const int status = run_tasks(levels_task, (void *)&team, a->replicas * a->chunks,
                               f->levels_scratch(a, backward) * f->element_bytes, threads);
  free(a->lanes);
  return status;
}

/* element_bytes, threads, replicas, rows, levels, reverse, rows of a chunk, then pointers to cosines,
 * sines, x (backward: the gradient of y), y and, backward, to the gradient of x and to partial sums
 * (replicas, chunks, levels, size / 2) of that of the angles. A row has 16 entries or more. */
static PyObject *run_levels(PyObject *const *args, Py_ssize_t count, int backward) {
  int64_t v[13];
  if (read_integers(args, count, backward ? 13 : 11, v)) return NULL;
  Levels a = {
      .replicas = v[2], .rows = v[3], .levels = v[4], .size = (int64_t)1 << v[4], .reverse = v[5],
      .chunk_rows = v[6], .cosines = POINTER(v[7]), .sines = POINTER(v[8]), .x = POINTER(v[9]),
      .y = POINTER(v[10]),
  };
  if (backward) a.grad_x = POINTER(v[11]), a.partials = POINTER(v[12]);
  int status;
  Py_BEGIN_ALLOW_THREADS;
  status = levels(routines(v[0]), &a, backward, v[1]);
  Py_END_ALLOW_THREADS;
  return finish(status);
}

static PyObject *py_butterfly_forward(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  (void)self;
  return run_levels(args, count, 0);
}

static PyObject *py_butterfly_backward(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  (void)self;
  return run_levels(args, count, 1);
}

typedef struct {
  const Hartley *rows;
  void (*task)(const Hartley *, int64_t, void *);
} HartleyTeam;

static void hartley_task(void *context, int64_t task, void *scratch) {
  const HartleyTeam *team = context;
  team->task(team->rows, task, scratch);
}

/* hartley(element_bytes, threads, rows, size, up, x, waves, turns or 0, y); size is 16 or more */
static PyObject *py_hartley(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  int64_t v[9];
  (void)self;
  if (read_integers(args, count, 9, v)) return NULL;
  const Routines *f = routines(v[0]);
  const Hartley a = {.rows = v[2], .size = v[3], .up = v[4], .x = POINTER(v[5]),
                     .waves = POINTER(v[6]), .turns = POINTER(v[7]), .y = POINTER(v[8])};
  const HartleyTeam team = {&a, f->hartley_task};
  const int64_t lanes = (int64_t)(f->vector_bytes / f->element_bytes);
  int status;
  Py_BEGIN_ALLOW_THREADS;
  status = run_tasks(hartley_task, (void *)&team, (a.rows + lanes - 1) / lanes,
                     (size_t)a.size * f->vector_bytes, a.rows * a.size < SERIAL_ELEMENTS ? 1 : v[1]);
  Py_END_ALLOW_THREADS;
  return finish(status);
}

#define NETWORK_ROWS 24 /* of a task, divided by the outputs that are differentiated */

typedef struct {
  const NetworkRows *rows;
  void (*task)(const NetworkRows *, int64_t, void *);
} NetworkTeam;

static void network_task(void *context, int64_t task, void *scratch) {
  const NetworkTeam *team = context;
  team->task(team->rows, task, scratch);
}

/* element_bytes, threads, address of the table, rows, entries of x from one member to the next, x, f, and
 * for linearised networks the outputs to differentiate, how many changes to keep, variance, changes or 0 */
static PyObject *run_network(PyObject *const *args, Py_ssize_t count, int is_linear) {
  int64_t v[11] = {0};
  if (read_integers(args, count, is_linear ? 11 : 7, v)) return NULL;
  NetworkRows w = {.network = POINTER(v[2]), .rows = v[3], .x_r = v[4], .x = POINTER(v[5]), .f = POINTER(v[6]),
                   .outputs = v[7], .kept = v[8], .variance = POINTER(v[9]), .changes = POINTER(v[10])};
  const Routines *f = routines(v[0]);
  w.at_once = w.outputs < 2 ? NETWORK_ROWS : w.outputs < NETWORK_ROWS ? NETWORK_ROWS / w.outputs : 1;
  const int64_t tasks = w.network->members * ((w.rows + w.at_once - 1) / w.at_once);
  const NetworkTeam team = {&w, is_linear ? f->linear_task : f->draws_task};
  const size_t scratch = is_linear ? f->linear_scratch(&w) : f->draws_scratch(&w);
  int status;
  Py_BEGIN_ALLOW_THREADS;
  status = run_tasks(network_task, (void *)&team, tasks, scratch * f->element_bytes, v[1]);
  Py_END_ALLOW_THREADS;
  return finish(status);
}

static PyObject *py_network_draws(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  (void)self;
  return run_network(args, count, 0);
}

static PyObject *py_network_changes(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  (void)self;
  return run_network(args, count, 1);
}

typedef struct {
  const Routines *f;
  uint64_t seed, first;
  int64_t total;
  char *out;
} Normals;

static void normals_task(void *context, int64_t task, void *scratch) {
  const Normals *n = context;
  (void)scratch;
  const int64_t begin = task * TASK_ELEMENTS, left = n->total - begin;
  n->f->normals(n->seed, n->first + (uint64_t)begin, (size_t)(left < TASK_ELEMENTS ? left : TASK_ELEMENTS),
                n->out + (size_t)begin * n->f->element_bytes);
}

/* normals(element_bytes, threads, seed, first, count, out): numbers first .. of stream `seed` */
static PyObject *py_normals(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  int64_t v[6];
  (void)self;
  if (read_integers(args, count, 6, v)) return NULL;
  Normals n = {routines(v[0]), (uint64_t)v[2], (uint64_t)v[3], v[4], POINTER(v[5])};
  int status;
  Py_BEGIN_ALLOW_THREADS;
  status = run_tasks(normals_task, &n, (v[4] + TASK_ELEMENTS - 1) / TASK_ELEMENTS, 0,
                    v[4] < SERIAL_ELEMENTS ? 1 : v[1]);
  Py_END_ALLOW_THREADS;
  return finish(status);
}

/* words(seed, first_group, groups, out): the raw 32-bit words behind the normals, 64 per group */
static PyObject *py_words(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  int64_t v[4];
  (void)self;
  if (read_integers(args, count, 4, v)) return NULL;
  uint32_t *out = POINTER(v[3]);
  Py_BEGIN_ALLOW_THREADS;
  active->words((uint64_t)v[0], (uint64_t)v[1], (size_t)v[2], out);
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

static PyObject *py_instruction_set(PyObject *self, PyObject *ignored) {
  (void)self;
  (void)ignored;
  return PyUnicode_FromString(active->name);
}

static PyObject *py_instruction_sets(PyObject *self, PyObject *ignored) {
  (void)self;
  (void)ignored;
  PyObject *list = PyList_New(0);
  for (size_t i = 0; list && i < NUM_SETS; ++i) {
    if (!processor_has(instruction_sets[i]->name)) continue;
    PyObject *name = PyUnicode_FromString(instruction_sets[i]->name);
    if (!name || PyList_Append(list, name)) Py_CLEAR(list);
    Py_XDECREF(name);
  }
  return list;
}

/* use(name): run with this instruction set from now on (for tests and benchmarks) */
static PyObject *py_use(PyObject *self, PyObject *argument) {
  (void)self;
  PyObject *bytes = PyUnicode_AsUTF8String(argument);
  if (!bytes) return NULL;
  const InstructionSet *found = find_set(PyBytes_AsString(bytes));
  Py_DECREF(bytes);
  if (!found) {
    PyErr_Format(PyExc_ValueError, "this processor or build has no instruction set %R", argument);
    return NULL;
  }
  active = found;
  Py_RETURN_NONE;
}

static PyObject *py_has_threads(PyObject *self, PyObject *ignored) {
  (void)self;
  (void)ignored;
  return PyBool_FromLong(start_threads != NULL);
}

#define FAST(function) ((PyCFunction)(void (*)(void))(function))
static PyMethodDef methods[] = {
    {"fwht", FAST(py_fwht), METH_FASTCALL, NULL},
    {"product_forward", FAST(py_product_forward), METH_FASTCALL, NULL},
    {"product_backward", FAST(py_product_backward), METH_FASTCALL, NULL},
    {"diagonal_kl", FAST(py_diagonal_kl), METH_FASTCALL, NULL},
    {"diagonal_kl_backward", FAST(py_diagonal_kl_backward), METH_FASTCALL, NULL},
    {"dense_forward", FAST(py_dense_forward), METH_FASTCALL, NULL},
    {"dense_backward", FAST(py_dense_backward), METH_FASTCALL, NULL},
    {"column_forward", FAST(py_column_forward), METH_FASTCALL, NULL},
    {"column_backward", FAST(py_column_backward), METH_FASTCALL, NULL},
    {"butterfly_forward", FAST(py_butterfly_forward), METH_FASTCALL, NULL},
    {"butterfly_backward", FAST(py_butterfly_backward), METH_FASTCALL, NULL},
    {"hartley", FAST(py_hartley), METH_FASTCALL, NULL},
    {"network_draws", FAST(py_network_draws), METH_FASTCALL, NULL},
    {"network_changes", FAST(py_network_changes), METH_FASTCALL, NULL},
    {"normals", FAST(py_normals), METH_FASTCALL, NULL},
    {"words", FAST(py_words), METH_FASTCALL, NULL},
    {"instruction_set", py_instruction_set, METH_NOARGS, NULL},
    {"instruction_sets", py_instruction_sets, METH_NOARGS, NULL},
    {"use", py_use, METH_O, NULL},
    {"has_threads", py_has_threads, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_compiled", "Walsh-Hadamard kernels over raw pointers.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__compiled(void) {
#if HAS_X86
  __builtin_cpu_init();
#endif
  const char *wanted = getenv("WHVI_ISA");
  active = find_set(wanted && *wanted ? wanted : NULL);
  if (!active) {
    PyErr_Format(PyExc_ImportError, "WHVI_ISA=%s: this processor or build has no such instruction set",
                 wanted);
    return NULL;
  }
  find_threads();
  contiguous_name = PyUnicode_InternFromString("contiguous");
  data_ptr_name = PyUnicode_InternFromString("data_ptr");
  if (!contiguous_name || !data_ptr_name) return NULL;
  return PyModule_Create(&module);
}
