/* What the test programs share: checks that say where they failed, and children. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            untorn_error last_;                                                            \
            untorn_last_error(&last_);                                                     \
            fprintf(stderr, "%s:%d: %s is false; last error %d: %s\n", __FILE__, __LINE__, \
                    #condition, last_.code, last_.message);                                \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

/* Whether an expression fails with this errno. */
#define FAILS(expression, failed, number) (errno = 0, (expression) == (failed) && errno == (number))

/* The code of a call that is to fail with a text that names `word`. */
static inline int told(int code, const char *word) {
    untorn_error last;
    CHECK(code < 0 && untorn_last_error(&last) == 0);
    CHECK(last.code == code && strstr(last.message, word));
    return code;
}

/* Waits for a child, that must end well. */
static inline void ended(pid_t child) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

/* The path of a file in the directory the test gave; it lives until the end. */
static inline char *in_dir(const char *dir, const char *name) {
    char *path = malloc(4096);
    if (!path) exit(1);
    snprintf(path, 4096, "%s/%s", dir, name);
    return path;
}

#endif
