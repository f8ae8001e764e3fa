/* A process that another one of the test directs through pipes. */
#ifndef PROCESS_H
#define PROCESS_H

#include "check.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

/* A child that ends with this process: if a test fails nobody would wake it. 0 in
 * the child, once a byte has come from `go`. */
static inline pid_t fork_waiting(int go) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) return child;
    CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    char byte;
    CHECK(read(go, &byte, 1) == 1);
    return 0;
}

/* In the child: says that it is done, and waits to be killed. */
static inline void done_until_killed(int done) {
    CHECK(write(done, "", 1) == 1);
    pause();
    _exit(1);
}

/* Has a child go on until it is done, and kills it. */
static inline void run_and_kill(pid_t child, int go, int done) {
    char byte;
    CHECK(write(go, "", 1) == 1 && read(done, &byte, 1) == 1);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
}

#endif
