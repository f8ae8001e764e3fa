/* Writes three epochs, syncs two of them, and ends as it is told. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **arguments) {
    const char *end = arguments[1];
    int atomic = strcmp(end, "o-atomic") == 0 ? 01000000000 : 0;
    int fd = open("f.managed", O_RDWR | O_CREAT | O_TRUNC | atomic, 0644), status;
    if (fd < 0 || write(fd, "first", 5) != 5 || fsync(fd) != 0) return 1;
    if (write(fd, " sec", 4) != 4 || write(fd, "ond", 3) != 3 || fdatasync(fd) != 0) return 1;
    if (strcmp(end, "child") == 0) {
        struct stat seen;
        /* The child writes and is killed; what it wrote is gone, and the parent goes on. */
        if (fork() == 0) { write(fd, "CHILD", 5); raise(SIGKILL); }
        wait(&status);
        if (fstat(fd, &seen) != 0) return 1;
        printf("alone: seen %ld, synced %d\n", (long)seen.st_size, fsync(fd));
        /* Both write; what the parent wrote cannot be kept without what the child wrote. */
        if (write(fd, "PARENT", 6) != 6) return 1;
        if (fork() == 0) { write(fd, "CHILD", 5); raise(SIGKILL); }
        wait(&status);
        int synced = fsync(fd);
        printf("together: synced %d %s\n", synced, strerrorname_np(errno));
        return 0;
    }
    if (write(fd, " third", 6) != 6) return 1;
    if (strcmp(end, "exit") == 0) return 7;
    if (strcmp(end, "abort") == 0) {
        /* Where cores are written there would be one beside the file. */
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        abort();
    }
    raise(SIGKILL);
    return 1;
}
