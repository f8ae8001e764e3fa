/* Threads store to their pages of a file while another one maps the file anew, over and over, in the place where they
   do so. Nothing may be missed by the sync after that: a child that stores something and is killed has everybody see
   the last commit again. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define THREADS 4
#define PAGES 16
#define ROUNDS 100
#define ALL ((1 + THREADS * PAGES) * PAGE)

static char *all;
static pthread_barrier_t begins, ends;

static volatile long *place(long who, int page) { return (long *)(all + (1 + who * PAGES + page) * PAGE); }

static void *work(void *argument) {
    for (long round = 1; round <= ROUNDS; round++) {
        pthread_barrier_wait(&begins);
        for (int page = 0; page < PAGES; page++) *place((long)argument, page) = round;
        pthread_barrier_wait(&ends);
    }
    return NULL;
}

static void fail(const char *what) { perror(what); fflush(stderr); _exit(1); }

int main(void) {
    pthread_t threads[THREADS];
    int fd = open("f.managed", O_RDWR | O_CREAT, 0644), lost = 0, status;
    if (fd < 0 || ftruncate(fd, ALL) != 0) fail("open");
    all = mmap(NULL, ALL, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (all == MAP_FAILED) fail("mmap");
    pthread_barrier_init(&begins, NULL, THREADS + 1);
    pthread_barrier_init(&ends, NULL, THREADS + 1);
    for (long who = 0; who < THREADS; who++) pthread_create(&threads[who], NULL, work, (void *)who);
    for (long round = 1; round <= ROUNDS; round++) {
        pthread_barrier_wait(&begins);
        for (int part = 0; part < 10; part++) {
            /* All of it, and a part in the middle. */
            char *from = all + part % 2 * (THREADS * PAGES / 2) * PAGE;
            size_t len = part % 2 ? PAGES * PAGE : ALL;
            if (mmap(from, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, from - all) != from) fail("mmap");
        }
        pthread_barrier_wait(&ends);
        if (fsync(fd) != 0) fail("fsync");
        if (fork() == 0) { *(volatile long *)all = round; raise(SIGKILL); }
        if (wait(&status) < 0 || !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) fail("child");
        if (fsync(fd) != 0) fail("fsync");
        for (long who = 0; who < THREADS; who++)
            for (int page = 0; page < PAGES; page++) lost += *place(who, page) != round;
    }
    for (int who = 0; who < THREADS; who++) pthread_join(threads[who], NULL);
    printf("lost: %d\n", lost);
    return 0;
}
