/* Stores to a managed file that it has mapped, and ends as it is told. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define PLACES 64

static sigjmp_buf back;
static void caught(int signal) { siglongjmp(back, signal); }

/* Two processes store numbers in turn, the next to the next page each; a third syncs, and says what number was stored
   before it began, once it is done. Somebody kills them all. */
static int in_order(char *at, int fd, int calls) {
    volatile long *next = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    next[0] = 1;
    for (int who = 0; who < 2; who++) {
        if (fork() != 0) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) {
            long number = next[0];
            if (number % 2 != who) { usleep(1); continue; }
            long *place = (long *)(at + number % PLACES * PAGE);
            /* One of them writes by calls now and then: it is all one order. */
            if (calls && number % 7 == 0) {
                if (pwrite(fd, &number, 8, (char *)place - at) != 8) _exit(1);
            } else {
                *(volatile long *)place = number;
            }
            next[0] = number + 1;
        }
    }
    for (int round = 0;; round++) {
        long stored = next[0] - 1;
        if ((round % 2 ? msync(at, PAGE, MS_SYNC) : fsync(fd)) != 0) return 1;
        printf("%ld\n", stored);
        fflush(stdout);
    }
}

int main(int count, char **arguments) {
    const char *end = arguments[1];
    int fd = open("f.managed", O_RDWR | O_CREAT, 0644);
    if (fd < 0 || ftruncate(fd, PLACES * PAGE) != 0) return 1;
    char *at = mmap(NULL, PLACES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return 2;
    if (strcmp(end, "stores") == 0 || strcmp(end, "calls") == 0) return in_order(at, fd, end[0] == 'c');
    strcpy(at, "first");
    strcpy(at + 5 * PAGE, "first");
    if (msync(at + PAGE, PAGE, MS_SYNC) != 0) return 3;
    strcpy(at, "second");
    if (fsync(fd) != 0) return 4;
    if (strcmp(end, "child") == 0) {
        struct sigaction action = {.sa_handler = caught};
        sigaction(SIGBUS, &action, NULL);
        /* The child stores and is killed; what it stored is gone, and the parent goes on. */
        if (fork() == 0) { strcpy(at, "CHILD"); strcpy(at + PAGE, "CHILD"); raise(SIGKILL); }
        wait(NULL);
        int synced = fsync(fd);
        printf("alone: seen %s '%s', synced %d\n", at, at + PAGE, synced);
        strcpy(at + PAGE, "parent");
        if (fsync(fd) != 0) return 5;
        /* Both store; what the parent stored cannot be kept without what the child stored. */
        strcpy(at, "PARENT");
        if (fork() == 0) { strcpy(at + 2 * PAGE, "CHILD"); raise(SIGKILL); }
        wait(NULL);
        synced = msync(at, PAGE, MS_SYNC);
        printf("together: synced %d %s\n", synced, strerrorname_np(errno));
        int signal = sigsetjmp(back, 1);
        if (signal == 0) printf("seen: %d\n", *(volatile char *)at);
        else printf("seen: %s\n", strsignal(signal));
        return 0;
    }
    strcpy(at, "third");
    strcpy(at + 5 * PAGE, "third");
    close(fd);
    if (strcmp(end, "exit") == 0) return 7;
    if (strcmp(end, "unmap") == 0) {
        /* The last of the file: committed, whatever comes then. */
        munmap(at, 3 * PAGE);
        munmap(at + 3 * PAGE, (PLACES - 3) * PAGE);
    }
    if (strcmp(end, "exec") == 0) execlp("true", "true", NULL);
    if (strcmp(end, "vanish") == 0) execlp("sh", "sh", "-c", "kill -9 $$", NULL);
    raise(SIGKILL);
    return 1;
}
