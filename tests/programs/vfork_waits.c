/* A child between vfork and exec for as long as its starter likes: it has its parent's memory until then.
 *
 * The child prints "ready PID" with its pid, waits for a line, and execs this program anew, which computes until stdin ends. */
#include <poll.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((noinline)) static void compute_after_exec(void)
{
    /* stdin is a pipe: no end of it until its starter closes that. */
    struct pollfd in = {.fd = 0, .events = POLLIN};
    for (volatile long i = 1; i % 1000000 != 0 || poll(&in, 1, 0) == 0; i++) {
    }
}

int main(int count, char **words)
{
    if (count > 1) {
        compute_after_exec();
        return 0;
    }
    pid_t child = vfork();
    if (child == 0) {
        char c, line[32];
        int length = snprintf(line, sizeof line, "ready %d\n", getpid());
        if (write(1, line, length) == length)
            while (read(0, &c, 1) == 1 && c != '\n') {
            }
        execl("/proc/self/exe", words[0], "compute", (char *)NULL);
        _exit(1);
    }
    int status;
    return waitpid(child, &status, 0) == child ? WEXITSTATUS(status) : 1;
}
