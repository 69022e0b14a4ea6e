/* Samples the instruction pointer of the thread that calls it, from within: by its own CPU time, and by the wall clock.
 *
 * Each sample says whether the thread was in one range of addresses (libgomp's code). A timer of CLOCK_THREAD_CPUTIME_ID fires only
 * while the thread is on a CPU; one of CLOCK_MONOTONIC fires whatever it does, and finds it where it computes, waits, or was
 * preempted. No other thread wakes for either, so that neither disturbs the moment that it looks at.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

enum { CPU, WALL, CLOCKS };

struct sample {
  uint64_t moment_ns; /* CLOCK_MONOTONIC */
  uint64_t inside;
};

static struct {
  timer_t timer;
  struct sample *samples;
  volatile uint64_t count, capacity;
  uint64_t period_ns;
} clocks[CLOCKS];
static uintptr_t low, high;
static uint64_t seed = 0x9e3779b97f4a7c15;

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static void arm(int clock) {
  /* A fixed distance would lock on to steps of a multiple of it. */
  seed ^= seed << 13;
  seed ^= seed >> 7;
  seed ^= seed << 17;
  uint64_t wait_ns = clocks[clock].period_ns / 2 + seed % clocks[clock].period_ns;
  struct itimerspec once = {.it_value = {wait_ns / 1000000000, wait_ns % 1000000000}};
  timer_settime(clocks[clock].timer, 0, &once, NULL);
}

static void handle(int number, siginfo_t *info, void *context) {
  (void)number;
  int clock = info->si_value.sival_int;
  uintptr_t ip = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
  uint64_t at = clocks[clock].count;
  if (at < clocks[clock].capacity) {
    clocks[clock].samples[at].moment_ns = now_ns();
    clocks[clock].samples[at].inside = low <= ip && ip < high;
    clocks[clock].count = at + 1;
    arm(clock);
  }
}

/* Starts to sample the calling thread: its CPU time into cpu, wall time into wall, capacity samples each at most; 0 on success. */
int openmp_truth_start(uintptr_t from, uintptr_t to, uint64_t period_ns, struct sample *cpu, struct sample *wall, uint64_t capacity) {
  static const clockid_t ids[CLOCKS] = {CLOCK_THREAD_CPUTIME_ID, CLOCK_MONOTONIC};
  low = from;
  high = to;
  clocks[CPU].samples = cpu;
  clocks[WALL].samples = wall;
  for (int clock = 0; clock < CLOCKS; clock++) {
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigfillset(&action.sa_mask);
    if (sigaction(SIGRTMIN + clock, &action, NULL) != 0)
      return -1;
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN + clock, .sigev_value.sival_int = clock};
    event.sigev_notify_thread_id = syscall(SYS_gettid);
    if (timer_create(ids[clock], &event, &clocks[clock].timer) != 0)
      return -1;
    clocks[clock].capacity = capacity;
    clocks[clock].period_ns = period_ns;
    arm(clock);
  }
  return 0;
}

/* Ends it: how many samples there are by one of the two clocks. */
uint64_t openmp_truth_stop(int clock) {
  timer_delete(clocks[clock].timer);
  return clocks[clock].count;
}
