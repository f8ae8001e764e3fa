/* Calls the kernel past the C library, about a managed descriptor: each is one that the test build of the layer must
   report. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static long call(long number, long a, long b, long c, long d, long e) {
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e;
    __asm__ volatile("syscall" : "+a"(number) : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
    return number;
}

int main(void) {
    int fd = open("f.managed", O_RDWR | O_CREAT, 0644), unread;
    struct stat status;
    struct statx extended;
    struct fiemap extents = {.fm_length = 4096};
    char empty[16] = "", name[16] = "f.managed";
    if (write(fd, "bytes", 5) != 5) return 1;
    call(SYS_newfstatat, fd, (long)empty, (long)&status, AT_EMPTY_PATH, 0);
    call(SYS_statx, fd, (long)empty, AT_EMPTY_PATH, STATX_SIZE, (long)&extended);
    call(SYS_ioctl, fd, FS_IOC_FIEMAP, (long)&extents, 0, 0);
    call(SYS_ioctl, fd, FIONREAD, (long)&unread, 0, 0);
    call(SYS_fsync, fd, 0, 0, 0, 0);
    /* And these it must not: about another file, or about nothing that it has bytes of. */
    call(SYS_newfstatat, AT_FDCWD, (long)name, (long)&status, AT_EMPTY_PATH, 0);
    call(SYS_ioctl, fd, FIOCLEX, 0, 0, 0);
    call(SYS_fsync, 1, 0, 0, 0, 0);
    return 0;
}
