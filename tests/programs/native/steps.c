// Goes round and round through code that is hard to unwind, for a test that looks at every instruction.
#define _GNU_SOURCE
#include <alloca.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
long bare_leaf(long count);
long bare_caller(long (*callback)(long), long a, long b, long c);
long bare_realigned(long (*callback)(long), long size);
static volatile long sink;

NOINLINE long callback(long value) { sink += value; return sink & 15; }

// push rbp; push rbx; sub $8,rsp; mov $0x200,ebp; mov edi... : calls its first argument and uses rbp for something else.
static const unsigned char jit_code[] = {
    0x55, 0x53, 0x48, 0x83, 0xec, 0x08, 0xbd, 0x00, 0x02, 0x00, 0x00, 0x48, 0x89, 0xf8, 0xbf, 0x05, 0x00, 0x00, 0x00,
    0xff, 0xd0, 0x48, 0x83, 0xc4, 0x08, 0x5b, 0x5d, 0xc3};
static long (*jit)(long (*)(long));

// Its frame is counted from rbp, which the run-time code has changed.
NOINLINE long calls_jit(int size) {
  volatile char *room = alloca(size);
  room[0] = 1;
  return jit(callback) + room[0];
}

static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
static void on_signal(int number) { sink += number; }

int main(int count, char **arguments) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  jit = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memcpy((void *)jit, jit_code, sizeof jit_code);
  signal(SIGUSR1, on_signal);
  puts("ready");
  fflush(stdout);
  char text[64];
  for (;;) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int values[] = {3, 1, 2, count};
    qsort(values, 4, sizeof values[0], compare);
    sink += bare_leaf(3) + bare_caller(callback, 1, 2, 3) + bare_realigned(callback, 300) + calls_jit(100);
    snprintf(text, sizeof text, "%ld %s %f", sink, arguments[0], 1.5);
    sink += strlen(text) + strtol("42", 0, 10);
    raise(SIGUSR1);
  }
}
