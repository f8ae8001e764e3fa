/* UNTORN_SHARED: one file open in several processes.
 * Usage: several DIR; exits with 0 if all is well. */
#define _DEFAULT_SOURCE

#include <untorn.h>

#include "check.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static char *path;

static untorn_options options(uint32_t flags, uint32_t durability) {
    untorn_options options = UNTORN_OPTIONS_INIT;
    options.flags = flags;
    options.length = 1 << 20;
    options.durability = durability;
    return options;
}

static untorn_t *open_shared(uint32_t durability) {
    untorn_options wanted = options(UNTORN_SHARED | UNTORN_CREATE, durability);
    untorn_error error;
    untorn_t *file = untorn_open(path, &wanted, &error);
    CHECK(file && error.code == 0);
    return file;
}

static void refused(const untorn_options *wanted, int code, const char *word, const char *other) {
    untorn_error error;
    CHECK(!untorn_open(path, wanted, &error) && error.code == code);
    CHECK(strstr(error.message, word) && strstr(error.message, other));
}

static void holds(untorn_t *file, uint64_t offset, const char *text) {
    char found[64] = {0};
    CHECK(untorn_read(file, offset, found, strlen(text)) == 0 && memcmp(found, text, strlen(text)) == 0);
}

/* A process that opens the file, writes a text over a page boundary, says that it did, and waits to be killed. */
static pid_t writer(const char *text, uint32_t durability) {
    int ready[2];
    char byte = 0;
    CHECK(pipe(ready) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        CHECK(untorn_write(open_shared(durability), 4090, text, strlen(text)) == 0);
        CHECK(write(ready[1], "!", 1) == 1);
        for (;;) {
            pause();
        }
    }
    CHECK(close(ready[1]) == 0 && read(ready[0], &byte, 1) == 1 && close(ready[0]) == 0);
    return child;
}

static void kill_it(pid_t child) {
    int status;
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status));
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    path = in_dir(argv[1], "ledger");

    /* Durable at each write: whoever is killed, nothing is lost. */
    pid_t first = writer("of the first", UNTORN_DURABILITY_PER_WRITE);
    untorn_t *file = open_shared(UNTORN_DURABILITY_AUTO);
    holds(file, 4090, "of the first");
    CHECK(untorn_write(file, 8000, "mine", 4) == 0);
    pid_t second = writer("of the second", UNTORN_DURABILITY_PER_WRITE);
    holds(file, 4090, "of the second");
    kill_it(first);
    holds(file, 4090, "of the second");
    holds(file, 8000, "mine");

    /* What does not agree is refused, with both. */
    untorn_options wanted = options(UNTORN_SHARED, UNTORN_DURABILITY_PER_COMMIT);
    refused(&wanted, UNTORN_EBUSY, "this process", "options");
    wanted = options(0, 0);
    refused(&wanted, UNTORN_EBUSY, "this process", "shared");
    wanted = options(UNTORN_SHARED | UNTORN_READ_ONLY, 0);
    CHECK(untorn_close(file) == 0);
    refused(&wanted, UNTORN_EINVAL, "for writing", "share");
    wanted = options(UNTORN_SHARED, UNTORN_DURABILITY_PER_COMMIT);
    refused(&wanted, UNTORN_EBUSY, "durability write", "asks for commit");
    wanted = options(0, 0);
    refused(&wanted, UNTORN_EBUSY, "in use by process", "has it as a shared file");
    kill_it(second);
    file = open_shared(UNTORN_DURABILITY_AUTO);
    holds(file, 4090, "of the second");
    CHECK(untorn_settle(file) == 0);

    /* Durable at each commit: the epoch goes with the process that had the file open, and all are told. */
    first = writer("of the epoch", UNTORN_DURABILITY_PER_COMMIT);
    file = open_shared(UNTORN_DURABILITY_PER_COMMIT);
    holds(file, 4090, "of the epoch");
    kill_it(first);
    char byte;
    CHECK(untorn_write(file, 0, "x", 1) == UNTORN_EPOISONED);
    CHECK(untorn_read(file, 0, &byte, 1) == UNTORN_EPOISONED);
    CHECK(untorn_sync(file) == UNTORN_EPOISONED);
    untorn_close(file);
    file = open_shared(UNTORN_DURABILITY_PER_COMMIT);
    holds(file, 4090, "of the second");
    CHECK(untorn_write(file, 0, "x", 1) == 0 && untorn_sync(file) == 0 && untorn_close(file) == 0);
    return 0;
}
