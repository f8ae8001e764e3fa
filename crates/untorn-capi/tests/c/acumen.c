/* untorn/acumen.h: every function with arguments that work and with ones that do
 * not. Usage: acumen DIR; exits with 0 if all is well. */
#define _DEFAULT_SOURCE

#include <untorn.h>
#include <untorn/acumen.h>

#define MMAP ato_mmap
#include "mapping.h"

static void bad_mappings(const char *dir) {
    const char *path = in_dir(dir, "bad");
    int fd = plain(path, 2 * page);
    refused_by_both(dir, path, fd);
    CHECK(refused(SIZE_MAX, RW, MAP_SHARED, fd, 0) == EINVAL);
    CHECK(refused(page, RW, MAP_SHARED | MAP_ANONYMOUS, fd, 0) == EINVAL);
    CHECK(refused(page, RW | PROT_EXEC, MAP_SHARED, fd, 0) == EOPNOTSUPP);
    CHECK(refused(page, PROT_NONE, MAP_SHARED, fd, 0) == EOPNOTSUPP);
    int ends[2];
    CHECK(pipe(ends) == 0);
    CHECK(refused(page, PROT_READ, MAP_SHARED, ends[0], 0) == ENODEV);
    int writing = open(path, O_WRONLY);
    CHECK(refused(page, RW, MAP_SHARED, writing, 0) == EACCES);
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0 && close(writing) == 0);

    /* Some of these calls failed after the file had been opened and given a
     * sidecar, which is not to be left behind. */
    char *whole = mapped(page, RW, fd, 0);
    CHECK(ato_unmap_mode(whole, ATO_SPATIAL) == 0 && ato_munmap(whole, page) == 0);

    /* A removed file, and another one that now has the name the link shows. */
    CHECK(unlink(path) == 0);
    CHECK(refused(page, RW, MAP_SHARED, fd, 0) == ENOENT);
    int decoy = plain(in_dir(dir, "bad (deleted)"), page);
    CHECK(refused(page, RW, MAP_SHARED, fd, 0) == ENOENT);
    char *named = mapped(page, RW, decoy, 0);
    CHECK(ato_unmap_mode(named, ATO_SPATIAL) == 0 && ato_munmap(named, page) == 0);
    CHECK(close(fd) == 0 && close(decoy) == 0);
}

static void copies(const char *dir) {
    char seen[64], text[] = "over the page boundary";
    size_t n = sizeof text;
    int fd = plain(in_dir(dir, "copies"), 3 * page);
    char *whole = mapped(3 * page, RW, fd, 0);
    char *again = mapped(3 * page, RW, fd, 0);
    char *tail = mapped(2 * page, RW, fd, (off_t)page);
    char *reading = mapped(page + 7, PROT_READ, fd, (off_t)page);
    CHECK(whole != again);
    CHECK(close(fd) == 0);

    CHECK(ato_memcpy(whole + 2 * page - 5, text, n) == whole + 2 * page - 5);
    CHECK(ato_memcpy(seen, again + 2 * page - 5, n) == seen && memcmp(seen, text, n) == 0);
    memset(seen, 0, sizeof seen);
    CHECK(ato_memcpy(seen, tail + page - 5, n) == seen && memcmp(seen, text, n) == 0);

    /* Between two places of the file, eagerly; and with memory on both sides. */
    CHECK(ato_memcpy2(whole + 100, tail + page - 5, n, ATO_EAGER) == whole + 100);
    memset(seen, 0, sizeof seen);
    CHECK(ato_memcpy2(seen, again + 100, n, 0) == seen && memcmp(seen, text, n) == 0);
    memset(seen, 0, sizeof seen);
    CHECK(ato_memcpy(seen, text, n) == seen && memcmp(seen, text, n) == 0);
    CHECK(FAILS(ato_memcpy2(whole, text, n, 2), NULL, EINVAL));

    /* Past the end of the mapping, of its last page's used part, of the file. */
    CHECK(FAILS(ato_memcpy(whole + 3 * page - 1, text, 2), NULL, EFAULT));
    CHECK(FAILS(ato_memcpy(seen, reading + page, 8), NULL, EFAULT));
    CHECK(ato_memcpy(seen, reading + page, 7) == seen);
    CHECK(FAILS(ato_memcpy(seen, reading + page + 7, 1), NULL, EFAULT));
    CHECK(FAILS(ato_memcpy(NULL, text, 1), NULL, EFAULT));
    CHECK(FAILS(ato_memcpy(whole, NULL, 1), NULL, EFAULT));
    CHECK(FAILS(ato_memcpy(NULL, whole, 1), NULL, EFAULT));
    CHECK(ato_memcpy(seen, NULL, 0) == seen);
    CHECK(FAILS(ato_memcpy(reading, text, 1), NULL, EACCES));

    CHECK(FAILS(ato_munmap(whole, page), -1, EINVAL));
    CHECK(FAILS(ato_munmap(whole + page, page), -1, EINVAL));
    CHECK(ato_munmap(whole, 3 * page) == 0);
    CHECK(FAILS(ato_munmap(whole, 3 * page), -1, EINVAL));
    CHECK(ato_munmap(NULL, page) == -1);
    CHECK(ato_memcpy(seen, again + 100, n) == seen && memcmp(seen, text, n) == 0);
    CHECK(ato_munmap(again, 3 * page) == 0);
    CHECK(ato_munmap(tail, 2 * page) == 0);
    CHECK(ato_munmap(reading, page + 1) == 0);
}

static void beyond_the_file(const char *dir) {
    char byte = 'x';
    const char *path = in_dir(dir, "short");
    int fd = plain(path, page);
    char *address = mapped(4 * page, RW, fd, 0);
    CHECK(ato_memcpy(address + page - 1, &byte, 1));
    CHECK(FAILS(ato_memcpy(address + page, &byte, 1), NULL, EFAULT));
    untorn_options options = UNTORN_OPTIONS_INIT;
    options.durability = UNTORN_DURABILITY_PER_WRITE;
    untorn_t *file = untorn_open(path, &options, NULL);
    CHECK(file && untorn_resize(file, 4 * page) == 0);
    CHECK(ato_memcpy(address + page, &byte, 1));

    /* The native handle keeps the file from being settled. */
    CHECK(ato_unmap_mode(address, ATO_SPATIAL) == 0);
    CHECK(FAILS(ato_munmap(address, 4 * page), -1, EBUSY));
    CHECK(untorn_settle(file) == 0);
    CHECK(close(fd) == 0);
}

static void modes(const char *dir) {
    char text[] = "settled", seen[sizeof text];
    const char *path = in_dir(dir, "modes");
    int fd = plain(path, 2 * page);
    char *address = mapped(page, RW, fd, 0);
    CHECK(FAILS(ato_unmap_mode(address, 7), -1, EINVAL));
    CHECK(FAILS(ato_unmap_mode(address + page, ATO_FAST), -1, EINVAL));
    CHECK(ato_unmap_mode(NULL, ATO_FAST) == -1);
    CHECK(ato_memcpy(address, text, sizeof text));

    /* Fast: the next mapping sees it. Spatial: a plain read sees it. */
    CHECK(ato_unmap_mode(address, ATO_FAST) == 0);
    CHECK(ato_munmap(address, page) == 0);
    address = mapped(page, RW, fd, 0);
    char *second = mapped(page, RW, fd, 0);
    CHECK(ato_memcpy(seen, address, sizeof seen) && memcmp(seen, text, sizeof text) == 0);
    CHECK(ato_memcpy(address + 10, text, sizeof text));
    CHECK(ato_unmap_mode(address, ATO_SPATIAL) == 0);
    CHECK(ato_munmap(address, page) == 0);
    CHECK(ato_memcpy(second + 20, text, sizeof text));
    CHECK(ato_munmap(second, page) == 0);
    for (off_t at = 0; at <= 20; at += 10) {
        CHECK(pread(fd, seen, sizeof seen, at) == (ssize_t)sizeof seen && memcmp(seen, text, sizeof text) == 0);
    }

    /* A read-only descriptor, alone and beside a writable mapping. */
    int reading = open(path, O_RDONLY);
    address = mapped(page, RW, fd, 0);
    second = mapped(page, PROT_READ, reading, 0);
    CHECK(ato_memcpy(address + 30, text, sizeof text));
    CHECK(ato_memcpy(seen, second + 30, sizeof seen) && memcmp(seen, text, sizeof text) == 0);
    CHECK(ato_munmap(address, page) == 0 && ato_munmap(second, page) == 0);
    second = mapped(page, PROT_READ, reading, 0);
    CHECK(ato_memcpy(seen, second + 30, sizeof seen) && memcmp(seen, text, sizeof text) == 0);
    CHECK(FAILS(ato_memcpy(second, text, 1), NULL, EACCES));
    CHECK(ato_munmap(second, page) == 0);
    CHECK(close(fd) == 0 && close(reading) == 0);
}

static void fixed(const char *dir) {
    int fd = plain(in_dir(dir, "fixed"), page);
    char *first = mapped(page, RW, fd, 0);
    CHECK(FAILS(ato_mmap(first, page, RW, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0), MAP_FAILED, EEXIST));
    char *hint = ato_mmap(first, page, RW, MAP_SHARED, fd, 0);
    CHECK(hint != MAP_FAILED && hint != first);
    CHECK(ato_munmap(hint, page) == 0);
    CHECK(ato_munmap(first, page) == 0);
    /* Single-threaded here, so the address just freed is free. */
    CHECK(ato_mmap(first, page, RW, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0) == first);
    CHECK(ato_munmap(first, page) == 0);
    CHECK(close(fd) == 0);
}

static void *copier(void *argument) {
    char block[1000];
    for (int round = 0; round < 50; round++) {
        memset(block, round, sizeof block);
        CHECK(ato_memcpy(shared_mapping + page - 500, block, sizeof block));
        CHECK(ato_memcpy(block, shared_mapping + page - 500, sizeof block));
        for (size_t i = 1; i < sizeof block; i++) CHECK(block[i] == block[0]);
        char *own = ato_mmap(NULL, page, RW, MAP_SHARED, shared_fd, 0);
        CHECK(own != MAP_FAILED && ato_munmap(own, page) == 0);
    }
    return argument;
}

static void threads(const char *dir) {
    four_threads(dir, copier);
    CHECK(ato_unmap_mode(shared_mapping, ATO_SPATIAL) == 0);
    CHECK(ato_munmap(shared_mapping, 2 * page) == 0);
    CHECK(close(shared_fd) == 0);
}

int main(int argc, char **argv) {
    if (argc != 2) return 64;
    page = (size_t)sysconf(_SC_PAGESIZE);
    bad_mappings(argv[1]);
    fixed(argv[1]);
    copies(argv[1]);
    beyond_the_file(argv[1]);
    modes(argv[1]);
    threads(argv[1]);
    return 0;
}
