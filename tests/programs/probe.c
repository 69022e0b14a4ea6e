// Measures from inside what a profiler does to a thread: the gaps in a loop that only reads the clock, and the
// system calls that come back with EINTR.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

struct gap {
    uint64_t start_ns;
    uint64_t length_ns;
    // Context switches within the gap. A ptrace stop is a voluntary one (the thread leaves the CPU in a sleeping
    // state: kernel/sched/core.c, __schedule), a preemption an involuntary one, an interrupt is none.
    uint32_t voluntary;
    uint32_t involuntary;
};

static volatile sig_atomic_t told_to_stop;

static void on_stop(int signal_number) {
    (void)signal_number;
    told_to_stop = 1;
}

// SIGUSR1 ends probe_spin and probe_epoll, whichever thread gets it.
int probe_install(void) {
    struct sigaction action = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
    return sigaction(SIGUSR1, &action, NULL);
}

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

// Spins until SIGUSR1 or for limit_ns. Returns the gaps longer than threshold_ns that fit into `gaps`; `all` counts
// those that did not fit too. `window` gets the first and the last moment.
size_t probe_spin(uint64_t limit_ns, uint64_t threshold_ns, struct gap *gaps, size_t capacity, uint64_t *all,
                  uint64_t window[2]) {
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    long voluntary = usage.ru_nvcsw, involuntary = usage.ru_nivcsw;
    uint64_t seen = 0, first = now_ns(), last = first;
    while (!told_to_stop) {
        uint64_t now = now_ns();
        if (now - last > threshold_ns) {
            getrusage(RUSAGE_THREAD, &usage);
            if (seen < capacity) {
                gaps[seen] = (struct gap){last, now - last, (uint32_t)(usage.ru_nvcsw - voluntary),
                                          (uint32_t)(usage.ru_nivcsw - involuntary)};
            }
            seen++;
            voluntary = usage.ru_nvcsw;
            involuntary = usage.ru_nivcsw;
            now = now_ns();
        }
        last = now;
        if (now - first > limit_ns) break;
    }
    window[0] = first;
    window[1] = last;
    *all = seen;
    return seen < capacity ? seen : capacity;
}

// Waits in epoll_wait with `timeout_ms` over and over, working for work_ns in between, until SIGUSR1 or for limit_ns.
// counts: calls, calls that were interrupted. The last call before SIGUSR1 is not counted.
int probe_epoll(uint64_t limit_ns, int timeout_ms, uint64_t work_ns, uint64_t counts[2]) {
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll < 0) return -1;
    uint64_t end = now_ns() + limit_ns;
    counts[0] = counts[1] = 0;
    while (!told_to_stop && now_ns() < end) {
        struct epoll_event event;
        int result = epoll_wait(epoll, &event, 1, timeout_ms);
        int interrupted = result < 0 && errno == EINTR;
        if (told_to_stop) break;
        counts[0]++;
        counts[1] += (uint64_t)interrupted;
        uint64_t resume = now_ns() + work_ns;
        while (now_ns() < resume) {}
    }
    return close(epoll);
}
