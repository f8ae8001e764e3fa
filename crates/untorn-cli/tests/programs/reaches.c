/* Says which syncs come to the kernel: each that does is a signal, and does nothing else. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile sig_atomic_t reached;
static void caught(int signal) { reached++; }

#define SAY(call) do { reached = 0; call; printf("%s: %d\n", #call, reached); } while (0)

int main(void) {
    int managed = open("f.managed", O_RDWR | O_CREAT, 0644), plain = open("plain", O_RDWR | O_CREAT, 0644);
    int directory = open(".", O_RDONLY | O_DIRECTORY), demoted = open("g.managed", O_RDWR | O_CREAT, 0644);
    if (write(managed, "bytes", 5) != 5 || write(plain, "bytes", 5) != 5 || write(demoted, "bytes", 5) != 5) return 1;
    struct sigaction action = {.sa_handler = caught};
    sigaction(SIGSYS, &action, NULL);
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sync, 5, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fsync, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fdatasync, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_syncfs, 0, 3),
        /* Those of the program's own descriptors: that of a log on a disk, which is flushed for a managed file, has a
           high number. */
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args)),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 100, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return 2;
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) return 3;
    SAY(fsync(managed));
    SAY(fdatasync(managed));
    SAY(fsync(plain));
    SAY(fdatasync(plain));
    SAY(fsync(directory));
    SAY(syncfs(plain));
    SAY(syncfs(directory));
    SAY(sync());
    /* Left to the kernel, where files are boosted. */
    if (flock(demoted, LOCK_EX) != 0) return 4;
    SAY(fsync(demoted));
    SAY(fdatasync(demoted));
    return 0;
}
