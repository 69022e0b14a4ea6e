// A parent in vfork: until its child has exec'd or ended it is in uninterruptible sleep (state D), and can be neither
// interrupted nor detached from.
//
// usage: fault_vfork SECONDS [ROUNDS [COMPUTE_MS]]
// Prints "ready PID CHILD" from the child, once it runs and the parent so is in state D; the child sleeps SECONDS and
// ends. After ROUNDS (default 1) prints "done ROUNDS". A second thread counts all the while, so that the process burns CPU;
// with COMPUTE_MS another process does, and the parent computes for so long before each vfork.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void *count(void *turns) {
    for (;;) ++*(volatile uint64_t *)turns;
    return NULL;
}

static void compute(long ms) {
    struct timespec begun, now;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - begun.tv_sec) * 1000 + (now.tv_nsec - begun.tv_nsec) / 1000000 < ms);
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 2;
    int rounds = argc > 2 ? atoi(argv[2]) : 1;
    struct timespec pause = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    uint64_t turns = 0;
    pthread_t counter;
    long compute_ms = argc > 3 ? atol(argv[3]) : 0;
    if (compute_ms > 0 && fork() == 0) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) _exit(1);
        count(&turns);
    }
    if (compute_ms == 0 && pthread_create(&counter, NULL, count, &turns) != 0) return 1;
    for (int round = 0; round < rounds; round++) {
        compute(compute_ms);
        // Formatted before vfork: the child shares this memory and may only make system calls.
        char line[64];
        pid_t self = getpid();
        pid_t child = vfork();
        if (child < 0) return 1;
        if (child == 0) {
            int length = snprintf(line, sizeof line, "ready %d %d\n", self, getpid());
            // Who kills the parent cannot reach its child.
            if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) _exit(1);
            if (write(1, line, (size_t)length) != length) _exit(1);
            nanosleep(&pause, NULL);
            _exit(0);
        }
        if (waitpid(child, NULL, 0) != child) return 1;
    }
    printf("done %d\n", rounds);
    return 0;
}
