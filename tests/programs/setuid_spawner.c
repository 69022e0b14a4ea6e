// Starts a setuid program over and over, and counts how often it began without its privileges.
//
// usage: setuid_spawner PROGRAM COUNT fork|spawn PAUSE_US   starts PROGRAM check; each child of a fork computes for PAUSE_US first
//        setuid_spawner check                               exits with 0 where its effective user is root, else with 1
// Prints "ready PID", starts at a line on stdin, then prints "lost LOST of COUNT".
#define _GNU_SOURCE
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "check") == 0) return geteuid() != 0;
    if (argc < 5) return 2;
    char *arguments[] = {argv[1], "check", NULL};
    long count = atol(argv[2]), lost = 0;
    uint64_t pause_ns = (uint64_t)atol(argv[4]) * 1000;
    printf("ready %d\n", getpid());
    fflush(stdout);
    char line[64];
    if (fgets(line, sizeof line, stdin) == NULL) return 2;
    for (long i = 0; i < count; i++) {
        pid_t child;
        if (strcmp(argv[3], "spawn") == 0) {
            if (posix_spawn(&child, argv[1], NULL, NULL, arguments, environ) != 0) return 2;
        } else {
            child = fork();
            if (child < 0) return 2;
            if (child == 0) {
                uint64_t end = now_ns() + pause_ns;
                while (now_ns() < end) {}
                execv(argv[1], arguments);
                _exit(2);
            }
        }
        int status;
        while (waitpid(child, &status, 0) < 0) {}
        lost += status != 0;
    }
    printf("lost %ld of %ld\n", lost, count);
    return 0;
}
