// Contention for the GIL whose beginning and end are known: for planted_phases.py.
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static _Atomic int held, parked;

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

// Called without the GIL (CDLL): comes back when another thread holds it, and returns the moment. What its caller waits from
// then on, it waits for the GIL. `queued_ns` is how long it had waited for a CPU by then, from its open `schedstat`.
uint64_t planted_park(int schedstat, uint64_t *queued_ns) {
    atomic_store(&held, 0);
    atomic_store(&parked, 1);
    while (!atomic_load(&held)) {
        sched_yield();
    }
    uint64_t moment = now_ns();
    char text[96];
    ssize_t length = pread(schedstat, text, sizeof text - 1, 0);
    text[length > 0 ? length : 0] = 0;
    char *end = text;
    strtoull(end, &end, 10);
    *queued_ns = strtoull(end, NULL, 10);
    return moment;
}

// Called without the GIL (CDLL): comes back when planted_park has begun.
void planted_await(void) {
    while (!atomic_load(&parked)) {
        sched_yield();
    }
}

// Called with the GIL (PyDLL), after planted_await: keeps it for `length_ns`.
void planted_hold(uint64_t length_ns) {
    uint64_t until = now_ns() + length_ns;
    atomic_store(&parked, 0);
    atomic_store(&held, 1);
    while (now_ns() < until) {
    }
}
