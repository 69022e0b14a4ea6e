// Threads that run on other stacks than their own: the first thread takes turns with a fiber, whose stack is heap memory,
// and a second one never leaves the handler of a signal that has a stack of its own. Says "ready"; lives until its
// standard input ends.
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <ucontext.h>

#define NOINLINE __attribute__((noinline))

static ucontext_t own, fiber;
static volatile long sink;

NOINLINE static void spin_20_ms(void) {
  struct timespec start, now;
  clock_gettime(CLOCK_MONOTONIC, &start);
  do {
    for (int i = 0; i < 1000; i++) sink += i;
    clock_gettime(CLOCK_MONOTONIC, &now);
  } while ((now.tv_sec - start.tv_sec) * 1000000000L + now.tv_nsec - start.tv_nsec < 20000000L);
}

NOINLINE static void on_a_fiber(void) {
  for (;;) {
    spin_20_ms();
    swapcontext(&fiber, &own);
  }
}

NOINLINE static void on_its_own_stack(void) {
  spin_20_ms();
  sink++;
}

static void on_an_alternate_stack(int number) {
  (void)number;
  for (;;) sink++;
}

NOINLINE static void be_interrupted(void) {
  raise(SIGUSR2);
  sink++;
}

static void *interrupted_thread(void *unused) {
  stack_t stack = {.ss_size = 1 << 16};
  stack.ss_sp = mmap(0, stack.ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (sigaltstack(&stack, 0)) abort();
  be_interrupted();
  return unused;
}

int main(void) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  struct sigaction action = {.sa_handler = on_an_alternate_stack, .sa_flags = SA_ONSTACK};
  sigaction(SIGUSR2, &action, 0);
  pthread_t thread;
  if (pthread_create(&thread, 0, interrupted_thread, 0)) abort();
  getcontext(&fiber);
  fiber.uc_stack.ss_size = 1 << 18;
  fiber.uc_stack.ss_sp = malloc(fiber.uc_stack.ss_size);
  fiber.uc_link = &own;
  makecontext(&fiber, on_a_fiber, 0);
  printf("ready\n");
  fflush(stdout);
  struct pollfd input = {.fd = 0, .events = POLLIN};
  while (poll(&input, 1, 0) == 0) {
    on_its_own_stack();
    swapcontext(&own, &fiber);
  }
  return 0;
}
