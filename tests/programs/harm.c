// One running thread among sleeping ones, and an interval timer: what a profiler takes from it.
//
// usage: harm [SLEEPERS]. Prints "ready PID". For each line "SECONDS" on stdin it spins for so long and prints a line of JSON:
// seconds, alarms (times that a timer of 2 ms went off, by the SIGALRMs that came), and of the pauses of the running thread of 0.2 ms and more: count,
// total_ms, p50_ms, longest_ms. Ends with status 0 at the end of stdin.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { MAX_PAUSES = 1 << 20 };
static const double SHORTEST_MS = 0.2;
static double pauses[MAX_PAUSES];
static volatile unsigned long alarms;

// A timer's signal that finds one of its own pending is merged with it, and counted there (timer_getoverrun(2)).
static void on_alarm(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    alarms += 1 + info->si_overrun;
}

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

static void *sleep_for_good(void *unused) {
    for (;;) pause();
    return unused;
}

static int compare(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static void spin(double seconds) {
    unsigned count = 0;
    double total = 0, begin = now_ms(), last = begin;
    unsigned long before = alarms;
    while (last < begin + seconds * 1e3) {
        double now = now_ms();
        if (now - last >= SHORTEST_MS && count < MAX_PAUSES) {
            pauses[count++] = now - last;
            total += now - last;
        }
        last = now;
    }
    qsort(pauses, count, sizeof *pauses, compare);
    printf("{\"seconds\": %.3f, \"alarms\": %lu, \"count\": %u, \"total_ms\": %.3f, \"p50_ms\": %.3f, \"longest_ms\": %.3f}\n",
           (last - begin) / 1e3, alarms - before, count, total, count ? pauses[count / 2] : 0, count ? pauses[count - 1] : 0);
    fflush(stdout);
}

int main(int argc, char **argv) {
    int sleepers = argc > 1 ? atoi(argv[1]) : 0;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 64 << 10);
    sigset_t alarm_set;
    sigemptyset(&alarm_set);
    sigaddset(&alarm_set, SIGALRM);
    // The threads inherit the mask: the timer's signals are the running thread's.
    pthread_sigmask(SIG_BLOCK, &alarm_set, NULL);
    for (int number = 0; number < sleepers; number++) {
        pthread_t thread;
        if (pthread_create(&thread, &attributes, sleep_for_good, NULL) != 0) return 2;
    }
    pthread_sigmask(SIG_UNBLOCK, &alarm_set, NULL);
    struct sigaction action = {.sa_sigaction = on_alarm, .sa_flags = SA_RESTART | SA_SIGINFO};
    struct itimerspec interval = {{0, 2000000}, {0, 2000000}};
    timer_t timer;
    if (sigaction(SIGALRM, &action, NULL) != 0 || timer_create(CLOCK_MONOTONIC, NULL, &timer) != 0) return 2;
    if (timer_settime(timer, 0, &interval, NULL) != 0) return 2;
    printf("ready %d\n", getpid());
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) spin(atof(line));
    return 0;
}
