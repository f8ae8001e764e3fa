/* What the test programs share: checks that say where they failed. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>

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

/* The path of a file in the directory the test gave; it lives until the end. */
static char *in_dir(const char *dir, const char *name) {
    char *path = malloc(4096);
    if (!path) exit(1);
    snprintf(path, 4096, "%s/%s", dir, name);
    return path;
}

#endif
