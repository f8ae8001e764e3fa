/* A process is killed together with its child before it has synced what it wrote. It takes its time to end, after it
   has let go of its descriptors, and its child's end is heard of meanwhile. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 10
#define LARGE (64 << 20)

static void fail(const char *what) { perror(what); fflush(stderr); _exit(1); }

int main(void) {
    char seen[6] = "";
    int fd = open("f.managed", O_RDWR | O_CREAT, 0644), kept = 0;
    if (pwrite(fd, "kept", 5, 0) != 5 || close(fd) != 0) fail("write");
    for (int round = 0; round < ROUNDS; round++) {
        int ready[2];
        if (pipe(ready) != 0) fail("pipe");
        pid_t victim = fork();
        if (victim == 0) {
            fd = open("f.managed", O_RDWR);
            if (pwrite(fd, "torn", 5, 0) != 5) fail("write");
            /* What the kernel gives back when it closes it for good. */
            int large = memfd_create("large", 0);
            char *all = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_SHARED, large, ftruncate(large, LARGE));
            memset(all, 1, LARGE);
            munmap(all, LARGE);
            pid_t child = fork();
            if (child == 0) {
                close(large);
                /* Something that is served, so that its end is heard of. */
                if (pread(fd, seen, 5, 0) != 5) fail("read");
                child = getpid();
                if (write(ready[1], &child, sizeof child) != sizeof child) fail("write");
            }
            for (;;) pause();
        }
        pid_t child;
        if (read(ready[0], &child, sizeof child) != sizeof child) fail("read");
        kill(victim, SIGKILL);
        kill(child, SIGKILL);
        if (waitpid(victim, NULL, 0) != victim) fail("wait");
        close(ready[0]);
        close(ready[1]);
        fd = open("f.managed", O_RDONLY);
        if (pread(fd, seen, 5, 0) != 5) fail("read");
        kept += strcmp(seen, "kept") == 0;
        close(fd);
    }
    printf("kept: %d of %d\n", kept, ROUNDS);
    return 0;
}
