/* Tasks shared with the threads of the OpenMP runtime that is already in the process (torch's),
 * found by name: nothing is linked. Threads of our own would compete with that runtime's, which keep
 * their processor for some time after each operation of torch.
 *
 * A parallel region ends when its last thread has ended. On a host that is busy elsewhere that thread
 * may not have a processor for many milliseconds, while the caller could have done its share in a few
 * microseconds. The caller measures how long it waits; if it would have been ready sooner by itself,
 * callers work alone: first for a moment, longer each time.
 */

#define LATE_NS 50000             /* that a wait may be longer than the work that others have done */
#define SHORTEST_REST_NS 100000000 /* in which callers then work alone; four times as long next time, */
#define LONGEST_REST_NS 4000000000
#define FORGIVE_RESTS 16 /* unless so many rests have passed since the last one */

#define READ(place) __atomic_load_n(&(place), __ATOMIC_RELAXED)
#define WRITE(place, value) __atomic_store_n(&(place), value, __ATOMIC_RELAXED)

typedef void (*gomp_parallel)(void (*)(void *), void *, unsigned, unsigned);
static gomp_parallel start_threads;
static int forked; /* the OpenMP threads of a parent do not exist in its child: run alone there */
static int64_t rest, rest_until; /* nanoseconds of the clock, for all callers */

static void note_fork(void) { forked = 1; }

static void find_threads(void) {
  start_threads = (gomp_parallel)dlsym(RTLD_DEFAULT, "GOMP_parallel");
  pthread_atfork(NULL, NULL, note_fork);
}

static int64_t nanoseconds(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* How many tasks were taken from the beginning (lower half of `claims`) and from the end (upper
 * half): the caller takes the first and the others the last, so that of data that stays in cache each
 * has its own share from call to call. */
typedef struct {
  void (*run)(void *context, int64_t task, void *scratch);
  void *context;
  int64_t tasks;
  size_t scratch_bytes;
  uint64_t claims;
  int out_of_memory;
  pthread_t caller;
  int64_t begin;         /* of a job for several threads, else 0 */
  int64_t taken, worked; /* of the caller: how many tasks it had, and the processor time for them */
} Team;

/* The next task, or -1. */
static int64_t claim(Team *team, int is_caller) {
  uint64_t word = READ(team->claims);
  for (;;) {
    const int64_t first = (int64_t)(word & 0xffffffffu), last = (int64_t)(word >> 32);
    if (first + last >= team->tasks) return -1;
    const uint64_t next = word + (is_caller ? 1 : (uint64_t)1 << 32);
    if (__atomic_compare_exchange_n(&team->claims, &word, next, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
      return is_caller ? first : team->tasks - 1 - last;
  }
}

static void work_in_team(void *data) {
  Team *team = data;
  const int is_caller = pthread_equal(pthread_self(), team->caller);
  const int is_timed = is_caller && team->begin;
  const int64_t begin = is_timed ? nanoseconds(CLOCK_THREAD_CPUTIME_ID) : 0;
  int64_t taken = 0;
  void *scratch = NULL;
  if (team->scratch_bytes && posix_memalign(&scratch, 64, team->scratch_bytes)) {
    WRITE(team->out_of_memory, 1);
    return;
  }
  for (int64_t task; (task = claim(team, is_caller)) >= 0; ++taken)
    team->run(team->context, task, scratch);
  free(scratch);
  if (is_timed) team->taken = taken, team->worked = nanoseconds(CLOCK_THREAD_CPUTIME_ID) - begin;
}

/* Rest if the caller waited longer than it would have worked on what the others did. */
static void judge(const Team *team) {
  const int64_t end = nanoseconds(CLOCK_MONOTONIC), saved = team->tasks - team->taken;
  const int64_t waited = end - team->begin - team->worked;
  if (waited <= LATE_NS + saved * team->worked / (team->taken ? team->taken : 1)) return;
  const int64_t before = READ(rest), since = end - READ(rest_until);
  int64_t now = !before || since > FORGIVE_RESTS * before ? SHORTEST_REST_NS : 4 * before;
  if (now > LONGEST_REST_NS) now = LONGEST_REST_NS;
  WRITE(rest, now);
  WRITE(rest_until, end + now);
}

/* Run every task, on up to `threads` threads; 0, or -1 when memory ran out. */
static int run_tasks(void (*run)(void *, int64_t, void *), void *context, int64_t tasks,
                     size_t scratch_bytes, int64_t threads) {
  Team team = {.run = run, .context = context, .tasks = tasks, .scratch_bytes = scratch_bytes,
               .caller = pthread_self()};
  if (threads > tasks) threads = tasks;
  const int64_t now = threads > 1 && start_threads && !forked ? nanoseconds(CLOCK_MONOTONIC) : 0;
  if (now && now >= READ(rest_until)) {
    team.begin = now;
    start_threads(work_in_team, &team, (unsigned)threads, 0);
    judge(&team);
  } else {
    work_in_team(&team);
  }
  return team.out_of_memory ? -1 : 0;
}

#undef READ
#undef WRITE
