/* A process is killed amid what belongs together, and somebody hears of it who is not told by the kernel that it
   died: by a lock that it had, or by the end of a pipe while a tracer has not taken note of one of its threads. What
   is found then, and synced? */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define LARGE (64 << 20)

static void fail(const char *what) { perror(what); fflush(stderr); _exit(1); }

static void locked(int fd, short type) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    if (fcntl(fd, F_SETLKW, &lock) != 0) fail("lock");
}

/* Who says its number, and waits. */
static void *waits(void *told) {
    pid_t number = syscall(SYS_gettid);
    if (told && write(*(int *)told, &number, sizeof number) != sizeof number) fail("write");
    for (;;) pause();
}

/* The victim, which tells when it has written a half. */
static void half(int lock, int told, int traced) {
    int fd = open("f.managed", O_RDWR);
    locked(lock, F_WRLCK);
    if (pwrite(fd, "torn", 5, 0) != 5) fail("write");
    if (traced) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, waits, &told) != 0) fail("thread");
        waits(NULL);
    }
    /* What the kernel gives back when it closes it for good, after it has let go of the lock. */
    int large = memfd_create("large", 0);
    char *all = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_SHARED, large, ftruncate(large, LARGE));
    memset(all, 1, LARGE);
    munmap(all, LARGE);
    waits(&told);
}

int main(int count, char **arguments) {
    int traced = strcmp(arguments[1], "trace") == 0, rounds = traced ? 1 : 10, kept = 0;
    int fd = open("f.managed", O_RDWR | O_CREAT, 0644), lock = open("lock", O_RDWR | O_CREAT, 0644);
    if (pwrite(fd, "kept 0", 7, 0) != 7 || fsync(fd) != 0) fail("write");
    for (int round = 0; round < rounds; round++) {
        int told[2];
        pid_t number;
        char seen[7] = "";
        if (pipe(told) != 0) fail("pipe");
        pid_t victim = fork();
        if (victim == 0) half(lock, told[1], traced);
        close(told[1]);
        if (read(told[0], &number, sizeof number) != sizeof number) fail("read");
        if (traced && ptrace(PTRACE_SEIZE, number, 0, 0) != 0) fail("trace");
        kill(victim, SIGKILL);
        if (traced) {
            if (read(told[0], seen, 1) != 0) fail("pipe");
        } else {
            locked(lock, F_WRLCK);
        }
        if (pread(fd, seen, 7, 0) != 7) fail("read");
        kept += strncmp(seen, "kept", 4) == 0;
        /* It is synced with what this one writes, if it is there still. */
        if (pwrite(fd, "01234567890" + round, 1, 5) != 1 || fsync(fd) != 0) fail("sync");
        if (!traced) locked(lock, F_UNLCK);
        close(told[0]);
        if (traced && waitpid(number, NULL, __WALL) != number) fail("thread");
        if (waitpid(victim, NULL, 0) != victim) fail("wait");
    }
    printf("kept: %d of %d\n", kept, rounds);
    return 0;
}
