/* untorn.h: plain loads and stores, with each way to track them.
 * Usage: map DIR; exits with 0 if all is well. What this machine does not have it
 * names on stdout. */
#define _DEFAULT_SOURCE

#include <untorn.h>

#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096

static uint32_t tracking;

static unsigned char *map(const char *path, uint32_t flags, uint64_t length) {
    untorn_options options = UNTORN_OPTIONS_INIT;
    untorn_error error;
    size_t len = 0;
    options.flags = flags;
    options.length = length;
    options.dirty_tracking = tracking;
    unsigned char *memory = untorn_map(path, &options, &len, &error);
    CHECK(memory && error.code == 0 && error.message[0] == 0);
    CHECK((uintptr_t)memory % PAGE == 0 && len == untorn_map_len(memory));
    return memory;
}

static unsigned char *create(const char *path, uint64_t length) {
    unsigned char *memory = map(path, UNTORN_CREATE | UNTORN_EXCL, length);
    CHECK(untorn_map_len(memory) == length);
    return memory;
}

static int refused(const char *path, const untorn_options *options) {
    untorn_error error;
    size_t len = 77;
    CHECK(!untorn_map(path, options, &len, &error) && len == 77);
    return told(error.code, path ? path : "path");
}

static off_t size_of(const char *path) {
    struct stat state;
    CHECK(stat(path, &state) == 0);
    return state.st_size;
}

static int finished(pid_t child) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void every_call_refuses(void *address, int code, const char *word) {
    untorn_error error;
    CHECK(told(untorn_map_commit(address), word) == code);
    CHECK(told(untorn_map_commit_beside_stores(address), word) == code);
    CHECK(!untorn_map_snapshot(address, &error) && told(error.code, word) == code);
    CHECK(told(untorn_map_rollback(address), word) == code);
    CHECK(told(untorn_map_resize(address, 10), word) == code);
    CHECK(told(untorn_unmap(address), word) == code);
    CHECK(told(untorn_map_settle(address), word) == code);
    CHECK(untorn_map_len(address) == 0 && told(code, word) == code);
}

static void addresses(const char *dir) {
    unsigned char *memory = create(in_dir(dir, "addresses"), 3 * PAGE);
    unsigned char *other = create(in_dir(dir, "other"), 100);
    CHECK(untorn_map_len(memory) == 3 * PAGE && untorn_map_len(other) == 100);
    every_call_refuses(NULL, UNTORN_EINVAL, "NULL");
    every_call_refuses(memory + PAGE, UNTORN_EINVAL, "no map starts at");
    every_call_refuses(&memory, UNTORN_EINVAL, "no map starts at");
    CHECK(untorn_unmap(other) == 0);
    every_call_refuses(other, UNTORN_EINVAL, "no map starts at");
    CHECK(untorn_map_settle(memory) == 0);
    every_call_refuses(memory, UNTORN_EINVAL, "no map starts at");
    CHECK(untorn_map(NULL, NULL, NULL, NULL) == NULL);
    CHECK(refused(NULL, NULL) == UNTORN_EINVAL);
}

static void opening(const char *dir) {
    const char *path = in_dir(dir, "opening");
    untorn_options options = UNTORN_OPTIONS_INIT;
    CHECK(refused(path, NULL) == UNTORN_ENOENT);
    options.size = 0;
    CHECK(!untorn_map(path, &options, NULL, NULL) && told(UNTORN_EINVAL, "UNTORN_OPTIONS_INIT"));
    options = (untorn_options)UNTORN_OPTIONS_INIT;
    options.flags = UNTORN_CREATE;
    options.dirty_tracking = UNTORN_TRACKING_PAGE_TABLE + 1;
    CHECK(!untorn_map(path, &options, NULL, NULL) && told(UNTORN_EINVAL, "dirty_tracking"));
    options.dirty_tracking = tracking;
    options.engine = UNTORN_ENGINE_REFLECTION;
    CHECK(refused(path, &options) == UNTORN_EINVAL);
    options.engine = UNTORN_ENGINE_HYBRID_LOG;
    options.durability = UNTORN_DURABILITY_PER_WRITE;
    CHECK(refused(path, &options) == UNTORN_EINVAL);
    options.durability = UNTORN_DURABILITY_PER_COMMIT;
    options.log_policy = UNTORN_LOG_UNDO;
    CHECK(refused(path, &options) == UNTORN_EINVAL);
    CHECK(access(path, F_OK) != 0);
    options.log_policy = UNTORN_LOG_REDO;
    options.length = 100;
    unsigned char *memory = untorn_map(path, &options, NULL, NULL);
    CHECK(memory && untorn_map_len(memory) == 100);

    /* No second map, and no handle. */
    CHECK(refused(path, NULL) == UNTORN_EBUSY);
    CHECK(!untorn_open(path, NULL, NULL) && told(UNTORN_EBUSY, path));
    memory[99] = 9;
    CHECK(untorn_map_commit(memory) == 0 && untorn_unmap(memory) == 0);
    untorn_t *file = untorn_open(path, NULL, NULL);
    unsigned char byte = 0;
    CHECK(file && untorn_read(file, 99, &byte, 1) == 0 && byte == 9);
    CHECK(refused(path, NULL) == UNTORN_EBUSY);
    CHECK(untorn_close(file) == 0);

    options.length = 5000;
    memory = untorn_map(path, &options, NULL, NULL);
    CHECK(memory && untorn_map_len(memory) == 100 && memory[99] == 9);
    CHECK(untorn_unmap(memory) == 0);
    options.flags |= UNTORN_EXCL;
    CHECK(refused(path, &options) == UNTORN_EEXIST);
    CHECK(refused(dir, NULL) == UNTORN_EISDIR);
}

static void reading_only(const char *dir) {
    const char *path = in_dir(dir, "reading");
    unsigned char *memory = create(path, 100);
    memory[0] = 1;
    CHECK(untorn_map_commit(memory) == 0 && untorn_unmap(memory) == 0);
    memory = map(path, UNTORN_READ_ONLY, 0);
    unsigned char *second = map(path, UNTORN_READ_ONLY, 0);
    CHECK(memory != second && memory[0] == 1);
    memory[0] = 2;
    CHECK(second[0] == 1);
    CHECK(told(untorn_map_commit(memory), path) == UNTORN_EROFS);
    CHECK(told(untorn_map_rollback(memory), path) == UNTORN_EROFS);
    CHECK(told(untorn_map_resize(memory, 10), path) == UNTORN_EROFS);
    CHECK(told(untorn_map_settle(memory), path) == UNTORN_EROFS);
    CHECK(untorn_unmap(memory) == UNTORN_EINVAL); /* it is gone */
    CHECK(untorn_unmap(second) == 0);
    memory = map(path, 0, 0);
    CHECK(memory[0] == 1 && untorn_map_settle(memory) == 0);
}

static void storing(const char *dir) {
    const char *path = in_dir(dir, "storing");
    unsigned char *memory = create(path, 3 * PAGE + 10);
    memset(memory + 4000, 1, 200);
    CHECK(untorn_map_commit(memory) == 0);
    memory[4000] = 2;
    memory[3 * PAGE + 9] = 2;
    CHECK(untorn_map_rollback(memory) == 0);
    CHECK(memory[4000] == 1 && memory[3 * PAGE + 9] == 0);
    CHECK(untorn_map_commit(memory) == 0); /* of nothing */

    /* The length goes with the stores, and the address stays. */
    CHECK(told(untorn_map_resize(memory, (UINT64_C(64) << 20) + 1), "larger max_len") == UNTORN_EINVAL);
    CHECK(untorn_map_resize(memory, UINT64_C(64) << 20) == 0);
    CHECK(untorn_map_len(memory) == UINT64_C(64) << 20);
    memory[(64 << 20) - 1] = 3;
    CHECK(untorn_map_rollback(memory) == 0);
    CHECK(untorn_map_len(memory) == 3 * PAGE + 10);
    CHECK(untorn_map_resize(memory, 9 * PAGE) == 0 && memory[9 * PAGE - 1] == 0);
    memory[9 * PAGE - 1] = 4;
    CHECK(untorn_map_commit(memory) == 0);
    CHECK(told(untorn_map_resize(memory, UINT64_MAX), path) == UNTORN_EINVAL);
    CHECK(untorn_map_len(memory) == 9 * PAGE);
    CHECK(untorn_map_resize(memory, 2 * PAGE) == 0 && untorn_map_commit(memory) == 0);
    CHECK(untorn_map_resize(memory, 9 * PAGE) == 0 && memory[9 * PAGE - 1] == 0);

    /* Unmapping does not commit: neither the stores nor the length. */
    memset(memory, 5, 9 * PAGE);
    CHECK(untorn_unmap(memory) == 0);
    memory = map(path, 0, 0);
    CHECK(untorn_map_len(memory) == 2 * PAGE);
    CHECK(memory[0] == 0 && memory[4000] == 1 && memory[4199] == 1 && memory[2 * PAGE - 1] == 0);

    /* Nor does settling. */
    memory[0] = 6;
    CHECK(untorn_map_commit(memory) == 0);
    memset(memory, 7, 2 * PAGE);
    CHECK(untorn_map_resize(memory, 5 * PAGE) == 0);
    CHECK(untorn_map_settle(memory) == 0);
    CHECK(size_of(path) == 2 * PAGE);
    FILE *plain = fopen(path, "rb");
    CHECK(plain && fgetc(plain) == 6 && fgetc(plain) == 0);
    fclose(plain);
}

static void too_much_for_the_log(const char *dir) {
    untorn_options options = UNTORN_OPTIONS_INIT;
    options.flags = UNTORN_CREATE;
    options.length = 32 << 20;
    options.log_size = 4 << 20;
    options.dirty_tracking = tracking;
    unsigned char *memory = untorn_map(in_dir(dir, "log"), &options, NULL, NULL);
    CHECK(memory);
    memset(memory, 1, 32 << 20);
    CHECK(told(untorn_map_commit(memory), "log") == UNTORN_EINVAL);
    CHECK(untorn_map_rollback(memory) == 0 && memory[0] == 0);
    memory[7] = 7;
    CHECK(untorn_map_commit(memory) == 0 && untorn_unmap(memory) == 0);
}

static void a_lost_page(const char *dir) {
    const char *path = in_dir(dir, "lost");
    unsigned char *memory = create(path, 8 * PAGE);
    memory[7 * PAGE] = 1;
    CHECK(untorn_map_commit(memory) == 0);
    CHECK(truncate(path, PAGE) == 0);
    CHECK(memory[5 * PAGE] == 0);
    CHECK(told(untorn_map_commit(memory), path) == UNTORN_EIO);
    CHECK(told(untorn_map_rollback(memory), path) < 0);
    untorn_unmap(memory);
    CHECK(untorn_unmap(memory) == UNTORN_EINVAL);
}

/* A process that dies in the middle of its stores leaves the last commit. */
static void a_kill(const char *dir) {
    const char *path = in_dir(dir, "kill");
    pid_t child = fork();
    if (child == 0) {
        unsigned char *memory = create(path, 16 * PAGE);
        for (int round = 1; round <= 20; round++) {
            memset(memory, round, 16 * PAGE);
            CHECK(untorn_map_commit(memory) == 0);
        }
        CHECK(untorn_map_resize(memory, 32 * PAGE) == 0);
        memset(memory, 99, 9 * PAGE);
        raise(SIGKILL);
    }
    CHECK(finished(child) == -SIGKILL);
    unsigned char *memory = map(path, 0, 0);
    CHECK(untorn_map_len(memory) == 16 * PAGE);
    for (size_t i = 0; i < 16 * PAGE; i++) CHECK(memory[i] == 20);
    CHECK(untorn_map_settle(memory) == 0);
}

static void *asker(void *argument) {
    _Atomic int *stop = argument;
    while (!atomic_load(stop)) CHECK(untorn_map_len(NULL) == 0);
    return NULL;
}

/* Children ask while a thread of the parent is in the library, perhaps with its
 * locks; one that waits for such a lock would wait for ever. */
static void forks(const char *dir) {
    unsigned char *memory = create(in_dir(dir, "fork"), 4 * PAGE);
    _Atomic int stop = 0;
    pthread_t thread;
    memory[0] = 1;
    CHECK(untorn_map_commit(memory) == 0);
    memory[PAGE] = 2;
    CHECK(pthread_create(&thread, NULL, asker, &stop) == 0);
    for (int round = 0; round < 50; round++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            CHECK(memory[0] == 1 && memory[PAGE] == 2);
            memset(memory, 9, 4 * PAGE);
            every_call_refuses(memory, UNTORN_EOWNERDEAD, "map the file again");
            if (round == 0) {
                /* Maps of its own work, and so for its own children. */
                unsigned char *own = create(in_dir(dir, "own"), 100);
                own[0] = 3;
                CHECK(untorn_map_commit(own) == 0);
                pid_t grandchild = fork();
                if (grandchild == 0) {
                    every_call_refuses(own, UNTORN_EOWNERDEAD, "map the file again");
                    every_call_refuses(memory, UNTORN_EOWNERDEAD, "map the file again");
                    every_call_refuses(NULL, UNTORN_EINVAL, "NULL");
                    _exit(0);
                }
                CHECK(finished(grandchild) == 0);
                CHECK(untorn_unmap(own) == 0);
            }
            _exit(0);
        }
        CHECK(finished(child) == 0);
    }
    atomic_store(&stop, 1);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(memory[0] == 1 && memory[PAGE] == 2 && memory[PAGE + 1] == 0);
    CHECK(untorn_map_commit(memory) == 0 && untorn_unmap(memory) == 0);
    memory = map(in_dir(dir, "fork"), 0, 0);
    CHECK(memory[PAGE] == 2 && memory[PAGE + 1] == 0 && untorn_map_settle(memory) == 0);
}

struct shared {
    unsigned char *memory;
    pthread_mutex_t lock;
    uint64_t done;
};

/* Each round adds to two counters under a lock and commits; every thread's calls
 * meet those of the others. */
static void *counter(void *argument) {
    struct shared *shared = argument;
    for (int round = 0; round < 20; round++) {
        uint64_t counts[2];
        CHECK(pthread_mutex_lock(&shared->lock) == 0);
        memcpy(&counts[0], shared->memory, 8);
        memcpy(&counts[1], shared->memory + 2 * PAGE, 8);
        CHECK(counts[0] == counts[1] && counts[0] == shared->done);
        shared->done = ++counts[0];
        memcpy(shared->memory, counts, 8);
        memcpy(shared->memory + 2 * PAGE, counts, 8);
        CHECK(untorn_map_commit(shared->memory) == 0);
        CHECK(pthread_mutex_unlock(&shared->lock) == 0);
        CHECK(untorn_map_len(shared->memory) == 4 * PAGE);
        CHECK(untorn_map_commit(NULL) == UNTORN_EINVAL);
    }
    return NULL;
}

/* Threads with maps of their own, made and ended while others are. */
static void *own_maps(void *path) {
    for (int round = 0; round < 6; round++) {
        unsigned char *memory = map(path, UNTORN_CREATE, 100);
        CHECK(memory[0] == round);
        memory[0]++;
        CHECK(untorn_map_commit(memory) == 0);
        CHECK((round % 2 ? untorn_unmap : untorn_map_settle)(memory) == 0);
    }
    return NULL;
}

/* Nothing is stored here, so the calls need no lock but the library's own. */
static void *idle(void *memory) {
    for (int round = 0; round < 200; round++) CHECK(untorn_map_commit(memory) == 0);
    return NULL;
}

static void threads(const char *dir) {
    struct shared shared = {create(in_dir(dir, "threads"), 4 * PAGE), PTHREAD_MUTEX_INITIALIZER, 0};
    unsigned char *quiet = create(in_dir(dir, "quiet"), PAGE);
    pthread_t ids[6];
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&ids[i], NULL, counter, &shared) == 0);
    CHECK(pthread_create(&ids[2], NULL, own_maps, in_dir(dir, "own2")) == 0);
    CHECK(pthread_create(&ids[3], NULL, own_maps, in_dir(dir, "own3")) == 0);
    for (int i = 4; i < 6; i++) CHECK(pthread_create(&ids[i], NULL, idle, quiet) == 0);
    for (int i = 0; i < 6; i++) CHECK(pthread_join(ids[i], NULL) == 0);
    CHECK(shared.done == 40);
    CHECK(untorn_map_settle(shared.memory) == 0 && untorn_map_settle(quiet) == 0);
}

struct counting {
    _Atomic uint64_t *first, *last;
    _Atomic int stop;
};

/* Counts at the end of the memory first. */
static void *counting(void *argument) {
    struct counting *shared = argument;
    while (!atomic_load(&shared->stop)) {
        atomic_fetch_add(shared->last, 1);
        atomic_fetch_add(shared->first, 1);
    }
    return NULL;
}

static uint64_t committed(untorn_snapshot_t *snapshot, uint64_t at) {
    uint64_t word;
    CHECK(untorn_snapshot_read(snapshot, at, &word, 8) == 0);
    return word;
}

/* A commit has what was stored before it, and never more than was stored by its end. */
static void commits_beside_stores(const char *dir) {
    const char *path = in_dir(dir, "beside");
    const uint64_t at = 9 * PAGE - 8;
    unsigned char *memory = create(path, 9 * PAGE);
    struct counting shared = {(_Atomic uint64_t *)(void *)memory, (_Atomic uint64_t *)(void *)(memory + at), 0};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, counting, &shared) == 0);
    while (atomic_load(shared.first) == 0) sched_yield();
    uint64_t number = 0;
    for (int round = 0; round < 30; round++) {
        untorn_error error;
        uint64_t before = atomic_load(shared.first);
        CHECK(untorn_map_commit_beside_stores(memory) == 0);
        untorn_snapshot_t *snapshot = untorn_map_snapshot(memory, &error);
        CHECK(snapshot && error.code == 0 && untorn_snapshot_len(snapshot) == 9 * PAGE);
        CHECK(committed(snapshot, 0) >= before && committed(snapshot, at) >= before);
        CHECK(committed(snapshot, at) <= atomic_load(shared.last));
        CHECK(untorn_snapshot_commit(snapshot) >= number);
        number = untorn_snapshot_commit(snapshot);
        CHECK(untorn_snapshot_close(snapshot) == 0);
    }
    atomic_store(&shared.stop, 1);
    CHECK(pthread_join(thread, NULL) == 0);
    uint64_t last = atomic_load(shared.first);
    CHECK(last > 0 && atomic_load(shared.last) == last);
    CHECK(untorn_map_commit_beside_stores(memory) == 0);
    memory[PAGE] = 1; /* not committed */
    CHECK(untorn_map_rollback(memory) == 0 && memory[PAGE] == 0 && atomic_load(shared.first) == last);
    CHECK(untorn_unmap(memory) == 0);
    memory = map(path, 0, 0);
    CHECK(memcmp(memory, &last, 8) == 0 && memcmp(memory + at, &last, 8) == 0);
    CHECK(untorn_map_settle(memory) == 0);
}

/* What read(2) puts into the memory is committed like a store. */
static void stores_by_the_kernel(const char *dir) {
    const char *path = in_dir(dir, "kernel");
    unsigned char *memory = create(path, 4 * PAGE);
    int program = open("/proc/self/exe", O_RDONLY);
    CHECK(program >= 0 && read(program, memory + 2 * PAGE, 4) == 4);
    close(program);
    CHECK(untorn_map_commit(memory) == 0 && untorn_unmap(memory) == 0);
    memory = map(path, 0, 0);
    CHECK(memcmp(memory + 2 * PAGE, "\177ELF", 4) == 0 && untorn_map_settle(memory) == 0);
}

static void all(const char *dir) {
    CHECK(mkdir(dir, 0700) == 0);
    addresses(dir);
    opening(dir);
    reading_only(dir);
    storing(dir);
    too_much_for_the_log(dir);
    a_lost_page(dir);
    a_kill(dir);
    forks(dir);
    threads(dir);
    commits_beside_stores(dir);
    stores_by_the_kernel(dir);
}

int main(int argc, char **argv) {
    if (argc != 2) return 64;
    all(in_dir(argv[1], "auto"));
    tracking = UNTORN_TRACKING_PAGE_TABLE;
    all(in_dir(argv[1], "page-table"));

    tracking = UNTORN_TRACKING_WRITE_PROTECT;
    untorn_options options = UNTORN_OPTIONS_INIT;
    untorn_error error;
    options.flags = UNTORN_CREATE;
    options.length = 100;
    options.dirty_tracking = tracking;
    void *probe = untorn_map(in_dir(argv[1], "probe"), &options, NULL, &error);
    if (!probe) {
        CHECK(error.code < 0 && strstr(error.message, "track stores"));
        printf("skipped: write protection: %s\n", error.message);
        return 0;
    }
    CHECK(untorn_unmap(probe) == 0);
    all(in_dir(argv[1], "write-protect"));
    return 0;
}
