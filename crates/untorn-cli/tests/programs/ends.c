/* Writes, and ends in one of the ways that a program may end. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **arguments) {
    const char *end = arguments[1];
    int fd = open("f.managed", O_RDWR | O_CREAT, 0444), other;
    if (fd < 0 || write(fd, "first", 5) != 5) return 1;
    if (strcmp(end, "quick_exit") == 0) quick_exit(0);
    if (strcmp(end, "exit_group") == 0) syscall(SYS_exit_group, 0);
    if (strcmp(end, "daemon") == 0) {
        if (daemon(1, 0) != 0 || write(fd, " second", 7) != 7 || fsync(fd) != 0) return 1;
        return 0;
    }
    char *other_program = arguments[2];
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    if (strcmp(end, "another") == 0) {
        /* The last of the file is closed when that begins. */
        execl(other_program, other_program, "-c", "kill -9 $$", NULL);
        raise(SIGKILL);
    }
    if (strcmp(end, "child") == 0) {
        int status;
        if (fork() == 0) {
            if (write(fd, " second", 7) != 7) _exit(1);
            execl(other_program, other_program, NULL);
            _exit(1);
        }
        wait(&status);
        return status != 0 || write(fd, " third", 6) != 6 || fsync(fd) != 0;
    }
    if (strcmp(end, "synced") == 0) {
        char *sync[] = {"sync", "-f", ".", NULL}, *nothing[] = {NULL};
        pid_t child;
        int status;
        if (posix_spawnp(&child, "sync", NULL, NULL, sync, nothing) != 0 || wait(&status) < 0 || status != 0) return 1;
        raise(SIGKILL);
    }
    if (fsync(fd) != 0 || pwrite(fd, "LATER", 5, 0) != 5) return 1;
    if (strcmp(end, "renamed") == 0 && rename("f.managed", "g.managed") != 0) return 1;
    if (strcmp(end, "removed") == 0 && unlink("f.managed") != 0) return 1;
    if (strcmp(end, "replaced") == 0) {
        other = open("g.managed", O_RDWR | O_CREAT, 0644);
        if (write(other, "new", 3) != 3 || fsync(other) != 0 || rename("g.managed", "f.managed") != 0) return 1;
    }
    raise(SIGKILL);
    return 1;
}
