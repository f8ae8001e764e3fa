/* Its first thread ends, and another one goes on with managed files. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096

static char *at;
static const char *end;

/* What another descriptor reads. */
static void show(const char *name, long offset) {
    char bytes[8] = {0};
    int fd = open(name, O_RDONLY);
    if (pread(fd, bytes, 7, offset) != 7) strcpy(bytes, "?");
    close(fd);
    printf("%s at %ld: %s\n", name, offset, bytes);
}

static void *go_on(void *first) {
    char state = 'R';
    while (state != 'Z') {
        FILE *stat = fopen("/proc/self/stat", "r");
        if (!stat || fscanf(stat, "%*d %*s %c", &state) != 1) exit(1);
        fclose(stat);
        usleep(1000);
    }
    strcpy(at, "first");
    printf("synced %d\n", msync(at, 2 * PAGE, MS_SYNC));
    show("f.managed", 0);
    /* The end of a process has all be looked at anew. */
    pid_t child = fork();
    if (child == 0) _exit(0);
    waitpid(child, NULL, 0);
    munmap(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), PAGE);
    strcpy(at + PAGE, "second");
    printf("synced %d\n", msync(at, 2 * PAGE, MS_SYNC));
    show("f.managed", PAGE);
    int fd = open("g.managed", O_RDWR | O_CREAT, 0644);
    printf("wrote %zd\n", write(fd, "never synced", 12));
    fflush(stdout);
    if (strcmp(end, "kill") == 0) kill(getpid(), SIGKILL);
    exit(0);
    return first;
}

int main(int count, char **arguments) {
    end = count > 1 ? arguments[1] : "";
    int fd = open("f.managed", O_RDWR | O_CREAT, 0644);
    if (fd < 0 || ftruncate(fd, 2 * PAGE) != 0) return 1;
    at = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return 2;
    close(fd);
    pthread_t other;
    if (pthread_create(&other, NULL, go_on, NULL) != 0) return 1;
    pthread_exit(NULL);
}
