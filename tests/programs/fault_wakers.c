// Many threads that wake all the time: each look at them finds something new.
//
// usage: fault_wakers THREADS MILLISECONDS. Each sleeps for so long, again and again. Prints "ready PID"; at a line on
// stdin "wakes N", its wake-ups so far; ends at "end" or at the end of stdin.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static atomic_ulong wakes;

__attribute__((noinline)) static void nap_in_c(const struct timespec *pause) {
    nanosleep(pause, NULL);
    wakes++;
}

static void *nap_on(void *pause) {
    for (;;) nap_in_c(pause);
    return NULL;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 32;
    struct timespec pause = {0, (argc > 2 ? atol(argv[2]) : 3) * 1000000};
    for (int number = 0; number < threads; number++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, nap_on, &pause) != 0) return 1;
    }
    printf("ready %d\n", getpid());
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin) != NULL && strcmp(line, "end\n") != 0) {
        printf("wakes %lu\n", (unsigned long)wakes);
        fflush(stdout);
    }
    return 0;
}
