/* A thread computes on a stack of which some pages are nobody's: registered with a userfaultfd that never answers. Whoever reads them
 * waits for good. The pages lie between the thread's innermost frame and the frame that called it: a large buffer that was never
 * touched.
 *
 * Prints "ready PID" once it computes; when stdin ends, "gap US" with the longest time that the thread did not run, in microseconds
 * of the clock, and ends. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define STACK_BYTES (1 << 20)
static char *stack;
static atomic_int computes, ends;
static long longest_ns;

static long now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

__attribute__((noinline)) static void compute(void)
{
    long last = now_ns();
    atomic_store(&computes, 1);
    while (!atomic_load(&ends)) {
        long now = now_ns();
        if (now - last > longest_ns)
            longest_ns = now - last;
        last = now;
    }
}

__attribute__((noinline)) static void *far_below(void *unused)
{
    volatile char large[64 << 10];
    /* Only its lower end is touched. */
    large[0] = 1;
    compute();
    return unused ? (void *)&large[0] : NULL;
}

int main(void)
{
    /* More stack is needed further down by whoever computes: it is there from the start. */
    stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int fd = syscall(SYS_userfaultfd, O_CLOEXEC);
    if (stack == MAP_FAILED || fd < 0) {
        puts("refused");
        return 0;
    }
    struct uffdio_api api = {.api = UFFD_API};
    if (ioctl(fd, UFFDIO_API, &api)) {
        puts("refused");
        return 0;
    }
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, stack, STACK_BYTES);
    pthread_t thread;
    if (pthread_create(&thread, &attributes, far_below, NULL))
        return 1;
    while (!atomic_load(&computes)) {
    }
    struct uffdio_register area = {
        .range = {.start = (unsigned long)stack, .len = STACK_BYTES},
        .mode = UFFDIO_REGISTER_MODE_MISSING,
    };
    if (ioctl(fd, UFFDIO_REGISTER, &area)) {
        puts("refused");
        return 0;
    }
    printf("ready %d\n", getpid());
    fflush(stdout);
    char c;
    while (read(0, &c, 1) == 1) {
    }
    atomic_store(&ends, 1);
    /* Nobody joins: the thread's end may touch what nobody answers for. */
    usleep(10000);
    printf("gap %ld\n", longest_ns / 1000);
    fflush(stdout);
    _exit(0);
}
