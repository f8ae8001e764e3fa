/* Hands a managed descriptor to a program that is linked statically, in each way that there is, and says what it was
   told. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define TRY(how, call) do { \
    fflush(stdout); \
    if (fork() == 0) { \
        errno = 0; \
        call; \
        printf("%s: %s\n", how, errno == ENOTSUP ? "ENOTSUP" : strerrorname_np(errno)); \
        fflush(stdout); \
        _exit(0); \
    } \
    wait(NULL); \
} while (0)

int main(int count, char **arguments) {
    char *path = arguments[1], number[8], directory[4096], *nothing[] = {NULL};
    int fd = open("f.managed", O_RDWR | O_CREAT, 0644), script = open("script", O_RDWR | O_CREAT, 0755);
    sprintf(number, "%d", fd);
    dprintf(script, "#! %s\n", path);
    close(script);
    int program = open(path, O_PATH | O_CLOEXEC), at;
    strcpy(directory, path);
    char *name = strrchr(directory, '/');
    *name++ = 0;
    at = open(directory, O_PATH | O_CLOEXEC);
    setenv("PATH", directory, 1);
    char *all[] = {name, number, NULL};
    pid_t child;
    TRY("execl", execl(path, name, "2", "3", "4", "5", "6", "7", "8", number, NULL));
    TRY("execlp", execlp(name, name, number, NULL));
    TRY("execle", execle(path, name, number, NULL, nothing));
    TRY("execv", execv(path, all));
    TRY("execve", execve(path, all, nothing));
    TRY("execvp", execvp(name, all));
    TRY("execvpe", execvpe(name, all, nothing));
    TRY("fexecve", fexecve(program, all, nothing));
    TRY("execveat", execveat(at, name, all, nothing, 0));
    TRY("execveat of a descriptor", execveat(program, "", all, nothing, AT_EMPTY_PATH));
    TRY("posix_spawn", errno = posix_spawn(&child, path, NULL, NULL, all, nothing));
    TRY("posix_spawnp", errno = posix_spawnp(&child, name, NULL, NULL, all, nothing));
    TRY("a script", execv("./script", all));
    /* The layer is in what is started with an environment of its own. */
    if (fork() == 0) execle("/bin/sh", "sh", "-c", "echo within > g.managed", NULL, nothing);
    wait(NULL);
    return 0;
}
