// The least that a sample of a running thread takes from outside: asked to stop, waited for, registers and a piece of stack read,
// let go; nothing is looked at besides and nothing is made of what was read. What a profiler's stops are to be compared with.
//
// usage: plain_stops PID RATE BYTES. Stops the first thread of PID at RATE Hz, each time at a random moment, until SIGINT.
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>

static volatile sig_atomic_t ended;

static void end(int number) {
    (void)number;
    ended = 1;
}

// Keeps this thread off the CPU on which the other one runs.
static void keep_off(int pid) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (file == NULL) return;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = 0;
    char *field = strrchr(text, ')');
    // Field 39 of proc_pid_stat(5); the parenthesis ends field 2.
    for (int place = 2; field != NULL && place < 39; place++) field = strchr(field + 1, ' ');
    if (field == NULL) return;
    static cpu_set_t allowed;
    if (CPU_COUNT(&allowed) == 0) sched_getaffinity(0, sizeof allowed, &allowed);
    cpu_set_t others = allowed;
    CPU_CLR(atoi(field), &others);
    if (CPU_COUNT(&others) > 0) sched_setaffinity(0, sizeof others, &others);
}

static void sample(int tid, char *bytes, size_t count) {
    if (ptrace(PTRACE_SEIZE, tid, NULL, NULL) != 0) {
        perror("ptrace");
        exit(1);
    }
    ptrace(PTRACE_INTERRUPT, tid, NULL, NULL);
    siginfo_t seen = {.si_pid = 0};
    do {
        if (waitid(P_PID, tid, &seen, WSTOPPED | WEXITED | WNOHANG | __WALL) != 0) exit(1);
    } while (seen.si_pid == 0);
#if defined(__x86_64__)
    struct user_regs_struct registers;
    ptrace(PTRACE_GETREGS, tid, NULL, &registers);
    struct iovec here = {bytes, count}, there = {(void *)registers.rsp, count};
    process_vm_readv(tid, &here, 1, &there, 1, 0);
#endif
    ptrace(PTRACE_DETACH, tid, NULL, NULL);
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    int pid = atoi(argv[1]);
    double period_ns = 1e9 / atof(argv[2]);
    size_t count = strtoul(argv[3], NULL, 10);
    char *bytes = calloc(1, count);
    signal(SIGINT, end);
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    struct sched_param first = {.sched_priority = 1};
    sched_setscheduler(0, SCHED_FIFO, &first);
    // It may be suspended only while nobody stands.
    sigset_t suspending;
    sigemptyset(&suspending);
    sigaddset(&suspending, SIGTSTP);
    for (long tick = 0; !ended; tick++) {
        // Half a period to one and a half.
        long pause_ns = (long)(period_ns * (0.5 + drand48()));
        struct timespec pause = {pause_ns / 1000000000, pause_ns % 1000000000};
        sigprocmask(SIG_UNBLOCK, &suspending, NULL);
        nanosleep(&pause, NULL);
        sigprocmask(SIG_BLOCK, &suspending, NULL);
        if (tick % 10 == 0) keep_off(pid);
        sample(pid, bytes, count);
    }
    return 0;
}
