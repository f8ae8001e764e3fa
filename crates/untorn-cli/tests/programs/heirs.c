/* Children that inherit a shared mapping of a managed file, where nobody can be asked to tell of their stores. */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096

/* userfaultfd(2) is told EPERM from now on, as by a container's filter. */
static int forbid(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0;
}

static void in_child(const char *what, char *at) {
    int status;
    if (fork() == 0) _exit(at[0]);
    wait(&status);
    if (WIFSIGNALED(status)) printf("%s: %s\n", what, strsignal(WTERMSIG(status)));
    else printf("%s: '%c'\n", what, WEXITSTATUS(status));
    fflush(stdout);
}

static char *map(int fd, int protection) {
    char *at = mmap(NULL, PAGE, protection, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) { perror("mmap"); _exit(1); }
    return at;
}

int main(int count, char **arguments) {
    int fd = open("f.managed", O_RDWR | O_CREAT, 0644);
    if (fd < 0 || pwrite(fd, "x", 1, 0) != 1) return 1;
    if (strcmp(arguments[1], "forbidden") == 0) {
        if (forbid() != 0) return 3;
        char *at = map(fd, PROT_READ);
        in_child("loads", at);
        char *writable = mmap(NULL, PAGE, PROT_WRITE, MAP_SHARED, fd, 0);
        printf("a writable one: %s\n", writable == MAP_FAILED ? strerror(errno) : "");
        return 0;
    }
    char *at = map(fd, PROT_READ | PROT_WRITE);
    in_child("with descriptors to spare", at);
    if (strcmp(arguments[1], "late") == 0) {
        if (forbid() != 0) return 3;
    } else {
        struct rlimit limit = {64, 64};
        if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 4;
        /* One is left, for the connection. */
        int last = fd;
        for (int next; (next = dup(fd)) >= 0;) last = next;
        close(last);
    }
    in_child("without", at);
    return 0;
}
