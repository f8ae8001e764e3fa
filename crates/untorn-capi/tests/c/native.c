/* untorn.h: every function with arguments that work and with ones that do not.
 * Usage: native DIR VERSION; exits with 0 if all is well. */
#define _POSIX_C_SOURCE 200809L

#include <untorn.h>

#include "check.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static untorn_t *create(const char *path, uint64_t length, uint32_t durability) {
    untorn_options options = UNTORN_OPTIONS_INIT;
    untorn_error error;
    options.flags = UNTORN_CREATE | UNTORN_EXCL;
    options.length = length;
    options.durability = durability;
    untorn_t *file = untorn_open(path, &options, &error);
    CHECK(file && error.code == 0 && error.message[0] == 0);
    return file;
}

/* The code of an open that is to fail, and that its text names the path. */
static int refused(const char *path, const untorn_options *options) {
    untorn_error error, last;
    CHECK(!untorn_open(path, options, &error));
    CHECK(error.code < 0 && strlen(error.message) > 10);
    CHECK(untorn_last_error(&last) == 0);
    CHECK(last.code == error.code && strcmp(last.message, error.message) == 0);
    return error.code;
}

static void null_arguments(const char *dir) {
    char byte = 0;
    untorn_t *file = create(in_dir(dir, "null"), 4096, UNTORN_DURABILITY_AUTO);
    CHECK(refused(NULL, NULL) == UNTORN_EINVAL);
    CHECK(!untorn_open(NULL, NULL, NULL));
    CHECK(untorn_read(NULL, 0, &byte, 1) == UNTORN_EINVAL);
    CHECK(untorn_read(file, 0, NULL, 1) == UNTORN_EINVAL);
    CHECK(untorn_write(NULL, 0, &byte, 1) == UNTORN_EINVAL);
    CHECK(untorn_write(file, 0, NULL, 1) == UNTORN_EINVAL);
    CHECK(untorn_read(file, 100, NULL, 0) == 0 && untorn_write(file, 4096, NULL, 0) == 0);
    CHECK(untorn_read(file, 4097, NULL, 0) == UNTORN_EFAULT);
    CHECK(untorn_begin(NULL) == NULL);
    CHECK(untorn_tx_write(NULL, 0, &byte, 1) == UNTORN_EINVAL);
    CHECK(untorn_tx_commit(NULL) == UNTORN_EINVAL);
    untorn_tx_abort(NULL);
    untorn_tx *tx = untorn_begin(file);
    CHECK(tx && untorn_tx_write(tx, 0, NULL, 1) == UNTORN_EINVAL);
    untorn_tx_abort(tx);
    CHECK(untorn_sync(NULL) == UNTORN_EINVAL);
    CHECK(untorn_resize(NULL, 1) == UNTORN_EINVAL);
    CHECK(untorn_len(NULL) == 0);
    CHECK(untorn_commit_number(NULL) == UNTORN_EINVAL);
    CHECK(untorn_last_commit(NULL, NULL, NULL) == UNTORN_EINVAL);
    CHECK(!untorn_snapshot(NULL, NULL) && !untorn_snapshot_open(NULL, NULL));
    CHECK(untorn_snapshot_read(NULL, 0, &byte, 1) == UNTORN_EINVAL);
    CHECK(untorn_snapshot_len(NULL) == 0 && untorn_snapshot_commit(NULL) == 0);
    CHECK(untorn_snapshot_close(NULL) == UNTORN_EINVAL);
    CHECK(!untorn_commits_open(NULL, 0, NULL) && !untorn_commits_consumer(NULL, "a", NULL, NULL));
    CHECK(!untorn_commits_consumer("a", NULL, NULL, NULL));
    CHECK(untorn_commits_next(NULL, 0, NULL) == UNTORN_EINVAL && untorn_commits_close(NULL) == UNTORN_EINVAL);
    CHECK(untorn_commits_acknowledge(NULL, 0) == UNTORN_EINVAL);
    CHECK(untorn_commits_forget(NULL, "a") == UNTORN_EINVAL && untorn_commits_forget("a", NULL) == UNTORN_EINVAL);
    CHECK(untorn_close(NULL) == UNTORN_EINVAL);
    CHECK(untorn_settle(NULL) == UNTORN_EINVAL);
    CHECK(untorn_last_error(NULL) == UNTORN_EINVAL);
    CHECK(untorn_settle(file) == 0);
}

static void options(const char *dir) {
    const char *path = in_dir(dir, "options");
    uint32_t *fields[] = {0, 0, 0, 0, 0, 0, 0, 0};
    untorn_options options = UNTORN_OPTIONS_INIT;
    CHECK(options.size == sizeof options);
    CHECK(refused(path, NULL) == UNTORN_ENOENT);
    fields[0] = &options.engine;
    fields[1] = &options.layout;
    fields[2] = &options.durability;
    fields[3] = &options.order;
    fields[4] = &options.read_policy;
    fields[5] = &options.flags;
    fields[6] = &options.reserved;
    fields[7] = &options.dirty_tracking;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        *fields[i] = 1u << 30;
        CHECK(refused(path, &options) == UNTORN_EINVAL);
        *fields[i] = 0;
    }
    options.size = 0;
    CHECK(refused(path, &options) == UNTORN_EINVAL);
    options.size = UINT32_MAX;
    CHECK(refused(path, &options) == UNTORN_EINVAL);
    options.size = sizeof options;
    options.flags = UNTORN_CREATE | UNTORN_READ_ONLY;
    CHECK(refused(path, &options) == UNTORN_EINVAL);
    options.flags = UNTORN_EXCL;
    CHECK(refused(path, &options) == UNTORN_EINVAL);

    /* A program compiled against a newer header: fine unless it uses the news. */
    struct {
        untorn_options known;
        uint64_t more;
    } newer = {UNTORN_OPTIONS_INIT, 0};
    newer.known.size = sizeof newer;
    newer.known.flags = UNTORN_CREATE;
    newer.known.length = 100;
    newer.more = 1;
    CHECK(refused(path, &newer.known) == UNTORN_EOPNOTSUPP);
    CHECK(access(path, F_OK) != 0);
    newer.more = 0;
    untorn_t *file = untorn_open(path, &newer.known, NULL);
    CHECK(file && untorn_len(file) == 100);
    CHECK(untorn_close(file) == 0);

    /* A program compiled against an older header, and one that sets what that did not have. */
    untorn_options older = UNTORN_OPTIONS_INIT;
    older.size = (uint32_t)offsetof(untorn_options, deploy_ahead);
    older.deploy_ahead = 1;
    older.flags = UNTORN_NO_DEPLOY_AHEAD;
    file = untorn_open(path, &older, NULL);
    CHECK(file && untorn_close(file) == 0);
    older.size = sizeof older;
    CHECK(refused(path, &older) == UNTORN_EINVAL);
    older.flags = 0;
    file = untorn_open(path, &older, NULL);
    CHECK(file && untorn_write(file, 0, "ahead", 5) == 0 && untorn_close(file) == 0);

    /* With UNTORN_CREATE a file that exists is opened as it is. */
    newer.known.length = 5000;
    file = untorn_open(path, &newer.known, NULL);
    CHECK(file && untorn_len(file) == 100);
    CHECK(untorn_close(file) == 0);
    newer.known.flags |= UNTORN_EXCL;
    CHECK(refused(path, &newer.known) == UNTORN_EEXIST);
    CHECK(refused(dir, NULL) == UNTORN_EISDIR);
    CHECK(refused("/dev/null", NULL) == UNTORN_EINVAL);
}

/* A closed file is a plain one, unless its sidecar is to stay. */
static void closing(const char *dir) {
    const char *path = in_dir(dir, "closing"), *sidecars = in_dir(dir, ".untorn");
    untorn_t *file = create(path, 10000, UNTORN_DURABILITY_PER_COMMIT);
    CHECK(untorn_close(file) == 0 && access(sidecars, F_OK) != 0);
    untorn_options keeping = UNTORN_OPTIONS_INIT;
    keeping.flags = UNTORN_KEEP_SIDECAR;
    file = untorn_open(path, &keeping, NULL);
    CHECK(file && untorn_close(file) == 0 && access(sidecars, F_OK) == 0);
    file = untorn_open(path, NULL, NULL);
    CHECK(file && untorn_close(file) == 0 && access(sidecars, F_OK) != 0);
}

static void reading_and_writing(const char *dir) {
    char seen[6];
    untorn_t *file = create(in_dir(dir, "file"), 10000, UNTORN_DURABILITY_PER_COMMIT);
    CHECK(untorn_write(file, 4094, "middle", 6) == 0);
    CHECK(untorn_read(file, 4094, seen, 6) == 0 && memcmp(seen, "middle", 6) == 0);
    CHECK(untorn_sync(file) == 0);
    CHECK(untorn_write(file, 9995, "middle", 6) == UNTORN_EFAULT);
    CHECK(untorn_write(file, UINT64_MAX, "middle", 6) == UNTORN_EFAULT);
    CHECK(untorn_write(file, 0, "middle", SIZE_MAX) == UNTORN_EINVAL);
    CHECK(untorn_read(file, 9995, seen, 6) == UNTORN_EFAULT);
    CHECK(untorn_read(file, 10001, seen, 0) == UNTORN_EFAULT);
    CHECK(untorn_read(file, 10000, seen, 0) == 0);
    CHECK(untorn_resize(file, 20000) == 0 && untorn_len(file) == 20000);
    CHECK(untorn_write(file, 9995, "middle", 6) == 0);
    CHECK(untorn_resize(file, UINT64_MAX) < 0 && untorn_len(file) == 20000);
    CHECK(untorn_resize(file, 9998) == 0 && untorn_len(file) == 9998);
    uint64_t freed = 1;
    CHECK(untorn_reclaim(file, NULL) == 0 && untorn_reclaim(file, &freed) == 0 && freed == 0);
    CHECK(untorn_reclaim(NULL, &freed) == UNTORN_EINVAL);
    CHECK(untorn_read(file, 9995, seen, 3) == 0 && memcmp(seen, "mid", 3) == 0);
    CHECK(untorn_read(file, 9995, seen, 6) == UNTORN_EFAULT);

    /* Two handles to one state; a settle needs the last one. */
    untorn_options same = UNTORN_OPTIONS_INIT;
    same.durability = UNTORN_DURABILITY_PER_WRITE;
    CHECK(refused(in_dir(dir, "file"), &same) == UNTORN_EBUSY);
    CHECK(untorn_close(file) == 0);

    untorn_options reading = UNTORN_OPTIONS_INIT;
    reading.flags = UNTORN_READ_ONLY;
    file = untorn_open(in_dir(dir, "file"), &reading, NULL);
    CHECK(file && untorn_len(file) == 9998);
    CHECK(untorn_read(file, 4094, seen, 6) == 0 && memcmp(seen, "middle", 6) == 0);
    CHECK(untorn_write(file, 4094, "middle", 6) == UNTORN_EROFS);
    CHECK(untorn_resize(file, 1) == UNTORN_EROFS);
    CHECK(untorn_close(file) == 0);

    file = untorn_open(in_dir(dir, "file"), NULL, NULL);
    CHECK(file && untorn_settle(file) == 0);
    struct stat plain;
    CHECK(stat(in_dir(dir, "file"), &plain) == 0 && plain.st_size == 9998);
}

static void transactions(const char *dir) {
    char seen[3];
    untorn_t *file = create(in_dir(dir, "tx"), 8192, UNTORN_DURABILITY_PER_WRITE);
    untorn_tx *tx = untorn_begin(file);
    CHECK(tx);
    CHECK(untorn_tx_write(tx, 0, "one", 3) == 0);
    CHECK(untorn_tx_write(tx, 8189, "two", 3) == 0);
    CHECK(untorn_tx_write(tx, 1, "NE", 2) == 0);
    CHECK(untorn_tx_write(tx, 8190, "two", 3) == UNTORN_EFAULT);
    CHECK(untorn_tx_write(tx, UINT64_MAX - 1, "two", 3) == UNTORN_EFAULT);
    CHECK(untorn_read(file, 0, seen, 3) == 0 && memcmp(seen, "\0\0\0", 3) == 0);
    CHECK(untorn_close(file) == UNTORN_ETXOPEN);
    CHECK(untorn_settle(file) == UNTORN_ETXOPEN);
    CHECK(untorn_tx_commit(tx) == 0);
    CHECK(untorn_read(file, 0, seen, 3) == 0 && memcmp(seen, "oNE", 3) == 0);
    CHECK(untorn_read(file, 8189, seen, 3) == 0 && memcmp(seen, "two", 3) == 0);

    tx = untorn_begin(file);
    CHECK(tx && untorn_tx_write(tx, 0, "xxx", 3) == 0);
    untorn_tx_abort(tx);
    CHECK(untorn_read(file, 0, seen, 3) == 0 && memcmp(seen, "oNE", 3) == 0);

    /* A range that a shrink took away in between: none of the writes. */
    tx = untorn_begin(file);
    CHECK(tx && untorn_tx_write(tx, 0, "xxx", 3) == 0 && untorn_tx_write(tx, 8189, "xxx", 3) == 0);
    CHECK(untorn_resize(file, 4096) == 0);
    CHECK(untorn_tx_commit(tx) == UNTORN_EFAULT);
    CHECK(untorn_read(file, 0, seen, 3) == 0 && memcmp(seen, "oNE", 3) == 0);

    tx = untorn_begin(file);
    CHECK(tx && untorn_tx_commit(tx) == 0);
    CHECK(untorn_close(file) == 0);
    file = untorn_open(in_dir(dir, "tx"), NULL, NULL);
    CHECK(file && untorn_read(file, 0, seen, 3) == 0 && memcmp(seen, "oNE", 3) == 0);
    CHECK(untorn_settle(file) == 0);
}

static void texts(void) {
    static const int codes[] = {
        0, UNTORN_ENOENT, UNTORN_EFAULT, UNTORN_EINTERNAL, UNTORN_EPOISONED, UNTORN_ETXOPEN,
        -4095, 1, INT32_MIN, INT32_MAX,
    };
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        const char *text = untorn_strerror(codes[i]);
        CHECK(text && *text && text == untorn_strerror(codes[i]));
    }
    CHECK(strcmp(untorn_strerror(-ENOENT), strerror(ENOENT)) == 0);
}

static void version(const char *package) {
    CHECK(strcmp(untorn_version(), package) == 0);
    CHECK(untorn_version() == untorn_version());
}

static void *fresh_thread(void *argument) {
    untorn_error error;
    CHECK(untorn_last_error(&error) == 0 && error.code == 0 && error.message[0] == 0);
    return argument;
}

static void *writer(void *file) {
    char block[5000];
    for (int round = 0; round < 100; round++) {
        memset(block, round, sizeof block);
        CHECK(untorn_write(file, 1000, block, sizeof block) == 0);
        CHECK(untorn_read(file, 1000, block, sizeof block) == 0);
        for (size_t i = 1; i < sizeof block; i++) CHECK(block[i] == block[0]);
    }
    return NULL;
}

static void threads(const char *dir) {
    untorn_t *file = create(in_dir(dir, "threads"), 8192, UNTORN_DURABILITY_PER_COMMIT);
    pthread_t ids[4];
    CHECK(pthread_create(&ids[0], NULL, fresh_thread, NULL) == 0 && pthread_join(ids[0], NULL) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&ids[i], NULL, writer, file) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(ids[i], NULL) == 0);
    CHECK(untorn_settle(file) == 0);
}

static void snapshots(const char *dir) {
    const char *path = in_dir(dir, "snapshots");
    char bytes[5];
    untorn_error error;
    untorn_t *file = create(path, 8192, UNTORN_DURABILITY_PER_COMMIT);
    CHECK(untorn_write(file, 4094, "first", 5) == 0 && untorn_sync(file) == 0);
    int64_t number = untorn_commit_number(file);
    untorn_snapshot_t *one = untorn_snapshot(file, &error);
    CHECK(one && error.code == 0 && untorn_snapshot_len(one) == 8192);
    CHECK((int64_t)untorn_snapshot_commit(one) == number);
    CHECK(untorn_write(file, 4094, "other", 5) == 0);
    /* Of this process, by its path; the open epoch is in neither. */
    untorn_snapshot_t *two = untorn_snapshot_open(path, &error);
    CHECK(two && error.code == 0);
    CHECK(untorn_sync(file) == 0 && untorn_commit_number(file) > number);
    uint64_t last = 0, time_ns = 0;
    CHECK(untorn_last_commit(file, &last, &time_ns) == 0 && untorn_last_commit(file, NULL, NULL) == 0);
    CHECK((int64_t)last > number && time_ns / 1000000000 + 60 > (uint64_t)time(NULL));
    CHECK(untorn_snapshot_read(one, 4094, bytes, 5) == 0 && memcmp(bytes, "first", 5) == 0);
    CHECK(untorn_snapshot_read(two, 4094, bytes, 5) == 0 && memcmp(bytes, "first", 5) == 0);
    CHECK(untorn_snapshot_read(one, 8190, bytes, 5) == UNTORN_EFAULT);
    CHECK(untorn_snapshot_read(one, 0, NULL, 1) == UNTORN_EINVAL);
    CHECK(untorn_snapshot_close(one) == 0 && untorn_snapshot_close(two) == 0);
    CHECK(untorn_close(file) == 0);
    CHECK(!untorn_snapshot_open(in_dir(dir, "nothing"), &error) && error.code == UNTORN_ENOENT);
}

/* Open files of this process without a name in `dir`. */
static int nameless(const char *dir) {
    int found = 0;
    char link[64], target[4096 + 32];
    for (int fd = 0; fd < 1024; fd++) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, target, sizeof target - 1);
        if (length < 0) continue;
        target[length] = 0;
        found += strncmp(target, dir, strlen(dir)) == 0 && strstr(target, " (deleted)");
    }
    return found;
}

static void options_of_snapshots(const char *dir) {
    const char *path = in_dir(dir, "snapshot options");
    char bytes[2];
    untorn_error error;
    untorn_options options = UNTORN_OPTIONS_INIT;
    options.flags = UNTORN_CREATE | UNTORN_NO_SERVE_SNAPSHOTS;
    options.length = 8192;
    options.durability = UNTORN_DURABILITY_PER_COMMIT;
    for (int in_memory = 1; in_memory >= 0; in_memory--) {
        options.snapshot_memory = in_memory ? 0 : 1;
        untorn_t *file = untorn_open(path, &options, &error);
        CHECK(file && untorn_write(file, 4095, "aa", 2) == 0 && untorn_sync(file) == 0);
        untorn_snapshot_t *snapshot = untorn_snapshot(file, &error);
        CHECK(snapshot && nameless(dir) == 0);
        CHECK(untorn_write(file, 4095, "bb", 2) == 0 && untorn_sync(file) == 0);
        CHECK(untorn_snapshot_read(snapshot, 4095, bytes, 2) == 0 && memcmp(bytes, "aa", 2) == 0);
        CHECK(nameless(dir) == (in_memory ? 0 : 1));
        CHECK(untorn_snapshot_close(snapshot) == 0);
        /* The flag is for other processes. */
        pid_t child = fork();
        if (child == 0) {
            snapshot = untorn_snapshot_open(path, &error);
            _exit(!snapshot && error.code == UNTORN_EBUSY && strstr(error.message, "snapshot") ? 0 : 1);
        }
        ended(child);
        CHECK(untorn_close(file) == 0);
    }
}

static void commits(const char *dir) {
    const char *path = in_dir(dir, "commits");
    untorn_error error;
    untorn_commit commit;
    untorn_options options = UNTORN_OPTIONS_INIT;
    options.flags = UNTORN_CREATE;
    options.length = 8192;
    options.durability = UNTORN_DURABILITY_PER_COMMIT;
    options.flags |= UNTORN_COMMIT_LOG_BLOCK;
    CHECK(refused(path, &options) == UNTORN_EINVAL);
    options.commit_log = 64 << 10;
    untorn_t *file = untorn_open(path, &options, &error);
    CHECK(file);
    uint64_t from = (uint64_t)untorn_commit_number(file);
    untorn_commits_t *stream = untorn_commits_open(path, from, &error);
    CHECK(stream && error.code == 0 && untorn_commits_next(stream, 0, &commit) == 0);
    CHECK(untorn_write(file, 100, "first", 5) == 0 && untorn_write(file, 4000, "other", 5) == 0);
    CHECK(untorn_sync(file) == 0);
    CHECK(untorn_commits_next(stream, 1000, NULL) == UNTORN_EINVAL);
    CHECK(untorn_commits_next(stream, 1000, &commit) == 1);
    CHECK(commit.number > from && commit.len == 8192 && commit.shortest >= 8192 && commit.change_count == 2);
    CHECK(commit.time_ns / 1000000000 + 60 > (uint64_t)time(NULL));
    CHECK(commit.changes[0].offset == 100 && commit.changes[0].len == 5 && commit.changes[1].offset == 4000);
    CHECK(memcmp(commit.changes[0].bytes, "first", 5) == 0 && memcmp(commit.changes[1].bytes, "other", 5) == 0);
    CHECK(untorn_commits_next(stream, 1, &commit) == 0);
    CHECK(untorn_commits_acknowledge(stream, commit.number) == UNTORN_EINVAL);
    CHECK(untorn_commits_close(stream) == 0);
    CHECK(!untorn_commits_open(path, commit.number + 99, &error) && error.code == UNTORN_EINVAL);

    untorn_commits_t *one = untorn_commits_consumer(path, "one", NULL, &error);
    CHECK(one && error.code == 0);
    CHECK(!untorn_commits_consumer(path, "one", NULL, &error) && error.code == UNTORN_EBUSY);
    CHECK(!untorn_commits_consumer(path, "o/e", NULL, &error) && error.code == UNTORN_EINVAL);
    CHECK(untorn_commits_acknowledge(one, commit.number + 99) == UNTORN_EINVAL);
    CHECK(untorn_commits_next(one, 0, &commit) == 1 && untorn_commits_acknowledge(one, commit.number) == 0);
    CHECK(untorn_commits_close(one) == 0);
    /* The log fills up, and keeps what the consumer has not acknowledged. */
    static char bytes[8192];
    int code = 0;
    for (int i = 0; i < 100 && !code; i++) {
        bytes[0] = (char)i;
        code = untorn_write(file, 0, bytes, sizeof bytes) || untorn_sync(file) ? untorn_sync(file) : 0;
    }
    CHECK(code == UNTORN_EAGAIN);
    uint64_t last = commit.number;
    one = untorn_commits_consumer(path, "one", NULL, &error);
    CHECK(one);
    while (untorn_commits_next(one, 0, &commit) == 1) {
        CHECK(commit.previous == last && commit.change_count > 0);
        last = commit.number;
    }
    CHECK(untorn_commits_acknowledge(one, last) == 0 && untorn_sync(file) == 0);
    CHECK(untorn_commits_close(one) == 0);
    one = untorn_commits_consumer(path, "one", &last, &error);
    CHECK(one && untorn_commits_next(one, 0, &commit) == 1 && commit.previous == last);
    CHECK(untorn_commits_close(one) == 0);
    CHECK(untorn_commits_forget(path, "one") == 0 && untorn_commits_forget(path, "one") == UNTORN_ENOENT);
    CHECK(untorn_close(file) == 0);
    options.flags = UNTORN_COMMIT_LOG_BLOCK | UNTORN_COMMIT_LOG_AWAIT;
    file = untorn_open(path, &options, &error);
    CHECK(file && untorn_write(file, 0, "other", 5) == 0 && untorn_sync(file) == UNTORN_ETIMEDOUT);
    one = untorn_commits_consumer(path, "one", NULL, &error);
    while (untorn_commits_next(one, 0, &commit) == 1) last = commit.number;
    CHECK(untorn_sync(file) == UNTORN_ETIMEDOUT);
    CHECK(untorn_commits_acknowledge(one, last) == 0 && untorn_sync(file) == 0);
    CHECK(untorn_commits_close(one) == 0 && untorn_close(file) == 0);
    options.commit_log = 0;
    CHECK(refused(path, &options) == UNTORN_EINVAL);
    untorn_t *plain = create(in_dir(dir, "unlogged"), 4096, UNTORN_DURABILITY_AUTO);
    CHECK(!untorn_commits_open(in_dir(dir, "unlogged"), 0, &error) && error.code == UNTORN_ECOMMITS);
    CHECK(untorn_close(plain) == 0);
}

int main(int argc, char **argv) {
    if (argc != 3) return 64;
    /* The first: a process that serves snapshots of one file serves them of all. */
    options_of_snapshots(argv[1]);
    null_arguments(argv[1]);
    snapshots(argv[1]);
    options(argv[1]);
    closing(argv[1]);
    reading_and_writing(argv[1]);
    transactions(argv[1]);
    texts();
    version(argv[2]);
    threads(argv[1]);
    /* The last: its log stays beside the file. */
    commits(argv[1]);
    return 0;
}
