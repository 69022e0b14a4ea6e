// Counts system calls that a stop cuts short: that end with EINTR, or with less than was asked for, though no signal was sent.
//
// usage: calls_cut_short SECONDS CALLS WORK_US [KIND...]
// Prints "ready PID" and starts at a line on stdin. Of each kind (all without names) makes CALLS calls, for SECONDS at most, and
// computes for WORK_US after each. Prints "KIND CALLS EINTR SHORT" of each (of a kind that cannot be had here: "KIND 0 0 0"), "done".
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define LARGE (1 << 20)
#define WAIT_NS 1000000

static char buffer[16 * LARGE];
static int ends[2];
static volatile int is_over;

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

// The other end of a pipe or socket pair: takes what comes, or sends without end. Its own calls are not counted.
static void *drain(void *argument) {
    static char taken[LARGE];
    int end = *(int *)argument;
    while (read(end, taken, 65536) > 0) {}
    return NULL;
}

static void *feed(void *argument) {
    static char sent[LARGE];
    int end = *(int *)argument;
    while (!is_over && send(end, sent, 65536, MSG_NOSIGNAL) > 0) {}
    return NULL;
}

struct kind {
    const char *name;
    // Makes what the calls need; -1 where that cannot be had.
    int (*prepare)(void);
    // One call. What it gives when it is complete, else -1 with `wanted`, an error that is no fault.
    long (*call)(void);
    long whole;
    void *(*other)(void *);
};

static const struct timespec wait_time = {0, WAIT_NS};
static int socket_listening;
static struct sockaddr_un address;
static aio_context_t events_context;
static int semaphores;

static int pair_with_timeout(void) {
    struct timeval timeout = {0, WAIT_NS / 1000};
    return socketpair(AF_UNIX, SOCK_STREAM, 0, ends) || setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
}
static long call_recv(void) { return recv(ends[0], buffer, 1, 0); }

static int listen_with_timeout(void) {
    struct timeval timeout = {0, WAIT_NS / 1000};
    socket_listening = socket(AF_UNIX, SOCK_STREAM, 0);
    address.sun_family = AF_UNIX;
    snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "calls-cut-short-%d-%d", getpid(), socket_listening);
    return bind(socket_listening, (struct sockaddr *)&address, sizeof address) || listen(socket_listening, 0) ||
           setsockopt(socket_listening, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
}
static long call_accept(void) { return accept(socket_listening, NULL, NULL); }

// A queue that is full: who connects waits for it to empty.
static int full_queue(void) {
    if (listen_with_timeout()) return -1;
    for (int i = 0; i < 2; i++) {
        int one = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (connect(one, (struct sockaddr *)&address, sizeof address) && errno == EAGAIN) break;
    }
    struct timeval timeout = {0, WAIT_NS / 1000};
    ends[0] = socket(AF_UNIX, SOCK_STREAM, 0);
    return setsockopt(ends[0], SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
}
static long call_connect(void) { return connect(ends[0], (struct sockaddr *)&address, sizeof address); }

static int make_epoll(void) { return (ends[0] = epoll_create1(0)) < 0; }
static long call_epoll(void) {
    struct epoll_event event;
    return epoll_wait(ends[0], &event, 1, WAIT_NS / 1000000);
}

static int make_events(void) { return (int)syscall(SYS_io_setup, 8, &events_context); }
static long call_events(void) {
    struct io_event event;
    struct timespec time = wait_time;
    return syscall(SYS_io_getevents, events_context, 1, 1, &event, &time);
}

static int make_semaphore(void) { return (semaphores = semget(IPC_PRIVATE, 1, 0600)) < 0; }
static long call_semaphore(void) {
    struct sembuf take = {0, -1, 0};
    return semtimedop(semaphores, &take, 1, &wait_time);
}

static int block_signal(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    return pthread_sigmask(SIG_BLOCK, &set, NULL);
}
static long call_sigtimedwait(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    return sigtimedwait(&set, NULL, &wait_time);
}

static int nothing(void) { return 0; }
static long call_nanosleep(void) { return nanosleep(&wait_time, NULL); }
static long call_poll(void) { return poll(NULL, 0, WAIT_NS / 1000000); }
static long call_futex(void) {
    static int word;
    return syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &wait_time);
}

static int make_pipe(void) { return pipe(ends); }
static long call_write(void) { return write(ends[1], buffer, LARGE); }
static int make_pair(void) { return socketpair(AF_UNIX, SOCK_STREAM, 0, ends); }
static long call_send(void) { return send(ends[1], buffer, LARGE, 0); }
static long call_waitall(void) { return recv(ends[1], buffer, LARGE, MSG_WAITALL); }
static long call_getrandom(void) { return getrandom(buffer, LARGE, 0); }
static int open_zero(void) { return (ends[0] = open("/dev/zero", O_RDONLY)) < 0; }
static long call_zero(void) { return read(ends[0], buffer, sizeof buffer); }
static int open_memory(void) { return (ends[0] = memfd_create("calls", 0)) < 0; }
static long call_fallocate(void) {
    if (ftruncate(ends[0], 0) || ftruncate(ends[0], 4 * LARGE)) return -2;
    return fallocate(ends[0], 0, 0, 4 * LARGE);
}

static const struct kind kinds[] = {
    {"recv_timeout", pair_with_timeout, call_recv, 0, NULL},
    {"accept_timeout", listen_with_timeout, call_accept, 0, NULL},
    {"connect_timeout", full_queue, call_connect, 0, NULL},
    {"epoll_wait", make_epoll, call_epoll, 0, NULL},
    {"io_getevents", make_events, call_events, 0, NULL},
    {"semtimedop", make_semaphore, call_semaphore, 0, NULL},
    {"sigtimedwait", block_signal, call_sigtimedwait, 0, NULL},
    {"nanosleep", nothing, call_nanosleep, 0, NULL},
    {"poll", nothing, call_poll, 0, NULL},
    {"futex", nothing, call_futex, 0, NULL},
    {"fallocate", open_memory, call_fallocate, 0, NULL},
    {"getrandom", nothing, call_getrandom, LARGE, NULL},
    {"dev_zero", open_zero, call_zero, sizeof buffer, NULL},
    {"pipe_write", make_pipe, call_write, LARGE, drain},
    {"send", make_pair, call_send, LARGE, drain},
    {"recv_waitall", make_pair, call_waitall, LARGE, feed},
};

static void count(const struct kind *kind, double seconds, long calls, uint64_t work_ns) {
    long made = 0, interrupted = 0, partial = 0;
    pthread_t other;
    if (kind->prepare() == 0) {
        is_over = 0;
        if (kind->other) pthread_create(&other, NULL, kind->other, &ends[0]);
        uint64_t end = now_ns() + (uint64_t)(seconds * 1e9);
        while (made < calls && now_ns() < end) {
            long result = kind->call();
            made++;
            interrupted += result < 0 && errno == EINTR;
            partial += result >= 0 && result < kind->whole;
            uint64_t resume = now_ns() + work_ns;
            while (now_ns() < resume) {}
        }
        if (kind->other) {
            is_over = 1;
            shutdown(ends[1], SHUT_RDWR);
            close(ends[1]);
            pthread_join(other, NULL);
        }
    }
    printf("%s %ld %ld %ld\n", kind->name, made, interrupted, partial);
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    signal(SIGPIPE, SIG_IGN);
    // Its pages are there before they are written to: a page fault is none of the calls that are counted.
    memset(buffer, 1, sizeof buffer);
    printf("ready %d\n", getpid());
    fflush(stdout);
    char line[64];
    if (fgets(line, sizeof line, stdin) == NULL) return 2;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        int wanted = argc == 4;
        for (int name = 4; name < argc; name++) wanted |= strcmp(argv[name], kinds[i].name) == 0;
        if (wanted) count(&kinds[i], atof(argv[1]), atol(argv[2]), (uint64_t)atol(argv[3]) * 1000);
    }
    if (semaphores > 0) semctl(semaphores, 0, IPC_RMID);
    printf("done\n");
    return 0;
}
