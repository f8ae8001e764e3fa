/* untorn/libpmem.h: a program as those of libpmem, over a file and over a region,
 * which is killed and finds its last persist.
 * Usage: libpmem DIR; exits with 0 if all is well. */
#define _DEFAULT_SOURCE

#include <untorn.h>
#include <untorn/libpmem.h>
#include <untorn/region.h>

#include "process.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define PAGE 4096
#define PAGES 64

/* Maps a file or region of PAGES pages. */
static char *map(const char *path, int flags, int is_pmem_expected) {
    size_t len = 0;
    int is_pmem = 7;
    char *memory = pmem_map_file(path, PAGES * PAGE, PMEM_FILE_CREATE | flags, 0600, &len, &is_pmem);
    CHECK(memory && (uintptr_t)memory % PAGE == 0 && len == PAGES * PAGE && is_pmem == is_pmem_expected);
    return memory;
}

static void arguments(const char *path, const char *dir) {
    CHECK(FAILS(pmem_map_file(path, 0, 0, 0, NULL, NULL), NULL, ENOENT));
    CHECK(strlen(pmem_errormsg()) > 0);
    CHECK(FAILS(pmem_map_file(NULL, 0, 0, 0, NULL, NULL), NULL, EINVAL));
    CHECK(FAILS(pmem_map_file(path, 0, PMEM_FILE_CREATE, 0600, NULL, NULL), NULL, EINVAL));
    CHECK(FAILS(pmem_map_file(path, PAGE, 0, 0, NULL, NULL), NULL, EINVAL));
    CHECK(FAILS(pmem_map_file(path, PAGE, 1 << 20, 0600, NULL, NULL), NULL, EINVAL));
    CHECK(FAILS(pmem_map_file(dir, PAGE, PMEM_FILE_CREATE | PMEM_FILE_TMPFILE, 0600, NULL, NULL), NULL, EOPNOTSUPP));
    char *memory = map(path, PMEM_FILE_EXCL, 0);
    CHECK(FAILS(pmem_map_file(path, PAGE, PMEM_FILE_CREATE | PMEM_FILE_EXCL, 0600, NULL, NULL), NULL, EEXIST));
    CHECK(FAILS(pmem_map_file(path, PAGE, PMEM_FILE_CREATE, 0600, NULL, NULL), NULL, EBUSY));
    CHECK(map(path, PMEM_FILE_SPARSE, 0) == memory);
    CHECK(pmem_unmap(memory, PAGES * PAGE) == 0);

    /* Ranges that lie in the mapping, and others. */
    CHECK(pmem_msync(memory, PAGES * PAGE) == 0 && pmem_msync(memory + 5, 1) == 0);
    CHECK(pmem_deep_persist(memory, 1) == 0 && pmem_deep_drain(memory, 1) == 0);
    CHECK(FAILS(pmem_msync(memory, PAGES * PAGE + 1), -1, EINVAL));
    CHECK(FAILS(pmem_msync(memory - 1, 1), -1, EINVAL));
    CHECK(FAILS(pmem_msync(NULL, 1), -1, EINVAL));
    char outside[8] = "";
    errno = 0;
    CHECK(pmem_memcpy_persist(outside, "abc", 4) == outside && errno == EINVAL && strcmp(outside, "abc") == 0);
    CHECK(FAILS(pmem_unmap(memory + PAGE, PAGES * PAGE - PAGE), -1, EINVAL));
    CHECK(FAILS(pmem_unmap(memory, PAGE), -1, EINVAL));

    /* What is said of persistent memory. */
    CHECK(!pmem_is_pmem(memory, 1) && !pmem_has_auto_flush() && !pmem_has_hw_drain());
    CHECK(setenv("PMEM_IS_PMEM_FORCE", "1", 1) == 0);
    CHECK(pmem_is_pmem(memory, PAGES * PAGE) == 1 && pmem_is_pmem(memory, PAGES * PAGE + 1) == 0);
    CHECK(map(path, 0, 1) == memory && pmem_unmap(memory, PAGES * PAGE) == 0);
    CHECK(unsetenv("PMEM_IS_PMEM_FORCE") == 0);
    CHECK(!pmem_check_version(PMEM_MAJOR_VERSION, PMEM_MINOR_VERSION));
    CHECK(pmem_check_version(2, 0) && pmem_check_version(1, 2));

    /* A child has a copy of the memory, and no mapping. */
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        memory[0] = 'c';
        CHECK(FAILS(pmem_msync(memory, 1), -1, EOWNERDEAD));
        _exit(0);
    }
    ended(child);
    CHECK(memory[0] == 0);

    /* An end is a persist. */
    memcpy(memory, "ended", 6);
    CHECK(pmem_unmap(memory, PAGES * PAGE) == 0);
    CHECK(FAILS(pmem_unmap(memory, PAGES * PAGE), -1, EINVAL));
    memory = map(path, 0, 0);
    CHECK(strcmp(memory, "ended") == 0);
    CHECK(pmem_memset_persist(memory, 0, 6) == memory);
    CHECK(pmem_unmap(memory, PAGES * PAGE) == 0);
}

/* With another length: longer, shorter, and all that there is. */
static void lengths(const char *path) {
    size_t len;
    char *memory = map(path, 0, 0);
    memset(memory, 'x', PAGES * PAGE);
    CHECK(pmem_unmap(memory, PAGES * PAGE) == 0);
    memory = pmem_map_file(path, 2 * PAGE, PMEM_FILE_CREATE, 0600, &len, NULL);
    CHECK(memory && len == 2 * PAGE && memory[2 * PAGE - 1] == 'x');
    CHECK(pmem_unmap(memory, len) == 0);
    memory = pmem_map_file(path, 0, 0, 0, &len, NULL);
    CHECK(memory && len == 2 * PAGE);
    CHECK(pmem_unmap(memory, len) == 0);
    memory = map(path, 0, 0);
    CHECK(memory[2 * PAGE - 1] == 'x' && memory[2 * PAGE] == 0 && memory[PAGES * PAGE - 1] == 0);
    memset(memory, 0, 2 * PAGE);
    CHECK(pmem_unmap(memory, PAGES * PAGE) == 0);
}

/* The last persist has each kind of store, and nothing after it. */
static void store_and_die(const char *path, int done) {
    char *memory = map(path, 0, 0);
    CHECK(pmem_memcpy_persist(memory, "one", 4) == memory);
    CHECK(pmem_memmove_nodrain(memory + PAGE, "two", 4) == memory + PAGE);
    CHECK(pmem_memset_nodrain(memory + 2 * PAGE, '3', 3) == memory + 2 * PAGE);
    CHECK(pmem_memcpy(memory + 3 * PAGE, "four", 5, PMEM_F_MEM_NODRAIN | PMEM_F_MEM_WC) == memory + 3 * PAGE);
    CHECK(pmem_memmove(memory + 4 * PAGE, "five", 5, PMEM_F_MEM_NOFLUSH) == memory + 4 * PAGE);
    memcpy(memory + 5 * PAGE, "six", 4);
    pmem_flush(memory + 5 * PAGE, 4);
    pmem_drain();
    CHECK(pmem_memset(memory + 6 * PAGE, '7', 3, PMEM_F_MEM_NOFLUSH) == memory + 6 * PAGE);
    CHECK(pmem_memcpy_nodrain(memory, "lost", 5) == memory);
    done_until_killed(done);
}

static void find(const char *path) {
    char *memory = map(path, 0, 0);
    CHECK(strcmp(memory, "one") == 0 && strcmp(memory + PAGE, "two") == 0 && strcmp(memory + 2 * PAGE, "333") == 0);
    CHECK(strcmp(memory + 3 * PAGE, "four") == 0 && strcmp(memory + 4 * PAGE, "five") == 0);
    CHECK(strcmp(memory + 5 * PAGE, "six") == 0 && memory[6 * PAGE] == 0);
    memset(memory, 0, PAGES * PAGE);
    CHECK(pmem_unmap(memory, PAGES * PAGE) == 0);
}

/* What threads have persisted, as the parent of their process sees it. */
static _Atomic uint64_t *acknowledged;
static char *counters;
#define THREADS 3

/* Counts in two pages of its own, so that a half of a persist would show. */
static void *count(void *argument) {
    size_t thread = (size_t)(uintptr_t)argument;
    _Atomic uint64_t *one = (void *)(counters + 2 * thread * PAGE);
    _Atomic uint64_t *two = (void *)(counters + (2 * thread + 1) * PAGE);
    for (uint64_t number = atomic_load(one) + 1;; number++) {
        atomic_store(one, number);
        atomic_store(two, number);
        if (number % 2) {
            CHECK(pmem_msync((char *)one, 2 * PAGE) == 0);
        } else {
            errno = 0;
            pmem_persist((char *)one, 8);
            CHECK(errno == 0);
        }
        atomic_store(&acknowledged[thread], number);
    }
    return NULL;
}

static void count_and_die(const char *path, int done) {
    counters = map(path, 0, 0);
    pthread_t threads[THREADS];
    for (size_t thread = 0; thread < THREADS; thread++)
        CHECK(pthread_create(&threads[thread], NULL, count, (void *)(uintptr_t)thread) == 0);
    for (size_t thread = 0; thread < THREADS; thread++)
        while (atomic_load(&acknowledged[thread]) < 3) usleep(100);
    done_until_killed(done);
}

static void find_counts(const char *path) {
    char *memory = map(path, 0, 0);
    for (size_t thread = 0; thread < THREADS; thread++) {
        uint64_t one, two, least = atomic_load(&acknowledged[thread]);
        memcpy(&one, memory + 2 * thread * PAGE, 8);
        memcpy(&two, memory + (2 * thread + 1) * PAGE, 8);
        /* Another thread may have persisted between the two stores. */
        CHECK(least > 0 && one >= least && two >= least && one <= least + 1 && one - two + 1 <= 2);
    }
    CHECK(pmem_unmap(memory, PAGES * PAGE) == 0);
}

static void killed(const char *path, void (*body)(const char *, int), void (*check)(const char *)) {
    int go[2], done[2];
    CHECK(pipe(go) == 0 && pipe(done) == 0);
    pid_t child = fork_waiting(go[0]);
    if (child == 0) {
        body(path, done[1]);
        _exit(1);
    }
    run_and_kill(child, go[1], done[0]);
    check(path);
    for (int end = 0; end < 2; end++) CHECK(close(go[end]) == 0 && close(done[end]) == 0);
}

/* Files may not grow, as on a full disk. */
static void full(rlim_t bytes) {
    struct rlimit limit = {bytes, RLIM_INFINITY};
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

/* A persist that fails, and that nobody is told of. */
static void failures(const char *path) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) {
        ended(child);
        return;
    }
    size_t len = 8 << 20, mapped;
    CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    for (int told = 1; told >= 0; told--) {
        char *memory = pmem_map_file(path, len, PMEM_FILE_CREATE, 0600, &mapped, NULL);
        CHECK(memory && mapped == len && pmem_memset_persist(memory, 'a', PAGE) == memory);
        full(8 << 20);
        memset(memory, 'b', len);
        if (told) {
            CHECK(pmem_msync(memory, 1) == -1 && errno != EIO);
        } else {
            errno = 0;
            pmem_persist(memory, 1);
            CHECK(errno != 0);
        }
        full(RLIM_INFINITY);
        if (told) {
            /* The call may be repeated. */
            CHECK(pmem_msync(memory, 1) == 0 && pmem_unmap(memory, len) == 0);
        } else {
            CHECK(FAILS(pmem_msync(memory, 1), -1, EIO) && strstr(pmem_errormsg(), "persist failed"));
            errno = 0;
            pmem_persist(memory, 1);
            CHECK(errno == EIO && FAILS(pmem_deep_persist(memory, 1), -1, EIO));
            CHECK(FAILS(pmem_unmap(memory, len), -1, EIO));
        }
        memory = pmem_map_file(path, len, PMEM_FILE_CREATE, 0600, &mapped, NULL);
        CHECK(memory && memory[0] == (told ? 'b' : 'a'));
        CHECK(memory[len - 1] == 'b' && pmem_unmap(memory, len) == 0);
    }
    exit(0);
}

int main(int argc, char **argv) {
    if (argc != 2) return 64;
    char *store = in_dir(argv[1], "store"), *file = in_dir(argv[1], "file");
    CHECK(setenv("UNTORN_REGION_STORE", store, 1) == 0);
    CHECK(region_close(region_open("made", O_CREAT)) == 0);
    acknowledged = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(acknowledged != MAP_FAILED);
    const char *paths[] = {file, in_dir(store, "region")};
    for (int kind = 0; kind < 2; kind++) {
        arguments(paths[kind], argv[1]);
        lengths(paths[kind]);
        killed(paths[kind], store_and_die, find);
        memset((void *)acknowledged, 0, PAGE);
        killed(paths[kind], count_and_die, find_counts);
    }
    failures(file);
    failures(in_dir(store, "full"));

    /* Elsewhere the file is a plain one, and the region one of the store. */
    struct stat state;
    CHECK(stat(file, &state) == 0 && state.st_size == 8 << 20 && (state.st_mode & 0777) == 0600);
    int rd = region_open("region", 0);
    CHECK(rd >= 0 && alloc_ppage(rd) == PAGES);
    CHECK(FAILS(pmem_map_file(in_dir(store, "none"), 0, 0, 0, NULL, NULL), NULL, ENOENT));
    return 0;
}
