// Stands still in places that are hard to unwind, one thread each, then says "ready" and waits.
#define _GNU_SOURCE
#include <alloca.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
static pthread_barrier_t standing;
static volatile int sink;

static NOINLINE void stand_still(void) {
  pthread_barrier_wait(&standing);
  for (;;) pause();
}

// A variable-sized frame: the CFA goes through rbp.
NOINLINE static void with_alloca(int size) {
  volatile char *room = alloca(size);
  room[0] = 1;
  stand_still();
  sink += room[0];
}
static void *alloca_thread(void *unused) { with_alloca(12345 + (unused != 0)); return 0; }

// A realigned frame that also has a variable-sized part and stack arguments: GCC's DRAP.
NOINLINE static int realigned(int size, int b, int c, int d, int e, int f, int seventh, int eighth) {
  __attribute__((aligned(64))) volatile char aligned[64];
  volatile char *room = alloca(size);
  aligned[0] = room[0] = (char)seventh;
  stand_still();
  return aligned[0] + room[0] + b + c + d + e + f + eighth;
}
NOINLINE static int above_realigned(int depth) {
  volatile int kept = depth;
  if (depth) return above_realigned(depth - 1) + kept;
  return realigned(999, 2, 3, 4, 5, 6, 7, 8) + kept;
}
static void *realigned_thread(void *unused) { sink += above_realigned(3 + (unused != 0)); return 0; }

// Deep recursion.
NOINLINE static int recurse(int depth) {
  volatile int kept = depth;
  if (depth == 0) { stand_still(); return 0; }
  return recurse(depth - 1) + kept;
}
static void *recursion_thread(void *unused) { sink += recurse(400 + (unused != 0)); return 0; }

// A signal handler, on the same stack and on one of its own.
static void on_signal(int number) { (void)number; stand_still(); }
NOINLINE static void be_interrupted(int number) { raise(number); sink++; }
static void *signal_thread(void *unused) { be_interrupted(SIGUSR1 + (unused != 0) * 0); return 0; }
static void *altstack_thread(void *unused) {
  stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
  sigaltstack(&stack, 0);
  be_interrupted(SIGUSR2 + (unused != 0) * 0);
  return 0;
}

// A signal in the middle of a computation, not in a call.
NOINLINE static int divide(volatile int by) { return 1000 / by; }
static void *fault_thread(void *unused) { sink += divide(unused != 0); return 0; }

// qsort calls back from the C library.
static int compare(const void *a, const void *b) {
  static int once;
  if (!__atomic_exchange_n(&once, 1, __ATOMIC_SEQ_CST)) stand_still();
  return *(const int *)a - *(const int *)b;
}
static void *callback_thread(void *unused) {
  int values[3] = {3, 2, 1 + (unused != 0)};
  qsort(values, 3, sizeof values[0], compare);
  return 0;
}

static void start(void *(*body)(void *), const char *name) {
  pthread_t thread;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 1 << 20);
  if (pthread_create(&thread, &attributes, body, 0)) abort();
  pthread_setname_np(thread, name);
}

int main(void) {
  struct sigaction action = {.sa_handler = on_signal};
  sigaction(SIGUSR1, &action, 0);
  sigaction(SIGFPE, &action, 0);
  action.sa_flags = SA_ONSTACK;
  sigaction(SIGUSR2, &action, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  pthread_barrier_init(&standing, 0, 8);
  start(alloca_thread, "alloca");
  start(realigned_thread, "realigned");
  start(recursion_thread, "recursion");
  start(signal_thread, "signal");
  start(altstack_thread, "altstack");
  start(fault_thread, "fault");
  start(callback_thread, "callback");
  pthread_barrier_wait(&standing);
  puts("ready");
  fflush(stdout);
  for (;;) pause();
}
