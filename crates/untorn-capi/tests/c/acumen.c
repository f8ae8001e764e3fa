/* untorn/acumen.h: every function with arguments that work and with ones that do
 * not. Usage: acumen DIR; exits with 0 if all is well. */
#define _DEFAULT_SOURCE

#include <untorn.h>
#include <untorn/acumen.h>

#define MMAP ato_mmap
#include "mapping.h"
#include "process.h"

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

/* Whether these bytes are at an address, and zeros behind them. */
static int holds(const char *at, const char *text, size_t zeros) {
    char seen[64];
    size_t n = strlen(text);
    CHECK(ato_memcpy(seen, at, n + zeros));
    for (size_t i = n; i < n + zeros; i++) {
        if (seen[i]) return 0;
    }
    return memcmp(seen, text, n) == 0;
}

/* The file is resized between two mappings, by the program itself. */
static void resized_between(const char *dir) {
    const char *path = in_dir(dir, "resized");
    int fd = plain(path, 2 * page);
    char *file = mapped(2 * page, RW, fd, 0);
    CHECK(ato_memcpy(file + page + 10, "kept", 4));
    CHECK(ato_munmap(file, 2 * page) == 0);

    CHECK(ftruncate(fd, (off_t)(4 * page)) == 0);
    file = mapped(4 * page, RW, fd, 0);
    CHECK(holds(file + page + 10, "kept", 40) && holds(file + 3 * page, "", 40));
    CHECK(ato_memcpy(file + 3 * page, "tail", 4));
    CHECK(ato_munmap(file, 4 * page) == 0);

    /* Within the slice that was written, and beyond the pages that were. */
    CHECK(ftruncate(fd, (off_t)(page + 12)) == 0);
    file = mapped(4 * page, RW, fd, 0);
    CHECK(holds(file + page + 10, "ke", 0));
    CHECK(FAILS(ato_memcpy(file + page + 12, "x", 1), NULL, EFAULT));
    CHECK(ato_munmap(file, 4 * page) == 0);
    CHECK(ftruncate(fd, (off_t)(4 * page)) == 0);
    file = mapped(4 * page, RW, fd, 0);
    CHECK(holds(file + page + 10, "ke", 40) && holds(file + 3 * page, "", 40));

    /* Down and up again, to the same length; and made anew. */
    CHECK(ato_memcpy(file + 3 * page, "gone", 4) && ato_munmap(file, 4 * page) == 0);
    CHECK(ftruncate(fd, (off_t)page) == 0 && ftruncate(fd, (off_t)(4 * page)) == 0);
    file = mapped(4 * page, RW, fd, 0);
    CHECK(holds(file + page + 10, "", 40) && holds(file + 3 * page, "", 40));
    CHECK(ato_memcpy(file, "old", 3) && ato_munmap(file, 4 * page) == 0);
    CHECK(close(fd) == 0);
    fd = open(path, O_RDWR | O_TRUNC);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)page) == 0);
    file = mapped(page, RW, fd, 0);
    CHECK(holds(file, "", 40) && ato_memcpy(file, "new", 3) && ato_munmap(file, page) == 0);

    /* Another program writes to the closed file: nothing of it is hidden. */
    CHECK(pwrite(fd, "edited", 6, 1) == 6);
    file = mapped(page, RW, fd, 0);
    CHECK(holds(file, "nedited", 40) && ato_munmap(file, page) == 0);
    CHECK(close(fd) == 0);
}

/* It is resized while it is mapped. */
static void resized_meanwhile(const char *dir) {
    int fd = plain(in_dir(dir, "grown"), 2 * page);
    char *file = mapped(8 * page, RW, fd, 0);
    CHECK(ato_memcpy(file + 2 * page - 2, "ab", 2));
    CHECK(FAILS(ato_memcpy(file + 2 * page, "x", 1), NULL, EFAULT));

    /* By ftruncate: a copy that reaches beyond the old end, and another mapping. */
    CHECK(ftruncate(fd, (off_t)(4 * page)) == 0);
    CHECK(ato_memcpy(file + 3 * page, "c", 1) && holds(file + 2 * page - 2, "ab", 40));
    CHECK(FAILS(ato_memcpy(file + 4 * page, "x", 1), NULL, EFAULT));
    CHECK(ftruncate(fd, (off_t)(6 * page)) == 0);
    char *larger = mapped(6 * page, RW, fd, 0);
    CHECK(holds(larger + 5 * page, "", 40) && ato_memcpy(larger + 5 * page, "d", 1));
    CHECK(holds(file + 5 * page, "d", 40));

    /* By ato_ftruncate, both ways. */
    CHECK(ato_ftruncate(fd, (off_t)page) == 0);
    CHECK(FAILS(ato_memcpy(file + page, "x", 1), NULL, EFAULT));
    CHECK(ato_ftruncate(fd, (off_t)(6 * page)) == 0);
    CHECK(holds(file + 2 * page - 2, "", 40) && holds(larger + 5 * page, "", 40));
    CHECK(FAILS(ato_ftruncate(fd, -1), -1, EINVAL) && FAILS(ato_ftruncate(-1, 1), -1, EBADF));
    CHECK(ato_memcpy(file + 5 * page, "e", 1));

    /* A growth that nobody used until the end is no reason to refuse the file. */
    CHECK(ftruncate(fd, (off_t)(7 * page)) == 0);
    CHECK(ato_munmap(larger, 6 * page) == 0 && ato_munmap(file, 8 * page) == 0);
    file = mapped(8 * page, RW, fd, 0);
    CHECK(holds(file + 5 * page, "e", 40) && holds(file + 6 * page, "", 40));
    CHECK(FAILS(ato_memcpy(file + 7 * page, "x", 1), NULL, EFAULT));
    CHECK(ato_munmap(file, 8 * page) == 0);

    /* At rest. */
    CHECK(ato_ftruncate(fd, (off_t)(5 * page + 1)) == 0);
    char seen[2];
    CHECK(pread(fd, seen, 2, (off_t)(5 * page)) == 1 && seen[0] == 'e');
    int reading = open(in_dir(dir, "grown"), O_RDONLY);
    CHECK(FAILS(ato_ftruncate(reading, 0), -1, EACCES));
    CHECK(close(fd) == 0 && close(reading) == 0);
}

/* Commits of several copies. */
static void commits(const char *dir) {
    const char *path = in_dir(dir, "commits");
    int fd = plain(path, 2 * page);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char *file = ato_mmap(NULL, 2 * page, RW, MAP_SHARED | ATO_PER_COMMIT, fd, 0);
        CHECK(file != MAP_FAILED && ato_memcpy(file, "from", 4) && ato_memcpy(file + page, "to", 2));
        CHECK(ato_msync(file + page, 1, MS_SYNC) == 0);
        CHECK(ato_memcpy(file, "lost", 4));
        _exit(0);
    }
    ended(child);
    char *file = ato_mmap(NULL, 2 * page, RW, MAP_SHARED | ATO_PER_COMMIT, fd, 0);
    CHECK(file != MAP_FAILED && holds(file, "from", 40) && holds(file + page, "to", 40));
    CHECK(refused(page, RW, MAP_SHARED, fd, 0) == EBUSY);
    CHECK(FAILS(ato_msync(file, 2 * page + 1, MS_SYNC), -1, ENOMEM));
    CHECK(FAILS(ato_msync(file, page, MS_SYNC | MS_ASYNC), -1, EINVAL));
    /* An unmap commits. */
    CHECK(ato_memcpy(file, "last", 4) && ato_munmap(file, 2 * page) == 0);
    file = mapped(2 * page, RW, fd, 0);
    CHECK(holds(file, "last", 40) && ato_msync(file, 0, MS_ASYNC) == 0);
    CHECK(ato_munmap(file, 2 * page) == 0 && close(fd) == 0);
}

static void space(const char *dir) {
    enum { LENGTH = 64 * 4096 };
    static char block[LENGTH];
    int fd = plain(in_dir(dir, "space"), LENGTH);
    char *file = mapped(LENGTH, RW, fd, 0);
    memset(block, 'b', LENGTH);
    /* To the reflection pages, and home again: then they hold nothing. */
    for (int i = 0; i < 2; i++) CHECK(ato_memcpy(file, block, LENGTH));
    CHECK(ato_reclaim(file + 5) == LENGTH && ato_reclaim(file) == 0);
    CHECK(ato_memcpy(file, block, LENGTH) && holds(file + LENGTH - 3, "bbb", 0));
    CHECK(FAILS(ato_reclaim(block), -1, EINVAL));
    CHECK(ato_munmap(file, LENGTH) == 0 && close(fd) == 0);
}

/* Another process maps the file, first or second, and is killed. */
static void processes(const char *dir) {
    const char *path = in_dir(dir, "processes");
    int fd = plain(path, 2 * page);
    for (int is_first = 0; is_first < 2; is_first++) {
        int go[2], done[2];
        CHECK(pipe(go) == 0 && pipe(done) == 0);
        pid_t child = fork_waiting(go[0]);
        char *file = NULL, text[2] = {(char)('0' + is_first), 0}, byte;
        if (child == 0) {
            file = mapped(2 * page, RW, fd, 0);
            if (!is_first) CHECK(holds(file + 10, "parent", 40));
            CHECK(ato_memcpy(file + page, text, 1));
            done_until_killed(done[1]);
        }
        if (!is_first) {
            file = mapped(2 * page, RW, fd, 0);
            CHECK(ato_memcpy(file + 10, "parent", 6));
        }
        CHECK(write(go[1], "", 1) == 1 && read(done[0], &byte, 1) == 1);
        if (is_first) file = mapped(2 * page, RW, fd, 0);
        CHECK(holds(file + page, text, 0) && ato_memcpy(file + page + 1, "beside", 6));
        CHECK(ato_ftruncate(fd, (off_t)(3 * page)) == 0);
        CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
        CHECK(holds(file + 10, "parent", 40) && holds(file + page, text, 0) && holds(file + page + 1, "beside", 40));
        CHECK(ato_memcpy(file + page, "on", 2) && holds(file + page, "oneside", 40));
        CHECK(ato_munmap(file, 2 * page) == 0);
        for (int i = 0; i < 2; i++) CHECK(close(go[i]) == 0 && close(done[i]) == 0);
    }
    char seen[7];
    CHECK(pread(fd, seen, 7, (off_t)page) == 7 && memcmp(seen, "oneside", 7) == 0);
    CHECK(close(fd) == 0);
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
    resized_between(argv[1]);
    resized_meanwhile(argv[1]);
    commits(argv[1]);
    space(argv[1]);
    processes(argv[1]);
    threads(argv[1]);
    return 0;
}
