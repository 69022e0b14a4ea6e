// Contention for the GIL whose beginning and end are known: for planted_phases.py.
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

static _Atomic int held;

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

// Called with the GIL (PyDLL): keeps it for `length_ns`, and says so to planted_park.
void planted_hold(uint64_t length_ns) {
    uint64_t until = now_ns() + length_ns;
    atomic_store(&held, 1);
    while (now_ns() < until) {
    }
    atomic_store(&held, 0);
}

// Called without the GIL (CDLL): comes back when another thread holds it, and returns the moment. What its caller waits from
// then on, it waits for the GIL.
uint64_t planted_park(void) {
    while (!atomic_load(&held)) {
        sched_yield();
    }
    return now_ns();
}
