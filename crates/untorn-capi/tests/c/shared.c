/* untorn/shared.h.
 * Usage: shared DIR; exits with 0 if all is well. What this machine does not have it
 * names on stdout. */
#define _DEFAULT_SOURCE

#include <untorn/shared.h>

#include "process.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096

static int refused(const char *path, const untorn_options *options, const char *word) {
    untorn_error error;
    size_t len = 77;
    CHECK(!untorn_share(path, options, &len, &error) && len == 77);
    return told(error.code, word);
}

static unsigned char *share(const char *path) {
    untorn_error error;
    size_t len = 77;
    unsigned char *memory = untorn_share(path, NULL, &len, &error);
    CHECK(memory && error.code == 0 && error.message[0] == 0);
    CHECK((uintptr_t)memory % PAGE == 0 && len == untorn_share_len(memory));
    return memory;
}

static void empty(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0 && close(fd) == 0);
}

/* The file as a program without untorn sees it. */
static void in_file(const char *path, off_t offset, const char *bytes) {
    char found[64] = {0};
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && pread(fd, found, strlen(bytes), offset) == (ssize_t)strlen(bytes));
    CHECK(memcmp(found, bytes, strlen(bytes)) == 0 && close(fd) == 0);
}

/* Forked before this process shares anything, so it has a library of its own. */
static pid_t other(const char *path, int go, int done) {
    pid_t child = fork_waiting(go);
    if (child > 0) return child;
    unsigned char *memory = share(path);
    CHECK(untorn_share_len(memory) == 3 * PAGE && !untorn_share_is_serving(memory));
    CHECK(memcmp(memory, "stored", 6) == 0);
    memcpy(memory + PAGE, "by another", 10);
    done_until_killed(done);
    return 0;
}

static void commits(const char *dir) {
    char *path = in_dir(dir, "commits");
    int go[2], done[2];
    uint64_t first = 0, second = 0;
    empty(path);
    CHECK(pipe(go) == 0 && pipe(done) == 0);
    pid_t child = other(path, go[0], done[1]);

    unsigned char *memory = share(path);
    CHECK(untorn_share_len(memory) == 0 && untorn_share_is_serving(memory) == 1);
    CHECK(untorn_share_grow(memory, 3 * PAGE) == 0 && untorn_share_grow(memory, 3 * PAGE) == 0);
    CHECK(told(untorn_share_grow(memory, PAGE), path) == UNTORN_EINVAL);
    CHECK(untorn_share_len(memory) == 3 * PAGE && memory[3 * PAGE - 1] == 0);
    memcpy(memory, "stored", 6);
    CHECK(untorn_share_commit(memory, &first) == 0 && untorn_share_commit(memory, NULL) == 0);

    /* Another process comes, stores, and is killed: its stores are as good as any. */
    run_and_kill(child, go[1], done[0]);
    CHECK(memcmp(memory + PAGE, "by another", 10) == 0);
    CHECK(untorn_share_commit(memory, &second) == 0 && second > first);

    memcpy(memory, "doubt!", 6);
    CHECK(untorn_share_rollback(memory) == 0 && memcmp(memory, "stored", 6) == 0);
    memcpy(memory, "doubt!", 6);
    CHECK(untorn_share_leave(memory) == 0);
    in_file(path, 0, "stored");
    in_file(path, PAGE, "by another");
    for (int i = 0; i < 4; i++) CHECK(close(i < 2 ? go[i] : done[i - 2]) == 0);
}

static void system_calls(const char *dir) {
    char *path = in_dir(dir, "system-calls");
    int pipe_of[2];
    empty(path);
    CHECK(pipe(pipe_of) == 0 && write(pipe_of[1], "one two ", 8) == 8);
    unsigned char *memory = share(path);
    CHECK(untorn_share_grow(memory, 2 * PAGE) == 0);
    CHECK(untorn_share_open_range(memory, PAGE, 4) == 0);
    CHECK(read(pipe_of[0], memory + PAGE, 4) == 4);
    CHECK(untorn_share_commit(memory, NULL) == 0);
    CHECK(told(untorn_share_open_range(memory, PAGE, PAGE + 1), path) == UNTORN_EFAULT);
    CHECK(untorn_share_open_range(memory, UINT64_MAX, 2) == UNTORN_EINVAL);
    CHECK(untorn_share_leave(memory) == 0);
    in_file(path, PAGE, "one ");
    CHECK(close(pipe_of[0]) == 0 && close(pipe_of[1]) == 0);
}

static void refusals(const char *dir) {
    char *path = in_dir(dir, "refusals");
    untorn_options options = UNTORN_OPTIONS_INIT;
    CHECK(refused(path, NULL, path) == UNTORN_ENOENT);
    CHECK(refused(NULL, NULL, "path") == UNTORN_EINVAL);
    empty(path);
    options.flags = UNTORN_CREATE | UNTORN_EXCL;
    CHECK(refused(path, &options, path) == UNTORN_EEXIST);
    options.flags = UNTORN_READ_ONLY;
    CHECK(refused(path, &options, path) == UNTORN_EINVAL);
    options.flags = 1u << 31;
    CHECK(refused(path, &options, "flags") == UNTORN_EINVAL);
    options.flags = 0;
    options.engine = UNTORN_ENGINE_REFLECTION;
    CHECK(refused(path, &options, path) == UNTORN_EINVAL);
    options.size = 3;
    CHECK(refused(path, &options, "size") == UNTORN_EINVAL);

    unsigned char *memory = share(path);
    CHECK(refused(path, NULL, path) == UNTORN_EBUSY);
    CHECK(!untorn_map(path, NULL, NULL, NULL) && !untorn_open(path, NULL, NULL));
    CHECK(untorn_map_commit(memory) == UNTORN_EINVAL && untorn_unmap(memory) == UNTORN_EINVAL);
    CHECK(told(untorn_share_commit(memory + 1, NULL), "untorn_share") == UNTORN_EINVAL);
    CHECK(told(untorn_share_leave(NULL), "NULL") == UNTORN_EINVAL);
    CHECK(untorn_share_len(memory + 1) == 0 && untorn_share_is_serving(memory + 1) == UNTORN_EINVAL);

    /* A forked child has no part in it. */
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        CHECK(told(untorn_share_commit(memory, NULL), "parent process") == UNTORN_EOWNERDEAD);
        CHECK(untorn_share_leave(memory) == UNTORN_EOWNERDEAD);
        _exit(0);
    }
    ended(child);

    CHECK(untorn_share_leave(memory) == 0);
    CHECK(untorn_share_leave(memory) == UNTORN_EINVAL && untorn_share_rollback(memory) == UNTORN_EINVAL);
    CHECK((memory = untorn_map(path, NULL, NULL, NULL)) && untorn_unmap(memory) == 0);
}

int main(int argc, char **argv) {
    if (argc != 2) return 1;
    char *path = in_dir(argv[1], "probe");
    untorn_error error;
    empty(path);
    /* In a child: what this process forks is not to have a library that was used. */
    pid_t child = fork();
    if (child == 0) {
        void *memory = untorn_share(path, NULL, NULL, &error);
        int forbidden = !memory && (error.code == -EPERM || error.code == -ENOSYS);
        if (forbidden) printf("skipped: %s\n", error.message);
        CHECK(forbidden || (memory && untorn_share_leave(memory) == 0));
        fflush(NULL);
        _exit(forbidden ? 3 : 0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    if (WEXITSTATUS(status) == 3) return 0;
    CHECK(WEXITSTATUS(status) == 0);
    commits(argv[1]);
    system_calls(argv[1]);
    refusals(argv[1]);
    return 0;
}
