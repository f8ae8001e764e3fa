/* untorn/protect.h: checksums and parity of a mapping of the program's own.
 * Usage: protect DIR; exits with 0 if all is well. What this machine does not have
 * it names on stdout. */
#define _DEFAULT_SOURCE

#include <untorn/protect.h>

#include "check.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096
#define LENGTH (8 * PAGE)

static unsigned char *map(const char *path, int flags) {
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && ftruncate(fd, LENGTH) == 0);
    unsigned char *memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, flags, fd, 0);
    CHECK(memory != MAP_FAILED && close(fd) == 0);
    return memory;
}

static void refusals(const char *dir) {
    char *path = in_dir(dir, "refusals");
    unsigned char *memory = map(path, MAP_SHARED);
    untorn_redundancy_options options = UNTORN_REDUNDANCY_OPTIONS_INIT;
    options.layout = 9;
    CHECK(told(untorn_protect(memory, LENGTH, &options), "layout") == UNTORN_EINVAL);
    options.layout = 0;
    options.checksum = 9;
    CHECK(told(untorn_protect(memory, LENGTH, &options), "checksum") == UNTORN_EINVAL);
    options.checksum = 0;
    options.flags = UNTORN_COVER_ON_DEMAND;
    options.period_ms = 5;
    CHECK(told(untorn_protect(memory, LENGTH, &options), "period_ms") == UNTORN_EINVAL);
    options.size = 4;
    CHECK(told(untorn_protect(memory, LENGTH, &options), "size") == UNTORN_EINVAL);
    CHECK(untorn_protect(NULL, LENGTH, NULL) == UNTORN_EINVAL);
    CHECK(untorn_protect(memory + PAGE, LENGTH - PAGE, NULL) == UNTORN_EINVAL);
    unsigned char *apart = map(path, MAP_PRIVATE);
    CHECK(untorn_protect(apart, LENGTH, NULL) == UNTORN_EINVAL);
    CHECK(told(untorn_redundancy_sync(memory), "untorn_protect") == UNTORN_EINVAL);
    CHECK(told(untorn_unprotect(NULL), "NULL") == UNTORN_EINVAL);
    CHECK(munmap(memory, LENGTH) == 0 && munmap(apart, LENGTH) == 0);
}

/* Returns 0 where stores cannot be tracked. */
static int protects(const char *dir) {
    unsigned char *memory = map(in_dir(dir, "protected"), MAP_SHARED);
    uint64_t count = 77;
    int code = untorn_protect(memory, LENGTH, NULL);
    if (code == UNTORN_EINVAL) {
        untorn_error why;
        CHECK(untorn_last_error(&why) == 0 && strstr(why.message, "cannot be tracked here"));
        printf("skipped: %s\n", why.message);
        return 0;
    }
    CHECK(code == 0 && untorn_protect(memory, LENGTH, NULL) == UNTORN_EBUSY);
    memset(memory, 7, LENGTH);
    CHECK(untorn_redundancy_sync(memory) == 0);
    CHECK(untorn_redundancy_scrub(memory, &count) == 0 && count == 0);
    untorn_coverage coverage = UNTORN_COVERAGE_INIT;
    CHECK(untorn_redundancy_coverage(memory, &coverage) == 0 && coverage.size == sizeof coverage);
    CHECK(coverage.pages == 8 && coverage.uncovered == 0 && coverage.stripes == 2 && coverage.lost == 0);
    CHECK(coverage.scrubs == 1 && coverage.last_scrub > 0 && !coverage.is_scrubbed && !coverage.oldest_uncovered_ms);
    coverage.size = 4;
    CHECK(told(untorn_redundancy_coverage(memory, &coverage), "size") == UNTORN_EINVAL);
    CHECK(told(untorn_redundancy_coverage(memory, NULL), "NULL") == UNTORN_EINVAL);
    count = 77;
    CHECK(untorn_redundancy_repair(memory, &count) == 0 && count == 0);
    CHECK(untorn_redundancy_scrub(memory, NULL) == 0);

    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        CHECK(told(untorn_redundancy_sync(memory), "parent process") == UNTORN_EOWNERDEAD);
        CHECK(untorn_unprotect(memory) == UNTORN_EOWNERDEAD);
        _exit(0);
    }
    ended(child);

    CHECK(untorn_unprotect(memory) == 0 && untorn_unprotect(memory) == UNTORN_EINVAL);
    CHECK(untorn_protect(memory, LENGTH, NULL) == 0 && untorn_unprotect(memory) == 0);
    CHECK(munmap(memory, LENGTH) == 0);
    return 1;
}

static untorn_coverage coverage_of(void *memory) {
    untorn_coverage coverage = UNTORN_COVERAGE_INIT;
    CHECK(untorn_redundancy_coverage(memory, &coverage) == 0);
    return coverage;
}

/* Waits until all is covered, which without a pass never comes. */
static void is_covered(void *memory) {
    while (coverage_of(memory).uncovered) usleep(1000);
}

static void paces(const char *dir) {
    unsigned char *memory = map(in_dir(dir, "paced"), MAP_SHARED);
    untorn_redundancy_options options = UNTORN_REDUNDANCY_OPTIONS_INIT;
    options.period_ms = 3600 * 1000;
    options.max_uncovered = 3;
    CHECK(untorn_protect(memory, LENGTH, &options) == 0);
    CHECK(untorn_redundancy_sync(memory) == 0);
    untorn_coverage coverage = coverage_of(memory);
    CHECK(coverage.period_ms == 3600 * 1000 && coverage.max_uncovered == 3);
    /* The cap is exceeded, so nobody waits for an hour. */
    memset(memory, 1, LENGTH);
    is_covered(memory);
    CHECK(coverage_of(memory).peak_uncovered == 8);
    CHECK(untorn_redundancy_set_max_uncovered(memory, UINT64_MAX) == 0);
    CHECK(coverage_of(memory).max_uncovered == UINT64_MAX);
    memset(memory, 2, LENGTH);
    usleep(300 * 1000);
    CHECK(coverage_of(memory).uncovered == 8);
    CHECK(told(untorn_redundancy_set_period(memory, 0), "period") == UNTORN_EINVAL);
    CHECK(untorn_redundancy_set_period(memory, 10) == 0 && coverage_of(memory).period_ms == 10);
    is_covered(memory);
    CHECK(untorn_redundancy_set_period(NULL, 10) == UNTORN_EINVAL);
    CHECK(untorn_redundancy_set_max_uncovered(NULL, 10) == UNTORN_EINVAL);
    CHECK(untorn_unprotect(memory) == 0 && munmap(memory, LENGTH) == 0);
}

/* The mapping is twice as long as the file, which then grows. */
static void grows(const char *dir) {
    char *path = in_dir(dir, "grown");
    unsigned char *memory = map(path, MAP_SHARED);
    CHECK(munmap(memory, LENGTH) == 0);
    int fd = open(path, O_RDWR);
    memory = mmap(NULL, 2 * LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(fd >= 0 && memory != MAP_FAILED);
    CHECK(untorn_protect(memory, 2 * LENGTH, NULL) == 0);
    CHECK(untorn_redundancy_set_len(memory, 2 * LENGTH) == 0);
    CHECK(lseek(fd, 0, SEEK_END) == 2 * LENGTH && coverage_of(memory).pages == 16);
    memory[2 * LENGTH - 1] = 1;
    CHECK(untorn_redundancy_sync(memory) == 0 && coverage_of(memory).uncovered == 0);
    CHECK(told(untorn_redundancy_set_len(memory, 2 * LENGTH + 1), "mapping") == UNTORN_EINVAL);
    CHECK(untorn_redundancy_set_len(memory, 0) == UNTORN_EINVAL);
    CHECK(untorn_redundancy_set_len(NULL, LENGTH) == UNTORN_EINVAL);
    CHECK(untorn_redundancy_set_len(memory, LENGTH) == 0 && coverage_of(memory).pages == 8);
    CHECK(untorn_unprotect(memory) == 0 && munmap(memory, 2 * LENGTH) == 0 && close(fd) == 0);
}

/* Counts pages and codes of the coverings that a signal asked for. */
struct powerless {
    atomic_int times;
    _Atomic uint64_t pages;
    atomic_int code;
};

static void covered(void *context, uint64_t pages, int code) {
    struct powerless *powerless = context;
    powerless->pages += pages;
    powerless->code = code;
    powerless->times++;
}

static void power_fails(const char *dir) {
    untorn_redundancy_options options = UNTORN_REDUNDANCY_OPTIONS_INIT;
    options.period_ms = 3600 * 1000;
    unsigned char *one = map(in_dir(dir, "one"), MAP_SHARED), *two = map(in_dir(dir, "two"), MAP_SHARED);
    CHECK(untorn_protect(one, LENGTH, &options) == 0 && untorn_protect(two, LENGTH, &options) == 0);
    uint64_t pages = 77;
    CHECK(untorn_redundancy_cover_all(&pages) == 0 && untorn_redundancy_cover_all(NULL) == 0);
    CHECK(coverage_of(one).uncovered == 0 && coverage_of(two).uncovered == 0);
    memset(one, 1, 3 * PAGE);
    memset(two, 1, 2 * PAGE);
    CHECK(untorn_redundancy_cover_all(&pages) == 0 && pages == 5);

    /* A thread that does not block the signal would get it, and end the process. */
    static struct powerless powerless;
    CHECK(told(untorn_redundancy_cover_on_signal(SIGPWR, covered, &powerless), "block") == UNTORN_EINVAL);
    CHECK(untorn_redundancy_cover_on_signal(SIGKILL, NULL, NULL) == UNTORN_EINVAL);
    CHECK(untorn_redundancy_cover_on_signal(-1, NULL, NULL) == UNTORN_EINVAL);
    CHECK(untorn_redundancy_cover_on_signal(0, NULL, NULL) == 0);
    CHECK(untorn_unprotect(one) == 0 && untorn_unprotect(two) == 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        /* No other thread yet. */
        sigset_t set;
        CHECK(sigemptyset(&set) == 0 && sigaddset(&set, SIGPWR) == 0 && sigprocmask(SIG_BLOCK, &set, NULL) == 0);
        CHECK(untorn_protect(one, LENGTH, &options) == 0 && untorn_protect(two, LENGTH, &options) == 0);
        CHECK(untorn_redundancy_cover_all(NULL) == 0);
        CHECK(untorn_redundancy_cover_on_signal(SIGPWR, covered, &powerless) == 0);
        for (int time = 1; time <= 3; time++) {
            memset(one, 1 + time, 3 * PAGE);
            memset(two, 1 + time, 2 * PAGE);
            CHECK(kill(getpid(), SIGPWR) == 0);
            while (powerless.times < time) usleep(1000);
            CHECK(powerless.pages == 5u * time && powerless.code == 0);
            CHECK(coverage_of(one).uncovered == 0 && coverage_of(two).uncovered == 0);
        }
        /* After the end the signal is the program's again. */
        CHECK(untorn_redundancy_cover_on_signal(0, NULL, NULL) == 0 && kill(getpid(), SIGPWR) == 0);
        int signal = 0;
        CHECK(sigwait(&set, &signal) == 0 && signal == SIGPWR && powerless.times == 3);
        CHECK(untorn_unprotect(one) == 0 && untorn_unprotect(two) == 0);
        _exit(0);
    }
    ended(child);
    CHECK(munmap(one, LENGTH) == 0 && munmap(two, LENGTH) == 0);
}

/* Tells of what it was called with, through a pipe. */
static void note(void *context, uint32_t what, uint64_t at, uint64_t length) {
    uint64_t found[3] = { what, at, length };
    CHECK(write(*(int *)context, found, sizeof found) == sizeof found);
}

static void tells(const char *dir) {
    char *path = in_dir(dir, "damaged");
    unsigned char *memory = map(path, MAP_SHARED);
    int ends[2], fd = open(path, O_RDWR);
    CHECK(fd >= 0 && pipe(ends) == 0);
    untorn_redundancy_options options = UNTORN_REDUNDANCY_OPTIONS_INIT;
    options.flags = UNTORN_COVER_ON_DEMAND;
    options.on_damage = note;
    options.context = &ends[1];
    options.scrub_rate = 1 << 30;
    CHECK(told(untorn_protect(memory, LENGTH, &options), "scrub_every_ms") == UNTORN_EINVAL);
    options.scrub_rate = 0;
    /* Of itself nobody looks at this page; a pass does, for one beside it is stored to. */
    CHECK(untorn_protect(memory, LENGTH, &options) == 0);
    memset(memory, 7, LENGTH);
    CHECK(untorn_redundancy_sync(memory) == 0);
    CHECK(pwrite(fd, "damage", 6, 6 * PAGE + 9) == 6);
    memory[5 * PAGE] = 8;
    CHECK(untorn_redundancy_sync(memory) == 0);
    uint64_t beside[3];
    CHECK(read(ends[0], beside, sizeof beside) == sizeof beside);
    CHECK(beside[0] == UNTORN_DAMAGE_PAGE && beside[1] == 6 * PAGE && beside[2] == PAGE);
    memset(memory, 7, LENGTH);
    CHECK(untorn_unprotect(memory) == 0);
    options.scrub_every_ms = 1;
    CHECK(untorn_protect(memory, LENGTH, &options) == 0);
    memset(memory, 7, LENGTH);
    CHECK(untorn_redundancy_sync(memory) == 0);
    /* As a device does it: past the mapping. */
    CHECK(pwrite(fd, "damage", 6, 3 * PAGE + 9) == 6);
    uint64_t found[3], count = 0;
    CHECK(read(ends[0], found, sizeof found) == sizeof found);
    CHECK(found[0] == UNTORN_DAMAGE_PAGE && found[1] == 3 * PAGE && found[2] == PAGE);
    CHECK(untorn_redundancy_repair(memory, &count) == 0 && count == 1);
    CHECK(memory[3 * PAGE + 9] == 7 && untorn_unprotect(memory) == 0);
    /* Written while nobody had it protected: nothing is said of it, and nothing done to it. */
    CHECK(pwrite(fd, "untold", 6, 2 * PAGE) == 6);
    untorn_redundancy_options by_hand = UNTORN_REDUNDANCY_OPTIONS_INIT;
    by_hand.flags = UNTORN_COVER_ON_DEMAND;
    CHECK(untorn_protect(memory, LENGTH, &by_hand) == 0);
    CHECK(told(untorn_redundancy_repair(memory, &count), "cannot tell whether these pages") == UNTORN_EBADMSG);
    CHECK(count == 0);
    CHECK(untorn_redundancy_sync(memory) == 0 && untorn_redundancy_repair(memory, &count) == 0);
    untorn_coverage coverage = UNTORN_COVERAGE_INIT;
    CHECK(untorn_redundancy_coverage(memory, &coverage) == 0 && coverage.unknown == 1);
    CHECK(memory[2 * PAGE] == 'u' && untorn_unprotect(memory) == 0);
    /* A program that was compiled with fewer fields has none of the later ones. */
    struct {
        uint32_t size, stripe, layout, checksum, flags, batch;
        uint64_t period_ms;
        unsigned char behind[64];
    } older;
    memset(&older, 0, sizeof older);
    memset(older.behind, 0xee, sizeof older.behind);
    older.size = (uint32_t)offsetof(untorn_redundancy_options, scrub_every_ms);
    CHECK(untorn_protect(memory, LENGTH, (const untorn_redundancy_options *)(const void *)&older) == 0);
    CHECK(untorn_unprotect(memory) == 0);
    CHECK(close(fd) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0 && munmap(memory, LENGTH) == 0);
}

/* Writes to a file as another program does. */
static void write_as_a_stranger(const char *path, const char *bytes, off_t at) {
    int fd = open(path, O_WRONLY);
    CHECK(fd >= 0 && pwrite(fd, bytes, strlen(bytes), at) == (ssize_t)strlen(bytes) && close(fd) == 0);
}

static void holds(const char *path, off_t at, const char *bytes) {
    char seen[16];
    int fd = open(path, O_RDONLY);
    size_t n = strlen(bytes);
    CHECK(fd >= 0 && pread(fd, seen, n, at) == (ssize_t)n && memcmp(seen, bytes, n) == 0 && close(fd) == 0);
}

/* Repairs of a file that nobody has open. */
static void repairs_by_path(const char *dir) {
    char *path = in_dir(dir, "changed"), *plain = in_dir(dir, "plain");
    uint64_t count = 77;
    CHECK(munmap(map(plain, MAP_SHARED), LENGTH) == 0);
    CHECK(untorn_repair(plain, 0, &count) == UNTORN_ENOENT && untorn_repair(plain, 1, &count) == UNTORN_ENOENT);
    unsigned char *memory = map(path, MAP_SHARED);
    CHECK(untorn_protect(memory, LENGTH, NULL) == 0);
    memset(memory, 7, LENGTH);
    CHECK(untorn_repair(path, UNTORN_REPAIR_FORCE, &count) == UNTORN_EBUSY);
    CHECK(untorn_unprotect(memory) == 0 && munmap(memory, LENGTH) == 0);
    CHECK(told(untorn_repair(path, 2, &count), "flags") == UNTORN_EINVAL);
    CHECK(told(untorn_repair(NULL, 0, &count), "path") == UNTORN_EINVAL && count == 77);
    CHECK(untorn_repair(path, 0, &count) == 0 && count == 0 && untorn_repair(path, UNTORN_REPAIR_FORCE, NULL) == 0);
    /* Another program may have meant it, so only a forced repair takes it back. */
    write_as_a_stranger(path, "theirs", 2 * PAGE + 9);
    CHECK(told(untorn_repair(path, 0, &count), "cannot tell whether these pages") == UNTORN_EBADMSG && count == 0);
    holds(path, 2 * PAGE + 9, "theirs");
    CHECK(untorn_repair(path, UNTORN_REPAIR_FORCE, &count) == 0 && count == 1);
    holds(path, 2 * PAGE + 8, "\a\a\a\a\a\a\a\a");
    /* Parity vouches for one page of a stripe: here nothing changes, not even the page of another stripe. */
    write_as_a_stranger(path, "one", 0);
    write_as_a_stranger(path, "two", 3 * PAGE);
    write_as_a_stranger(path, "alone", 6 * PAGE);
    CHECK(told(untorn_repair(path, UNTORN_REPAIR_FORCE, &count), "vouch") == UNTORN_EBADMSG && count == 0);
    holds(path, 0, "one");
    holds(path, 3 * PAGE, "two");
    holds(path, 6 * PAGE, "alone");
}

int main(int argc, char **argv) {
    if (argc != 2) return 1;
    if (protects(argv[1])) {
        refusals(argv[1]);
        paces(argv[1]);
        grows(argv[1]);
        power_fails(argv[1]);
        tells(argv[1]);
        repairs_by_path(argv[1]);
    }
    return 0;
}
