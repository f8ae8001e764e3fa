/* Asks for what cannot be served, and says what it was told. */
#define _GNU_SOURCE
#include <aio.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static void say(const char *what, long result) {
    printf("%s %ld %s\n", what, result, result == -1 ? errno == ENOTSUP ? "ENOTSUP" : strerrorname_np(errno) : "");
}

int main(void) {
    int fd = open("f.managed", O_RDWR | O_CREAT, 0644), ends[2];
    if (write(fd, "bytes", 5) != 5 || pipe(ends) != 0 || mkdir("d", 0755) != 0) return 1;
    char *mapped = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    say("a hole through a mapping", madvise(mapped, 4096, MADV_REMOVE));
    say("pages of a mapping", remap_file_pages(mapped, 4096, 0, 0, 0));
    say("a second place of a mapping", (long)mremap(mapped, 0, 4096, MREMAP_MAYMOVE));
    say("a place given to a mapping",
        (long)mremap(mapped, 4096, 4096, MREMAP_MAYMOVE | MREMAP_FIXED, mapped + (1 << 20)));
    say("splice", splice(fd, NULL, ends[1], NULL, 5, 0));
    struct aiocb operation = {.aio_fildes = fd, .aio_buf = "x", .aio_nbytes = 1};
    say("aio_write", aio_write(&operation));
    say("clone", ioctl(fd, 0x40049409, fd));
    struct fiemap extents = {.fm_length = 4096};
    int block = 0, plain = open("plain", O_RDWR | O_CREAT, 0644);
    struct { short type, whence; long start, len; int others[6]; } room = {.len = 4096};
    struct file_clone_range range = {.src_fd = fd};
    struct { struct file_dedupe_range range; struct file_dedupe_range_info with; } same =
        {{.src_length = 5, .dest_count = 1}, {.dest_fd = fd}};
    say("where the bytes are", ioctl(fd, FS_IOC_FIEMAP, &extents));
    say("where one block is", ioctl(fd, FIBMAP, &block));
    say("room for more", ioctl(fd, _IOC(_IOC_WRITE, 'X', 40, 48), &room));
    say("part of a clone", ioctl(plain, FICLONERANGE, &range));
    struct { unsigned reserved, donor; long from, to, len, moved; } extents_of = {.donor = fd, .len = 1};
    say("extents of a donor", ioctl(plain, _IOWR('f', 15, extents_of), &extents_of));
    say("deduplication", ioctl(plain, FIDEDUPERANGE, &same));
    struct iovec piece = {"x", 1};
    say("vmsplice by number", syscall(SYS_vmsplice, fd, &piece, 1L, 0L));
    say("clone by number", syscall(SYS_ioctl, fd, 0x40049409L, (long)fd));
    int refused = open("d/../x.managed/..", O_TMPFILE | O_RDWR, 0600) == -1;
    say("unnamed file", refused ? open(".", O_TMPFILE | O_RDWR | 01000000000, 0600) : -2);
    say("rename elsewhere", rename("f.managed", "d/f.managed"));
    say("link elsewhere", link("f.managed", "d/f.managed"));
    close(open("g.managed", O_RDWR | O_CREAT, 0644));
    if (link("g.managed", "d/g.managed") != 0) return 1;
    int linked = open("g.managed", O_RDWR);
    if (write(linked, "bytes", 5) != 5) return 1;
    say("one of two names", unlink("g.managed"));
    say("replace one of two names", rename("f.managed", "g.managed"));
    say("exchange", renameat2(AT_FDCWD, "d/g.managed", AT_FDCWD, "f.managed", RENAME_EXCHANGE));
    close(linked);
    if (unlink("g.managed") != 0) return 1;
    say("insert range", fallocate(fd, FALLOC_FL_INSERT_RANGE, 0, 4096));
    say("the mark", fcntl(ends[0], F_SETSIG, 61));
    fflush(stdout);
    return 0;
}
