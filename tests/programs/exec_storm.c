/* Replaces itself with exec as fast as it can, out of a process with running threads: usage exec_storm LIVES [leader|thread]. With 0
LIVES it goes on until stdin has another line, or ends.

Each life starts three threads that spin, and the first thread ("leader") or one of the others ("thread") calls exec once they all
run. The kernel holds the process's cred_guard_mutex from then on until the other threads are gone (de_thread, fs/exec.c), and a
thread that is traced is not gone before its tracer has waited for it.

Prints "ready PID" and, if stdin is a pipe or a file, waits for a line in its first life; prints "done LIVES" in the last. */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_int running;
static char **next;

static void *spin(void *executes)
{
    atomic_fetch_add(&running, 1);
    if (executes) {
        while (atomic_load(&running) < 3) {
        }
        /* Some of the lives are long enough to be sampled more than once. */
        usleep(atoi(next[3]) % 4 * 1000);
        execv("/proc/self/exe", next);
        perror("exec");
        exit(1);
    }
    for (;;) {
    }
    return NULL;
}

int main(int count, char **words)
{
    if (count < 3)
        return 2;
    long lives = atol(words[1]);
    long life = count > 3 ? atol(words[3]) : 0;
    if (life == 0) {
        printf("ready %d\n", getpid());
        fflush(stdout);
        char c;
        while (read(0, &c, 1) == 1 && c != '\n') {
        }
    }
    struct pollfd input = {.fd = 0, .events = POLLIN};
    int is_told = lives == 0 && life > 0 && poll(&input, 1, 0) > 0;
    if (is_told || (lives > 0 && life >= lives)) {
        printf("done %ld\n", life);
        return 0;
    }
    char text[32];
    snprintf(text, sizeof text, "%ld", life + 1);
    char *arguments[] = {words[0], words[1], words[2], text, NULL};
    next = arguments;
    int is_leader = strcmp(words[2], "leader") == 0;
    pthread_t thread;
    for (int i = 0; i < (is_leader ? 3 : 2); i++)
        pthread_create(&thread, NULL, spin, NULL);
    if (is_leader) {
        while (atomic_load(&running) < 3) {
        }
        usleep(atoi(text) % 4 * 1000);
        execv("/proc/self/exe", next);
        perror("exec");
        return 1;
    }
    pthread_create(&thread, NULL, spin, next);
    for (;;) {
    }
}
