/* Makes a file shorter while another thread is about to map it where it is mapped for reading only: the kernel has
   that thread's mapping elsewhere then, and asks before it moves it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096
#define LEN (4 * PAGE)

static int fd, listener;

static void fail(const char *what) { perror(what); fflush(stderr); _exit(1); }

static void *work(void *argument) {
    struct seccomp_notif asked;
    memset(&asked, 0, sizeof asked);
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &asked) != 0) fail("listen");
    if (ftruncate(fd, PAGE) != 0) printf("shorter: %s\n", strerror(errno));
    struct seccomp_notif_resp answer = {.id = asked.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer) != 0) fail("answer");
    return NULL;
}

int main(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mremap, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    pthread_t thread;
    fd = open("f.managed", O_RDWR | O_CREAT, 0644);
    int only = open("f.managed", O_RDONLY);
    if (fd < 0 || only < 0 || ftruncate(fd, LEN) != 0) fail("open");
    char *at = mmap(NULL, LEN, PROT_READ, MAP_SHARED, only, 0);
    if (at == MAP_FAILED) fail("mmap");
    /* Of this thread only. */
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) fail("prctl");
    listener = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
    if (listener < 0) fail("seccomp");
    /* The other thread inherits the filter, and does not move anything. */
    if (pthread_create(&thread, NULL, work, NULL) != 0) fail("thread");
    if (mmap(at, LEN, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != at) fail("mmap");
    pthread_join(thread, NULL);
    if (ftruncate(fd, LEN) != 0) fail("longer");
    at[2 * PAGE] = 'y';
    printf("synced: %d\n", fsync(fd));
    fflush(stdout);
    at[3 * PAGE] = 'z';
    raise(SIGKILL);
    return 1;
}
