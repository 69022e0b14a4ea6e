// Holds all threads of a process as a debugger does that lets them run: seized, and not stopped.
//
// usage: fault_tracer PID. Prints "traced"; at the end of its stdin it ends, and the kernel lets the threads go.
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    char path[64];
    snprintf(path, sizeof path, "/proc/%s/task", argv[1]);
    DIR *tasks = opendir(path);
    if (tasks == NULL) return 2;
    for (struct dirent *task = readdir(tasks); task != NULL; task = readdir(tasks)) {
        int tid = atoi(task->d_name);
        if (tid > 0 && ptrace(PTRACE_SEIZE, tid, NULL, NULL) != 0) {
            perror("ptrace");
            return 1;
        }
    }
    printf("traced\n");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {}
    return 0;
}
