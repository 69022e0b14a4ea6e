// Counts the real-time signals (SIGRTMIN, which queue) and SIGUSR1 that it is sent, while two threads compute.
//
// Prints "ready PID"; at the end of its stdin prints "rt COUNT usr1 COUNT".
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static volatile unsigned long rt, usr1, turns;

static void on_signal(int number) { __atomic_fetch_add(number == SIGUSR1 ? &usr1 : &rt, 1, __ATOMIC_SEQ_CST); }

static void *compute(void *unused) {
    for (;;) turns++;
    return unused;
}

int main(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    if (sigaction(SIGUSR1, &action, NULL) != 0 || sigaction(SIGRTMIN, &action, NULL) != 0) return 2;
    pthread_t thread;
    if (pthread_create(&thread, NULL, compute, NULL) != 0) return 2;
    printf("ready %d\n", getpid());
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {}
    printf("rt %lu usr1 %lu\n", rt, usr1);
    return 0;
}
