/* untorn/nvmmio.h: every function with arguments that work and with ones that do
 * not. Usage: nvmmio DIR; exits with 0 if all is well. */
#define _DEFAULT_SOURCE

#include <untorn.h>
#include <untorn/acumen.h>
#include <untorn/nvmmio.h>

#define MMAP nvmmap
#include "mapping.h"
#include "process.h"

#include <limits.h>

static void mappings(const char *dir) {
    const char *path = in_dir(dir, "mappings");
    int fd = plain(path, 2 * page);
    refused_by_both(dir, path, fd);

    char *first = mapped(page, RW, fd, 0);
    CHECK(FAILS(nvmmap(first, page, RW, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0), MAP_FAILED, EEXIST));
    /* Per-write durability and per-commit durability exclude each other. */
    CHECK(FAILS(ato_mmap(NULL, page, RW, MAP_SHARED, fd, 0), MAP_FAILED, EBUSY));
    CHECK(FAILS(ato_munmap(first, page), -1, EINVAL));
    CHECK(FAILS(nvmunmap(first + page, page), -1, EINVAL));
    CHECK(FAILS(nvmunmap(first, 2 * page), -1, EINVAL));
    CHECK(nvmunmap(first, 1) == 0);
    CHECK(FAILS(nvmunmap(first, page), -1, EINVAL));
    CHECK(close(fd) == 0);
}

static void copies(const char *dir) {
    char seen[64], text[] = "over the page boundary";
    size_t n = sizeof text;
    int fd = plain(in_dir(dir, "copies"), 3 * page);
    char *whole = mapped(3 * page, RW, fd, 0);
    char *tail = mapped(2 * page, RW, fd, (off_t)page);
    char *reading = mapped(page + 7, PROT_READ, fd, (off_t)page);
    CHECK(close(fd) == 0);

    CHECK(nvmemcpy(whole + 2 * page - 5, text, n) == whole + 2 * page - 5);
    CHECK(nvmemcpy(seen, tail + page - 5, n) == seen && memcmp(seen, text, n) == 0);
    CHECK(nvmemcpy(whole + 100, tail + page - 5, n) == whole + 100);
    memset(seen, 0, sizeof seen);
    CHECK(nvmemcpy(seen, whole + 100, n) == seen && memcmp(seen, text, n) == 0);
    memset(seen, 0, sizeof seen);
    CHECK(nvmemcpy(seen, text, n) == seen && memcmp(seen, text, n) == 0);

    CHECK(FAILS(nvmemcpy(whole + 3 * page - 1, text, 2), NULL, EFAULT));
    CHECK(FAILS(nvmemcpy(seen, reading + page, 8), NULL, EFAULT));
    CHECK(FAILS(nvmemcpy(NULL, text, 1), NULL, EFAULT));
    CHECK(FAILS(nvmemcpy(whole, NULL, 1), NULL, EFAULT));
    CHECK(nvmemcpy(seen, NULL, 0) == seen);
    CHECK(FAILS(nvmemcpy(reading, text, 1), NULL, EACCES));

    /* Fill: over a page boundary, past the end, for reading only, in memory. */
    char filled[64];
    memset(filled, 'z', sizeof filled);
    CHECK(nvmemset(whole + page - 30, 'z' + 256, sizeof filled) == whole + page - 30);
    CHECK(nvmemcmp(whole + page - 30, filled, sizeof filled) == 0);
    CHECK(FAILS(nvmemset(whole + 3 * page - 1, 0, 2), NULL, EFAULT));
    CHECK(FAILS(nvmemset(reading, 0, 1), NULL, EACCES));
    CHECK(FAILS(nvmemset(NULL, 0, 1), NULL, EFAULT));
    CHECK(nvmemset(NULL, 0, 0) == NULL);
    CHECK(nvmemset(seen, 'z', sizeof seen) == seen && memcmp(seen, filled, sizeof seen) == 0);

    CHECK(nvmunmap(whole, 3 * page) == 0);
    CHECK(nvmemcmp(tail, filled, 34) == 0);
    CHECK(nvmunmap(tail, 2 * page) == 0 && nvmunmap(reading, page + 1) == 0);
}

static void comparisons(const char *dir) {
    char low[] = "abc\x01", high[] = "abc\xff";
    int fd = plain(in_dir(dir, "comparisons"), 4 * page);
    char *file = mapped(4 * page, RW, fd, 0);
    CHECK(close(fd) == 0);
    CHECK(nvmemcpy(file, low, sizeof low) && nvmemcpy(file + 100, high, sizeof high));

    CHECK(nvmemcmp(file, file + 100, 3) == 0);
    CHECK(nvmemcmp(file, file + 100, 4) < 0 && nvmemcmp(file + 100, file, 4) > 0);
    CHECK(nvmemcmp(file, high, 4) < 0 && nvmemcmp(high, file, 4) > 0);
    CHECK(nvmemcmp(low, high, 4) < 0);
    CHECK(nvmemcmp(NULL, file, 0) == 0);
    CHECK(FAILS(nvmemcmp(file + 4 * page - 1, low, 2), INT_MIN, EFAULT));
    CHECK(FAILS(nvmemcmp(NULL, low, 1), INT_MIN, EFAULT));

    CHECK(nvstrcmp(file, low) == 0 && nvstrcmp(low, file) == 0 && nvstrcmp(low, low) == 0);
    CHECK(nvstrcmp(file, file + 100) < 0 && nvstrcmp(high, file) > 0);
    CHECK(nvstrcmp(file, "abc") > 0 && nvstrcmp("", file) < 0 && nvstrcmp(file + 50, "") == 0);

    /* One that is longer than what is read at first, and one without an end. */
    static char lengthy[5000];
    memset(lengthy, 'l', sizeof lengthy - 1);
    CHECK(nvmemcpy(file + page - 7, lengthy, sizeof lengthy));
    CHECK(nvstrcmp(file + page - 7, lengthy) == 0);
    CHECK(nvstrcmp(file + page - 7, lengthy + 1) > 0);
    CHECK(nvmemset(file + 3 * page, 'e', page));
    CHECK(FAILS(nvstrcmp(file + 3 * page, "e"), INT_MIN, EFAULT));
    CHECK(FAILS(nvstrcmp(NULL, "e"), INT_MIN, EFAULT));
    CHECK(nvmunmap(file, 4 * page) == 0);
}

/* What a process that ends now leaves of the file. */
static void die_after(const char *path, int commits) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int fd = open(path, O_RDWR);
        char *file = mapped(2 * page, RW, fd, 0);
        CHECK(nvmemset(file, 'c', 2 * page));
        if (commits) CHECK(nvmsync(file + page, 1, MS_SYNC) == 0);
        CHECK(nvmemset(file + 1, 'u', page));
        _exit(0);
    }
    ended(child);
}

static void commits(const char *dir) {
    char seen[4];
    const char *path = in_dir(dir, "commits");
    int fd = plain(path, 2 * page);

    /* Without a commit nothing; with one all before it, on pages it did not name. */
    die_after(path, 0);
    char *file = mapped(2 * page, RW, fd, 0);
    CHECK(nvmemcmp(file, "\0\0", 2) == 0);
    CHECK(nvmunmap(file, 2 * page) == 0);
    die_after(path, 1);
    file = mapped(2 * page, RW, fd, 0);
    CHECK(nvmemcmp(file, "ccc", 3) == 0 && nvmemcmp(file + 2 * page - 3, "ccc", 3) == 0);

    /* What is no range, and what is. */
    CHECK(FAILS(nvmsync(file, 2 * page + 1, MS_SYNC), -1, ENOMEM));
    CHECK(FAILS(nvmsync(seen, 1, MS_SYNC), -1, ENOMEM));
    CHECK(FAILS(nvmsync(file, page, MS_SYNC | MS_ASYNC), -1, EINVAL));
    CHECK(FAILS(nvmsync(file, page, 1 << 20), -1, EINVAL));
    CHECK(nvmsync(file, 2 * page, MS_ASYNC) == 0 && nvmsync(file + 3, 0, MS_SYNC | MS_INVALIDATE) == 0);

    /* Unmapping one of two mappings commits; unmapping the last brings it home. */
    char *second = mapped(page, RW, fd, 0);
    CHECK(nvmemcpy(second, "bye", 3));
    CHECK(nvmunmap(file, 2 * page) == 0);
    untorn_options options = UNTORN_OPTIONS_INIT;
    options.engine = UNTORN_ENGINE_HYBRID_LOG;
    untorn_t *native = untorn_open(path, &options, NULL);
    CHECK(native && untorn_read(native, 0, seen, 3) == 0 && memcmp(seen, "bye", 3) == 0);
    CHECK(untorn_close(native) == 0 && nvmunmap(second, page) == 0);
    CHECK(pread(fd, seen, 3, 0) == 3 && memcmp(seen, "bye", 3) == 0);

    /* A descriptor for reading. */
    int reading = open(path, O_RDONLY);
    file = mapped(page, PROT_READ, reading, 0);
    CHECK(nvmemcmp(file, "bye", 3) == 0 && nvmsync(file, page, MS_SYNC) == 0);
    CHECK(nvmunmap(file, page) == 0);
    CHECK(close(fd) == 0 && close(reading) == 0);
}

static char *inherited[2];
static volatile int over;

/* Maps and unmaps without a pause, so that a fork may come at any moment of it. */
static void *map_and_unmap(void *fd) {
    while (!over) {
        char *address = mapped(page, RW, *(int *)fd, 0);
        CHECK(nvmemset(address, 'p', 10));
        CHECK(nvmunmap(address, page) == 0);
        address = ato_mmap(NULL, page, RW, MAP_SHARED, ((int *)fd)[1], 0);
        CHECK(address != MAP_FAILED && ato_munmap(address, page) == 0);
    }
    return NULL;
}

/* What a child does with its parent's mappings, and with one of its own. */
static void child_of_one_with_mappings(const char *own) {
    char seen[10];
    alarm(60);
    for (int i = 0; i < 2; i++) {
        char *theirs = inherited[i];
        CHECK(FAILS(nvmemset(theirs, 'c', 10), NULL, EOWNERDEAD));
        CHECK(FAILS(nvmemcpy(theirs, "c", 1), NULL, EOWNERDEAD));
        CHECK(FAILS(nvmemcpy(seen, theirs, 10), NULL, EOWNERDEAD));
        CHECK(FAILS(nvmemcmp(theirs, "c", 1), INT_MIN, EOWNERDEAD));
        CHECK(FAILS(nvstrcmp("c", theirs), INT_MIN, EOWNERDEAD));
        CHECK(FAILS(nvmsync(theirs, page, MS_SYNC), -1, EOWNERDEAD));
    }
    CHECK(FAILS(nvmunmap(inherited[0], page), -1, EOWNERDEAD));
    CHECK(FAILS(ato_munmap(inherited[1], page), -1, EOWNERDEAD));

    int fd = open(own, O_RDWR);
    char *file = mapped(2 * page, RW, fd, 0);
    CHECK(nvmemset(file + page, 'o', 10) && nvmsync(file, page, MS_SYNC) == 0);
    CHECK(nvmemcpy(seen, file + page, 10) && memcmp(seen, "oooooooooo", 10) == 0);
    CHECK(nvmunmap(file, 2 * page) == 0 && pread(fd, seen, 1, (off_t)page) == 1 && seen[0] == 'o');
    _exit(0);
}

static void forks(const char *dir) {
    const char *own = in_dir(dir, "own");
    int fd = plain(own, 2 * page);
    int fds[2] = {plain(in_dir(dir, "busy nvm"), page), plain(in_dir(dir, "busy ato"), page)};
    int theirs[2] = {plain(in_dir(dir, "theirs nvm"), page), plain(in_dir(dir, "theirs ato"), page)};
    inherited[0] = mapped(page, RW, theirs[0], 0);
    inherited[1] = ato_mmap(NULL, page, RW, MAP_SHARED, theirs[1], 0);
    CHECK(inherited[1] != MAP_FAILED);
    CHECK(nvmemset(inherited[0], 't', 10) && nvmsync(inherited[0], page, MS_SYNC) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, map_and_unmap, fds) == 0);
    for (int n = 0; n < 100; n++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) child_of_one_with_mappings(own);
        ended(child);
        CHECK(nvmemcmp(inherited[0], "tttttttttt", 10) == 0);
    }
    over = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(nvmunmap(inherited[0], page) == 0 && ato_munmap(inherited[1], page) == 0);
    for (int i = 0; i < 2; i++) CHECK(close(fds[i]) == 0 && close(theirs[i]) == 0);
    CHECK(close(fd) == 0);
}

/* The file grows through a native handle; the mapping was made for its future. */
static void beyond_the_file(const char *dir) {
    char byte = 'x';
    const char *path = in_dir(dir, "short");
    int fd = plain(path, page);
    char *address = mapped(4 * page, RW, fd, 0);
    CHECK(nvmemcpy(address + page - 1, &byte, 1));
    CHECK(FAILS(nvmemcpy(address + page, &byte, 1), NULL, EFAULT));
    CHECK(FAILS(nvstrcmp(address + page, "x"), INT_MIN, EFAULT));
    untorn_options options = UNTORN_OPTIONS_INIT;
    options.engine = UNTORN_ENGINE_HYBRID_LOG;
    untorn_t *file = untorn_open(path, &options, NULL);
    CHECK(file && untorn_resize(file, 4 * page) == 0);
    CHECK(nvmemcpy(address + page, &byte, 1) && nvstrcmp(address + page, "x") == 0);
    CHECK(nvmunmap(address, 4 * page) == 0);
    CHECK(untorn_settle(file) == 0);
    CHECK(close(fd) == 0);
}

/* The program resizes the file: between two mappings, and while it is mapped. */
static void resized(const char *dir) {
    int fd = plain(in_dir(dir, "resized"), 2 * page);
    char *file = mapped(4 * page, RW, fd, 0);
    CHECK(nvmemset(file, 'a', 2 * page) && nvmunmap(file, 4 * page) == 0);
    CHECK(ftruncate(fd, (off_t)page + 3) == 0);
    file = mapped(8 * page, RW, fd, 0);
    CHECK(nvmemcmp(file + page, "aaa", 3) == 0 && FAILS(nvmemset(file + page + 3, 0, 1), NULL, EFAULT));

    CHECK(ftruncate(fd, (off_t)(3 * page)) == 0);
    CHECK(nvmemset(file + 2 * page, 'b', page) && nvmsync(file, 0, MS_SYNC) == 0);
    CHECK(nvmemcmp(file + page, "aaa\0\0", 5) == 0);
    /* A commit and an unmap after a growth that nobody used. */
    CHECK(ftruncate(fd, (off_t)(4 * page)) == 0 && nvmsync(file, 0, MS_SYNC) == 0);
    CHECK(nvmemset(file, 'c', 1) && nvmsync(file, 0, MS_SYNC) == 0 && nvmunmap(file, 8 * page) == 0);
    file = mapped(8 * page, RW, fd, 0);
    CHECK(nvstrcmp(file + 3 * page, "") == 0 && nvmemset(file + 3 * page, 'd', page));
    CHECK(FAILS(nvstrcmp(file + 3 * page, "d"), INT_MIN, EFAULT));
    CHECK(ftruncate(fd, (off_t)(5 * page)) == 0 && nvstrcmp(file + 3 * page, "d") > 0);

    CHECK(nvftruncate(fd, 2) == 0 && FAILS(nvmemset(file + 2, 0, 1), NULL, EFAULT));
    CHECK(nvftruncate(fd, (off_t)page) == 0 && nvmemcmp(file, "ca\0\0", 4) == 0);
    CHECK(nvmunmap(file, 8 * page) == 0 && nvftruncate(fd, 1) == 0 && lseek(fd, 0, SEEK_END) == 1);
    CHECK(close(fd) == 0);
}

static void log_settings(const char *dir) {
    static char block[16 << 20];
    int fd = plain(in_dir(dir, "log"), sizeof block);
    CHECK(FAILS(nvmlog(3, 0), -1, EINVAL) && nvmlog(NVM_LOG_REDO, 1) == 0);
    CHECK(refused(page, RW, MAP_SHARED, fd, 0) == EINVAL);
    CHECK(nvmlog(NVM_LOG_REDO, 2 << 20) == 0);
    char *file = mapped(sizeof block, RW, fd, 0);
    CHECK(nvmlog(NVM_LOG_HYBRID, 0) == 0);
    /* An epoch that is larger than the log may be. */
    CHECK(FAILS(nvmemcpy(file, block, sizeof block), NULL, EINVAL));
    CHECK(nvmemcpy(file, block, page) && nvmunmap(file, sizeof block) == 0);
    file = mapped(sizeof block, RW, fd, 0);
    CHECK(nvmemcpy(file, block, sizeof block) && nvmunmap(file, sizeof block) == 0);
    CHECK(close(fd) == 0);
}

/* Another process has the file open, and is killed with an open epoch. */
static void processes(const char *dir) {
    int fd = plain(in_dir(dir, "processes"), 2 * page), go[2], done[2];
    CHECK(pipe(go) == 0 && pipe(done) == 0);
    pid_t child = fork_waiting(go[0]);
    char byte;
    if (child == 0) {
        char *file = mapped(2 * page, RW, fd, 0);
        CHECK(nvmemset(file, 'c', page) && nvmsync(file, 0, MS_SYNC) == 0 && nvmemset(file, 'u', page));
        done_until_killed(done[1]);
    }
    CHECK(write(go[1], "", 1) == 1 && read(done[0], &byte, 1) == 1);
    char *file = mapped(2 * page, RW, fd, 0);
    CHECK(nvmemcmp(file, "uuu", 3) == 0 && nvmemset(file + page, 'p', page));
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    CHECK(FAILS(nvmsync(file, 0, MS_SYNC), -1, EIO));
    CHECK(FAILS(nvmunmap(file, 2 * page), -1, EIO));
    file = mapped(2 * page, RW, fd, 0);
    CHECK(nvmemcmp(file, "ccc", 3) == 0 && nvmemcmp(file + page, "\0\0", 2) == 0);
    CHECK(nvmemset(file, 'n', page) && nvmunmap(file, 2 * page) == 0);
    CHECK(pread(fd, &byte, 1, 0) == 1 && byte == 'n');
    for (int i = 0; i < 2; i++) CHECK(close(go[i]) == 0 && close(done[i]) == 0);
    CHECK(close(fd) == 0);
}

/* The fields of untorn_options that are for this engine, the mapping sharing the
 * handle's log. */
static void settings(const char *dir) {
    static char block[20 << 20];
    const char *path = in_dir(dir, "settings");
    untorn_options options = UNTORN_OPTIONS_INIT;
    untorn_error error;
    options.flags = UNTORN_CREATE | UNTORN_NO_CHECKPOINTERS;
    options.length = sizeof block;
    options.engine = UNTORN_ENGINE_HYBRID_LOG;
    options.log_policy = UNTORN_LOG_REDO;
    options.log_size = 1;
    CHECK(untorn_open(path, &options, &error) == NULL && error.code == UNTORN_EINVAL);
    CHECK(strstr(error.message, "256 KiB"));
    options.log_size = 12 << 20;
    options.redo_from = 101;
    CHECK(untorn_open(path, &options, &error) == NULL && error.code == UNTORN_EINVAL);
    options.redo_from = 90;
    options.checkpointers = 1;
    CHECK(untorn_open(path, &options, &error) == NULL && error.code == UNTORN_EINVAL);
    options.checkpointers = 0;
    untorn_t *file = untorn_open(path, &options, &error);
    CHECK(file);

    int fd = open(path, O_RDWR);
    char *address = mapped(sizeof block, RW, fd, 0);
    memset(block, 'b', sizeof block);
    for (size_t at = 0; at < sizeof block; at += 1 << 20) {
        CHECK(nvmemcpy(address + at, block, 1 << 20) && nvmsync(address, 0, MS_SYNC) == 0);
    }
    CHECK(nvmemcmp(address, block, sizeof block) == 0);
    memset(block, 'c', sizeof block);
    CHECK(FAILS(nvmemcpy(address, block, sizeof block), NULL, EINVAL));
    CHECK(nvmemcmp(address, "bb", 2) == 0);
    CHECK(nvmunmap(address, sizeof block) == 0 && untorn_close(file) == 0 && close(fd) == 0);
}

/* Bytes that another engine keeps back are not overlooked. */
static void another_engine(const char *dir) {
    char seen[6];
    int fd = plain(in_dir(dir, "another"), page);
    char *address = ato_mmap(NULL, page, RW, MAP_SHARED, fd, 0);
    CHECK(address != MAP_FAILED && ato_memcpy(address, "acumen", 6));
    CHECK(FAILS(nvmmap(NULL, page, RW, MAP_SHARED, fd, 0), MAP_FAILED, EBUSY));
    /* Addresses of either family go with the functions of the other. */
    CHECK(nvmemcpy(seen, address, 6) && memcmp(seen, "acumen", 6) == 0);
    CHECK(nvmsync(address, page, MS_SYNC) == 0);
    CHECK(FAILS(nvmunmap(address, page), -1, EINVAL));
    CHECK(ato_munmap(address, page) == 0);
    /* It left a sidecar that holds nothing. */
    address = mapped(page, RW, fd, 0);
    CHECK(nvmemcmp(address, "acumen", 6) == 0 && nvmunmap(address, page) == 0);

    /* A process that crashed left one that holds these bytes. */
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        address = ato_mmap(NULL, page, RW, MAP_SHARED, fd, 0);
        _exit(address != MAP_FAILED && ato_memcpy(address, "ACUMEN", 6) ? 0 : 1);
    }
    ended(child);
    CHECK(refused(page, RW, MAP_SHARED, fd, 0) == EINVAL);
    address = ato_mmap(NULL, page, RW, MAP_SHARED, fd, 0);
    CHECK(ato_unmap_mode(address, ATO_SPATIAL) == 0 && ato_munmap(address, page) == 0);
    address = mapped(page, RW, fd, 0);
    CHECK(nvmemcmp(address, "ACUMEN", 6) == 0);
    CHECK(nvmunmap(address, page) == 0 && close(fd) == 0);
}

static void *copier(void *argument) {
    char block[1000];
    for (int round = 0; round < 15; round++) {
        CHECK(nvmemset(shared_mapping + page - 500, round, sizeof block));
        CHECK(nvmemcpy(block, shared_mapping + page - 500, sizeof block));
        for (size_t i = 1; i < sizeof block; i++) CHECK(block[i] == block[0]);
        char *own = nvmmap(NULL, page, RW, MAP_SHARED, shared_fd, 0);
        CHECK(own != MAP_FAILED && nvmsync(own, page, MS_SYNC) == 0 && nvmunmap(own, page) == 0);
    }
    return argument;
}

static void threads(const char *dir) {
    four_threads(dir, copier);
    CHECK(nvmunmap(shared_mapping, 2 * page) == 0);
    CHECK(close(shared_fd) == 0);
}

/* The flag is none of open's, and open does not mind it. */
static void the_flag(const char *dir) {
    const char *path = in_dir(dir, "flag");
    CHECK(close(plain(path, page)) == 0);
    CHECK(!(O_ATOMIC & (O_ACCMODE | O_CREAT | O_EXCL | O_TRUNC | O_APPEND | O_SYNC | O_CLOEXEC | O_DIRECTORY)));
    int fd = open(path, O_RDWR | O_ATOMIC);
    CHECK(fd >= 0);
    CHECK(nvmunmap(mapped(page, RW, fd, 0), page) == 0);
    CHECK(close(fd) == 0);
}

int main(int argc, char **argv) {
    if (argc != 2) return 64;
    page = (size_t)sysconf(_SC_PAGESIZE);
    commits(argv[1]);
    resized(argv[1]);
    log_settings(argv[1]);
    processes(argv[1]);
    forks(argv[1]);
    mappings(argv[1]);
    copies(argv[1]);
    comparisons(argv[1]);
    beyond_the_file(argv[1]);
    settings(argv[1]);
    another_engine(argv[1]);
    threads(argv[1]);
    the_flag(argv[1]);
    return 0;
}
