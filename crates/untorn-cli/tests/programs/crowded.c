/* Maps a file over and over in the same place, with no descriptor to spare for another connection, while another
   thread uses the one that there is. Some of the calls are told so; none may wait for ever. */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define ROUNDS 100
#define MINUTE 60000

static int fd;

static void fail(const char *what) { perror(what); fflush(stderr); _exit(1); }

/* A socket is told EMFILE from now on. */
static int crowd(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EMFILE),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0;
}

static void *work(void *argument) {
    char bytes[PAGE];
    for (;;) pread(fd, bytes, PAGE, 0);
    return NULL;
}

int main(void) {
    int done[2];
    char bytes[PAGE] = "x";
    fd = open("f.managed", O_RDWR | O_CREAT, 0644);
    if (fd < 0 || pwrite(fd, bytes, PAGE, 0) != PAGE || pipe(done) != 0) fail("write");
    pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        char *place = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (pread(fd, bytes, PAGE, 0) != PAGE || crowd() != 0) fail("crowd");
        if (pthread_create(&thread, NULL, work, NULL) != 0) fail("thread");
        for (int round = 0; round < ROUNDS;) {
            if (mmap(place, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == place) round++;
            else if (errno != EMFILE) fail("mmap");
        }
        if (place[0] != 'x' || write(done[1], "x", 1) != 1) fail("load");
        _exit(0);
    }
    close(done[1]);
    struct pollfd polled = {done[0], POLLIN, 0};
    if (poll(&polled, 1, MINUTE) == 0) printf("it waits for ever\n");
    kill(child, SIGKILL);
    printf("mapped: %ld\n", (long)read(done[0], bytes, 1));
    waitpid(child, NULL, 0);
    return 0;
}
