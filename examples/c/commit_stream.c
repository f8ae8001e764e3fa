/*
 * A copy of a file that follows every commit of it. A writer commits to a file
 * with a commit log; a consumer, in a process of its own, repeats each commit
 * on its copy and acknowledges it. The consumer is killed with SIGKILL, at any
 * instruction, again and again, and goes on where it was. At the end the copy
 * is the file, byte for byte.
 *
 * Usage: commit_stream FILE [KILLS]
 * Writes the copy to FILE.copy. Exits with 1 if the two ever differ at the end.
 */
#define _POSIX_C_SOURCE 200809L

#include <untorn.h>

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LENGTH (64 << 10)

/* Says what went wrong in the last call and ends the process. */
static void give_up(const char *doing) {
    untorn_error error;
    untorn_last_error(&error);
    fprintf(stderr, "%s: %s\n", doing, error.message);
    exit(2);
}

static void check(int is_well, const char *doing) {
    if (is_well) return;
    perror(doing);
    exit(2);
}

/* Repeats one commit on the copy. All its bytes are absolute, so a commit that
 * a killed consumer has repeated already may be repeated again. */
static void repeat(int copy, const untorn_commit *commit) {
    check(ftruncate(copy, (off_t)commit->shortest) == 0, "ftruncate");
    check(ftruncate(copy, (off_t)commit->len) == 0, "ftruncate");
    for (size_t i = 0; i < commit->change_count; i++) {
        const untorn_change *change = &commit->changes[i];
        ssize_t written = pwrite(copy, change->bytes, change->len, (off_t)change->offset);
        check(written >= 0 && (uint64_t)written == change->len, "pwrite");
    }
}

/* Follows the file for ever, or up to its last commit. */
static void follow(const char *path, const char *copy_path, int forever) {
    untorn_commit commit;
    int found, copy = open(copy_path, O_RDWR | O_CREAT, 0600);
    check(copy >= 0, copy_path);
    untorn_commits_t *stream = untorn_commits_consumer(path, "copy", NULL, NULL);
    if (!stream) give_up("untorn_commits_consumer");
    while ((found = untorn_commits_next(stream, forever ? 1000 : 0, &commit)) >= 0) {
        if (found == 0 && !forever) break;
        if (found == 0) continue;
        repeat(copy, &commit);
        /* What is acknowledged comes never again: the copy has it first. */
        check(fdatasync(copy) == 0, "fdatasync");
        if (untorn_commits_acknowledge(stream, commit.number)) give_up("untorn_commits_acknowledge");
    }
    if (found < 0) give_up("untorn_commits_next");
    if (untorn_commits_close(stream)) give_up("untorn_commits_close");
    check(close(copy) == 0, "close");
}

static int differ(const char *path, const char *copy_path) {
    static char one[LENGTH], two[LENGTH];
    FILE *file = fopen(path, "rb"), *copy = fopen(copy_path, "rb");
    check(file && copy, "fopen");
    size_t lengths[] = { fread(one, 1, LENGTH, file), fread(two, 1, LENGTH, copy) };
    fclose(file);
    fclose(copy);
    return lengths[0] != LENGTH || lengths[1] != LENGTH || memcmp(one, two, LENGTH) != 0;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: %s FILE [KILLS]\n", argv[0]);
        return 64;
    }
    int kills = argc > 2 ? atoi(argv[2]) : 10;
    char copy_path[4096];
    snprintf(copy_path, sizeof copy_path, "%s.copy", argv[1]);
    untorn_options options = UNTORN_OPTIONS_INIT;
    options.flags = UNTORN_CREATE | UNTORN_COMMIT_LOG_BLOCK;
    options.length = LENGTH;
    options.durability = UNTORN_DURABILITY_PER_COMMIT;
    options.commit_log = 1 << 20;
    /* A commit waits up to ten seconds for the consumer. */
    options.commit_log_wait = 10000;
    untorn_t *file = untorn_open(argv[1], &options, NULL);
    if (!file) give_up("untorn_open");
    /* From here on the log keeps what the consumer has not acknowledged. */
    untorn_commits_t *stream = untorn_commits_consumer(argv[1], "copy", NULL, NULL);
    if (!stream || untorn_commits_close(stream)) give_up("untorn_commits_consumer");

    uint64_t commits = 0;
    for (int round = 0; round < kills; round++) {
        pid_t child = fork();
        check(child >= 0, "fork");
        if (child == 0) {
            follow(argv[1], copy_path, 1);
            _exit(0);
        }
        for (int i = 0; i < 20; i++, commits++) {
            char text[64];
            int length = snprintf(text, sizeof text, "commit %" PRIu64 " of round %d", commits, round);
            uint64_t place = commits * 997 % (LENGTH - sizeof text);
            if (untorn_write(file, place, text, (size_t)length) || untorn_sync(file)) give_up("untorn_sync");
        }
        struct timespec pause = { 0, (1 + round * 7 % 10) * 1000000L };
        nanosleep(&pause, NULL);
        kill(child, SIGKILL);
        check(waitpid(child, NULL, 0) == child, "waitpid");
    }
    follow(argv[1], copy_path, 0);
    if (untorn_close(file)) give_up("untorn_close");
    if (differ(argv[1], copy_path)) {
        fprintf(stderr, "the copy differs from the file\n");
        return 1;
    }
    if (untorn_commits_forget(argv[1], "copy")) give_up("untorn_commits_forget");
    printf("%" PRIu64 " commits, %d kills of the consumer: the copy is the file\n", commits, kills);
    return 0;
}
