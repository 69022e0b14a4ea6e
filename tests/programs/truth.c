// Native work for truth.py: functions that spin until a moment of the monotonic clock. Two of them, so that shares
// of native functions can be told apart; not inlined, and with a name in .symtab and .dynsym.
#define _GNU_SOURCE
#include <stdint.h>
#include <time.h>

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

// The barrier keeps the compiler from merging or specialising the two.
#define SPIN(name)                                           \
    __attribute__((noinline)) uint64_t name(uint64_t until) { \
        uint64_t turns = 0;                                  \
        while (now_ns() < until) {                           \
            turns++;                                         \
            __asm__ volatile("" : "+r"(turns));              \
        }                                                    \
        return turns;                                        \
    }

SPIN(truth_spin_one)
SPIN(truth_spin_two)
