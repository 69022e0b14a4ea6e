// Counts the signals that it is sent. SIGUSR1 does not queue: the sender sends the next one only when the one before
// has been counted, so that each one that is lost shows up as a wait without an end.
//
// usage: fault_signals COUNT [PAUSE_US] [TIMEOUT_S]
// Forks a sender of COUNT SIGUSR1 and as many queued SIGRTMIN; computes all the while. Prints "ready PID", starts at a
// line on stdin, then prints "usr1 RECEIVED SENT rt RECEIVED SENT" and exits with 0 if none was lost, else 1.
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct counts {
    volatile uint64_t usr1_received, usr1_sent, rt_received, rt_sent;
    volatile int over;
};

static struct counts *counts;

static void on_signal(int number) {
    if (number == SIGUSR1) {
        counts->usr1_received++;
    } else {
        counts->rt_received++;
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void send_all(pid_t target, uint64_t count, long pause_us, double timeout) {
    struct timespec pause = {0, pause_us * 1000};
    for (uint64_t sent = 0; sent < count; sent++) {
        counts->usr1_sent++;
        counts->rt_sent++;
        kill(target, SIGUSR1);
        sigqueue(target, SIGRTMIN, (union sigval){0});
        double deadline = now() + timeout;
        while (counts->usr1_received < counts->usr1_sent || counts->rt_received < counts->rt_sent) {
            if (now() > deadline) return;
        }
        nanosleep(&pause, NULL);
    }
}

int main(int argc, char **argv) {
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 2000;
    long pause_us = argc > 2 ? atol(argv[2]) : 200;
    double timeout = argc > 3 ? atof(argv[3]) : 10;
    counts = mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (counts == MAP_FAILED) return 2;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    // Each handler keeps the other signal out: the counters are then never raced for.
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGUSR1);
    sigaddset(&action.sa_mask, SIGRTMIN);
    action.sa_flags = SA_RESTART;
    if (sigaction(SIGUSR1, &action, NULL) != 0 || sigaction(SIGRTMIN, &action, NULL) != 0) return 2;
    printf("ready %d\n", getpid());
    fflush(stdout);
    char line[64];
    if (fgets(line, sizeof line, stdin) == NULL) return 2;
    pid_t target = getpid();
    pid_t sender = fork();
    if (sender < 0) return 2;
    if (sender == 0) {
        send_all(target, count, pause_us < 999999 ? pause_us : 999999, timeout);
        counts->over = 1;
        _exit(0);
    }
    volatile uint64_t work = 0;
    while (!counts->over) work++;
    while (waitpid(sender, NULL, 0) < 0) {}
    printf("usr1 %llu %llu rt %llu %llu\n", (unsigned long long)counts->usr1_received, (unsigned long long)counts->usr1_sent,
           (unsigned long long)counts->rt_received, (unsigned long long)counts->rt_sent);
    return counts->usr1_received == count && counts->rt_received == count ? 0 : 1;
}
