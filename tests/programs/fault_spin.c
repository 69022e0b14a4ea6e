// A program that is no Python: prints "spinning PID" and spins for half a second (or for as long as its argument says).
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static volatile unsigned long turns;

__attribute__((noinline)) void spin_in_c(double seconds) {
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        for (int turn = 0; turn < 10000; turn++) turns++;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((double)(now.tv_sec - begin.tv_sec) + (double)(now.tv_nsec - begin.tv_nsec) / 1e9 < seconds);
}

int main(int argc, char **argv) {
    printf("spinning %d\n", getpid());
    fflush(stdout);
    spin_in_c(argc > 1 ? atof(argv[1]) : 0.5);
    return turns == 0;
}
