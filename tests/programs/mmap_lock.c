/* A process whose mmap lock is never given up: usage mmap_lock FILE. FILE is mounted over, in a mount namespace of its own, by a file
 * system in user space that answers everything but reads. One thread reads a mapped page of it through /proc/self/mem, which holds the
 * lock for reading until the page is there (mm/memory.c, __access_remote_vm); another waits to hold it for writing, and behind that one
 * every further reader waits. A third computes.
 *
 * Prints "ready PID" once all of that is so, or "refused"; when stdin ends the file system does, everything goes on, and it ends. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static char *page;
static atomic_int computes, writer;

static int refused(void)
{
    puts("refused");
    return 0;
}

static void answer(int fuse, unsigned long request, int error, void *body, size_t size)
{
    struct fuse_out_header head = {.len = sizeof head + size, .error = error, .unique = request};
    struct iovec parts[] = {{&head, sizeof head}, {body, size}};
    if (writev(fuse, parts, size ? 2 : 1) < 0)
        perror("answer");
}

/* Serves until stdin ends; writes a byte to `asked` when it is asked for the page. */
static void serve(int fuse, int asked)
{
    static union {
        struct fuse_in_header head;
        char bytes[1 << 17];
    } request;
    struct pollfd both[] = {{.fd = fuse, .events = POLLIN}, {.fd = 0, .events = POLLIN}};
    while (poll(both, 2, -1) > 0) {
        char c;
        if (both[1].revents && read(0, &c, 1) <= 0)
            _exit(0);
        if (!both[0].revents || read(fuse, &request, sizeof request) <= 0)
            continue;
        struct fuse_init_out init = {
            .major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION, .max_write = 4096};
        struct fuse_attr_out attributes = {
            .attr_valid = 1000,
            .attr = {.ino = 1, .size = 4096, .mode = S_IFREG | 0600, .nlink = 1}};
        struct fuse_open_out opened = {0};
        switch (request.head.opcode) {
        case FUSE_INIT:
            answer(fuse, request.head.unique, 0, &init, sizeof init);
            break;
        case FUSE_GETATTR:
            answer(fuse, request.head.unique, 0, &attributes, sizeof attributes);
            break;
        case FUSE_OPEN:
            answer(fuse, request.head.unique, 0, &opened, sizeof opened);
            break;
        case FUSE_READ:
            if (write(asked, "", 1) != 1)
                _exit(1);
            break;
        case FUSE_FORGET:
        case FUSE_INTERRUPT:
            break;
        default:
            answer(fuse, request.head.unique, -ENOSYS, NULL, 0);
        }
    }
}

__attribute__((noinline)) static void compute(void)
{
    for (;;)
        atomic_fetch_add(&computes, 1);
}

static void *work(void *unused)
{
    compute();
    return unused;
}

static void *hold_for_reading(void *memory)
{
    char c;
    return pread((long)memory, &c, 1, (off_t)(unsigned long)page) < 0 ? NULL : page;
}

/* Once the page was asked for. */
static void *hold_for_writing(void *asked)
{
    char c;
    if (read((long)asked, &c, 1) != 1)
        exit(1);
    atomic_store(&writer, syscall(SYS_gettid));
    mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return NULL;
}

static char state_of(int tid)
{
    char path[64], text[256] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    int file = open(path, O_RDONLY);
    char *name_end = read(file, text, sizeof text - 1) > 0 ? strrchr(text, ')') : NULL;
    close(file);
    return name_end ? name_end[2] : '?';
}

int main(int count, char **words)
{
    char options[128], line[64];
    int asked[2], fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC), memory = open("/proc/self/mem", O_RDONLY);
    if (count < 2 || pipe(asked))
        return 2;
    snprintf(options, sizeof options, "fd=%d,rootmode=100000,user_id=0,group_id=0", fuse);
    if (fuse < 0 || unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("torchspy-test", words[1], "fuse", 0, options))
        return refused();
    int server = fork();
    if (server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve(fuse, asked[1]);
        _exit(1);
    }
    /* The file system ends with its server, and with it whatever waits for it. */
    close(fuse);
    int file = open(words[1], O_RDONLY);
    page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file, 0);
    struct stat known;
    /* The size of a root is asked for only then. */
    if (file < 0 || page == MAP_FAILED || fstat(file, &known)) {
        kill(server, SIGKILL);
        return refused();
    }
    pthread_t thread;
    pthread_create(&thread, NULL, work, NULL);
    while (!atomic_load(&computes)) {
    }
    /* A thread is made with the lock held for writing: the second of them before the first holds it. */
    pthread_create(&thread, NULL, hold_for_writing, (void *)(long)asked[0]);
    pthread_create(&thread, NULL, hold_for_reading, (void *)(long)memory);
    while (!atomic_load(&writer) || state_of(atomic_load(&writer)) != 'D') {
    }
    int length = snprintf(line, sizeof line, "ready %d\n", getpid());
    if (write(1, line, length) != length)
        return 1;
    int status;
    waitpid(server, &status, 0);
    _exit(0);
}
