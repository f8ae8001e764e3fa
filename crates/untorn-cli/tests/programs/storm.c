/* Threads and children store to, write to, sync, map and unmap one file at once, each its own pages, which end up the
   same whatever the order. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define THREADS 6
#define PAGES 8
#define ROUNDS 300

static int fd;
static char *all;

static void fail(const char *what) { perror(what); fflush(stderr); _exit(1); }

static void *work(void *argument) {
    long who = (long)argument, seed = who * 7919 + 1;
    static char model[THREADS][PAGES * PAGE];
    char *mine = model[who], seen[PAGE];
    for (int round = 0; round < ROUNDS; round++) {
        seed = seed * 6364136223846793005 + 1442695040888963407;
        unsigned random = (unsigned long)seed >> 33;
        int page = random % PAGES, at = random / 8 % (PAGE - 64);
        int count = 1 + random / 65536 % 63, way = random / 64 % 16;
        off_t offset = (who * PAGES + page) * PAGE;
        char *place = all + offset + at, *wanted = mine + page * PAGE + at;
        if (way < 12) memset(wanted, 'a' + random % 26, count);
        if (way < 6) {
            memcpy(place, wanted, count);
        } else if (way < 9) {
            if (pwrite(fd, wanted, count, offset + at) != count) fail("pwrite");
        } else if (way < 11) {
            char *other = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset);
            if (other == MAP_FAILED) fail("mmap");
            memcpy(other + at, wanted, count);
            if (munmap(other, PAGE) != 0) fail("munmap");
        } else if (way < 12) {
            pid_t child = fork();
            if (child == 0) { memcpy(place, wanted, count); _exit(0); }
            int status;
            if (waitpid(child, &status, 0) != child || status != 0) {
                fprintf(stderr, "child: %d\n", status);
                _exit(1);
            }
        } else if (way < 13) {
            if (msync(all + offset, PAGE, MS_SYNC) != 0) fail("msync");
        } else if (way < 14) {
            if (fdatasync(fd) != 0) fail("fdatasync");
        } else {
            if (pread(fd, seen, PAGE, offset) != PAGE) fail("pread");
            if (memcmp(seen, mine + page * PAGE, PAGE) != 0) {
                fprintf(stderr, "read otherwise\n");
                _exit(1);
            }
            if (memcmp(all + offset, mine + page * PAGE, PAGE) != 0) {
                fprintf(stderr, "loaded otherwise\n");
                _exit(1);
            }
        }
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    fd = open("f.managed", O_RDWR | O_CREAT, 0644);
    if (ftruncate(fd, THREADS * PAGES * PAGE) != 0) fail("ftruncate");
    all = mmap(NULL, THREADS * PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (all == MAP_FAILED) fail("mmap");
    for (long who = 0; who < THREADS; who++) pthread_create(&threads[who], NULL, work, (void *)who);
    for (int who = 0; who < THREADS; who++) pthread_join(threads[who], NULL);
    printf("done\n");
    return 0;
}
