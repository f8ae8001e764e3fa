/* untorn/region.h: a region of several processes.
 * Usage: region_shared DIR; exits with 0 if all is well. What this machine does not
 * have it names on stdout. */
#define _DEFAULT_SOURCE

#include <untorn.h>
#include <untorn/region.h>

#include "process.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096

static char *map(int rd, int64_t page) {
    char *bytes = pmmap(NULL, rd, page, PAGE, MAP_SHARED);
    CHECK(bytes != MAP_FAILED);
    return bytes;
}

/* Forked before this process opens anything, so it has a library of its own. */
static pid_t other(int go, int done) {
    pid_t child = fork_waiting(go);
    if (child > 0) return child;
    CHECK(FAILS(region_open("r", 0), -1, EBUSY));
    CHECK(FAILS(region_open("other", REGION_SHARED), -1, EBUSY));
    int rd = region_open("r", REGION_SHARED);
    CHECK(rd >= 0 && memcmp(map(rd, 0), "stored", 6) == 0);
    CHECK(alloc_ppage(rd) == 2);
    memcpy(map(rd, 2), "by another", 10);
    CHECK(free_ppage(rd, 1) == 0);
    done_until_killed(done);
    return 0;
}

static void processes(void) {
    int go[2], done[2];
    CHECK(pipe(go) == 0 && pipe(done) == 0);
    pid_t child = other(go[0], done[1]);
    int rd = region_open("r", O_CREAT | REGION_SHARED);
    if (rd < 0 && (errno == EPERM || errno == ENOSYS)) {
        untorn_error last;
        CHECK(untorn_last_error(&last) == 0);
        printf("skipped: %s\n", last.message);
        CHECK(kill(child, SIGKILL) == 0);
        exit(0);
    }
    CHECK(rd >= 0);
    CHECK(FAILS(region_open("r", O_CREAT), -1, EBUSY));
    CHECK(FAILS(region_open("new", O_CREAT | O_EXCL | REGION_SHARED), -1, EINVAL));
    int again = region_open("r", REGION_SHARED);
    CHECK(again >= 0 && again != rd && region_close(again) == 0);
    CHECK(alloc_ppage(rd) == 0 && alloc_ppage(rd) == 1);
    memcpy(map(rd, 0), "stored", 6);
    CHECK(pmsync(rd) == 0);

    /* Another process comes, stores, allocates and frees, and is killed. */
    run_and_kill(child, go[1], done[0]);
    CHECK(memcmp(map(rd, 2), "by another", 10) == 0);
    CHECK(FAILS(pmmap(NULL, rd, 1, PAGE, MAP_SHARED), MAP_FAILED, EINVAL));
    CHECK(FAILS(pmmap(NULL, rd, 1 << 20, PAGE, MAP_SHARED), MAP_FAILED, EFAULT));
    CHECK(alloc_ppage(rd) == 3);
    CHECK(pmsync(rd) == 0 && alloc_ppage(rd) == 1 && map(rd, 1)[0] == 0);

    /* What is mapped stays, and what is not committed does not. */
    char *first = map(rd, 0);
    CHECK(FAILS(free_ppage(rd, 0), -1, EBUSY) && FAILS(region_close(rd), -1, EBUSY));
    CHECK(map(rd, 2) == first + 2 * PAGE);
    first[0] = 'S';
    for (int page = 0; page < 4; page++)
        while (pmunmap(first + page * PAGE) == 0) {}
    CHECK(free_ppage(rd, 0) == 0 && region_close(rd) == 0);
    for (int i = 0; i < 4; i++) CHECK(close(i < 2 ? go[i] : done[i - 2]) == 0);
}

/* One process alone finds what they committed. */
static void afterwards(void) {
    int rd = region_open("r", 0);
    CHECK(rd >= 0);
    CHECK(memcmp(map(rd, 0), "stored", 6) == 0 && memcmp(map(rd, 2), "by another", 10) == 0);
    CHECK(FAILS(pmmap(NULL, rd, 1, PAGE, MAP_SHARED), MAP_FAILED, EINVAL));
    CHECK(map(rd, 3)[0] == 0);
    CHECK(FAILS(region_open("r", REGION_SHARED), -1, EBUSY));
}

int main(int argc, char **argv) {
    if (argc != 2) return 64;
    CHECK(setenv("UNTORN_REGION_STORE", in_dir(argv[1], "store"), 1) == 0);
    processes();
    afterwards();
    return 0;
}
