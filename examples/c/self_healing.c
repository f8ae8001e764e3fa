/* A table of counters in a mapping of the program's own, made self-healing: the
 * program stores to it as ever, something damages the file behind its back, and
 * the damage is found and repaired.
 *
 *     self_healing FILE
 */
#define _POSIX_C_SOURCE 200809L
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <untorn/protect.h>

#define LENGTH (64 * 4096)

static int fail(const char *what)
{
    untorn_error error;
    untorn_last_error(&error);
    fprintf(stderr, "%s: %s\n", what, error.message);
    return 1;
}

/* Does what a failing device does: bytes change, and the file's time does not. */
static int damage(int fd, off_t at)
{
    struct stat before;
    char byte;
    if (fstat(fd, &before) || pread(fd, &byte, 1, at) != 1)
        return -1;
    byte ^= 4;
    struct timespec times[2] = { before.st_atim, before.st_mtim };
    return pwrite(fd, &byte, 1, at) == 1 && futimens(fd, times) == 0 && fsync(fd) == 0 ? 0 : -1;
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return fprintf(stderr, "usage: self_healing FILE\n"), 64;
    int fd = open(argv[1], O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, LENGTH))
        return perror(argv[1]), 74;
    uint64_t *counters = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (counters == MAP_FAILED)
        return perror("mmap"), 74;

    untorn_redundancy_options options = UNTORN_REDUNDANCY_OPTIONS_INIT;
    options.period_ms = 100;
    int code = untorn_protect(counters, LENGTH, &options);
    if (code == UNTORN_EINVAL) {
        untorn_error why;
        untorn_last_error(&why);
        if (strstr(why.message, "cannot be tracked here"))
            return printf("skipped: %s\n", why.message), 0;
    }
    if (code)
        return fail("untorn_protect");
    for (uint64_t i = 0; i < LENGTH / sizeof *counters; i++)
        counters[i] = i * i;
    if (untorn_redundancy_sync(counters))
        return fail("untorn_redundancy_sync");

    if (damage(fd, 10 * 4096 + 123))
        return perror("damage"), 74;
    uint64_t damaged = 0, repaired = 0, wrong = 0;
    if (untorn_redundancy_scrub(counters, &damaged) != UNTORN_EBADMSG)
        return fprintf(stderr, "the damage was not noticed\n"), 1;
    if (untorn_redundancy_repair(counters, &repaired))
        return fail("untorn_redundancy_repair");
    for (uint64_t i = 0; i < LENGTH / sizeof *counters; i++)
        wrong += counters[i] != i * i;
    if (untorn_unprotect(counters))
        return fail("untorn_unprotect");
    munmap(counters, LENGTH);
    close(fd);
    printf("%d damaged, %d repaired, %d counters wrong\n", (int)damaged, (int)repaired, (int)wrong);
    return wrong != 0;
}
