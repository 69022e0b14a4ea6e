/* usage: many_sleepers N. N threads sleep in futexes, one computes. Prints "ready PID", and ends with stdin. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static int asleep;

static void *sleeper(void *unused)
{
    pthread_mutex_lock(&mutex);
    asleep++;
    for (;;)
        pthread_cond_wait(&condition, &mutex);
    return unused;
}

static void *computer(void *unused)
{
    for (volatile unsigned long number = 0;; number++) {
    }
    return unused;
}

int main(int count, char **words)
{
    int wanted = count > 1 ? atoi(words[1]) : 1000;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 64 << 10);
    pthread_t thread;
    for (int i = 0; i < wanted; i++)
        if (pthread_create(&thread, &attributes, sleeper, NULL))
            return 1;
    for (int there = 0; there < wanted; usleep(1000)) {
        pthread_mutex_lock(&mutex);
        there = asleep;
        pthread_mutex_unlock(&mutex);
    }
    pthread_create(&thread, NULL, computer, NULL);
    printf("ready %d\n", getpid());
    fflush(stdout);
    char c;
    while (read(0, &c, 1) == 1) {
    }
    _exit(0);
}
