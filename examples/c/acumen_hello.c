/*
 * The Acumen paper's interface: one file mapped twice, the second mapping at an
 * offset and overlapping the first. What is written through one is read through
 * the other; a write over a page boundary is atomic.
 *
 * Usage: acumen_hello FILE
 */
#define _POSIX_C_SOURCE 200809L

#include <untorn.h>
#include <untorn/acumen.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char greeting[] = "hello across a page boundary, all of it or none";

static int give_up(const char *doing) {
    int number = errno;
    untorn_error error;
    untorn_last_error(&error);
    fprintf(stderr, "%s: %s: %s\n", doing, strerror(number), error.message);
    return 2;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: acumen_hello FILE\n");
        return 64;
    }
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int fd = open(argv[1], O_RDWR | O_CREAT, 0644);
    if (fd < 0 || ftruncate(fd, (off_t)(3 * page)) != 0) {
        perror(argv[1]);
        return 2;
    }

    /* The whole file, and from its second page on. */
    char *whole = ato_mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (whole == MAP_FAILED) return give_up("map the file");
    char *tail = ato_mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)page);
    if (tail == MAP_FAILED) return give_up("map its tail");

    /* Pages two and three of the file, through either mapping. */
    char *in_whole = whole + 2 * page - 20;
    char *in_tail = tail + page - 20;
    char seen[sizeof greeting];
    if (!ato_memcpy(in_whole, greeting, sizeof greeting)) return give_up("write");
    if (!ato_memcpy(seen, in_tail, sizeof seen)) return give_up("read");
    printf("written through one mapping, read through the other: %s\n", seen);
    if (memcmp(seen, greeting, sizeof greeting) != 0) return 1;

    /* From one place of the file to another, and into the data file at once. */
    if (!ato_memcpy2(whole, in_tail, sizeof greeting, ATO_EAGER)) return give_up("copy within the file");

    /* Past the end nothing is copied. */
    if (ato_memcpy(whole + 3 * page - 4, greeting, sizeof greeting) || errno != EFAULT) {
        fprintf(stderr, "a write past the end did not fail with EFAULT\n");
        return 1;
    }

    /* A plain file again, once the last mapping has gone. */
    if (ato_unmap_mode(whole, ATO_SPATIAL)) return give_up("choose the unmap mode");
    if (ato_munmap(whole, 3 * page)) return give_up("unmap the file");
    if (ato_munmap(tail, 2 * page)) return give_up("unmap its tail");
    memset(seen, 0, sizeof seen);
    if (pread(fd, seen, sizeof seen, 0) != (ssize_t)sizeof seen || memcmp(seen, greeting, sizeof greeting) != 0) {
        fprintf(stderr, "the settled file does not hold what was written\n");
        return 1;
    }
    printf("settled: read(2) sees it too\n");
    return close(fd) ? 2 : 0;
}
