/* Maps a managed file in all ways, and says what it sees: the same as without untorn. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define SAY(what) do { \
    errno = 0; \
    long result = (long)(what); \
    printf("%d: %ld %s\n", __LINE__, result, result == -1 ? strerror(errno) : ""); \
} while (0)

static sigjmp_buf back;
static void caught(int signal) { siglongjmp(back, signal); }

/* 0 if the byte can be stored to, or the signal. */
static int store(volatile char *at, char byte) {
    int signal = sigsetjmp(back, 1);
    if (signal == 0) *at = byte;
    return signal;
}

static int load(volatile char *at) {
    int signal = sigsetjmp(back, 1);
    return signal == 0 ? *at : -signal;
}

static char *map(int fd, size_t len, int protection, off_t offset) {
    char *at = mmap(NULL, len, protection, MAP_SHARED, fd, offset);
    if (at == MAP_FAILED) { printf("mmap: %s\n", strerror(errno)); fflush(stdout); _exit(1); }
    return at;
}

static int child(int (*work)(char *), char *at) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) _exit(work(at));
    int status;
    waitpid(pid, &status, 0);
    return status;
}

static int in_child(char *at) { at[0] = 'c'; at[PAGE + 1] = 'd'; return at[2]; }

static char shown[64];
static const char *at(int fd, off_t offset, size_t count) {
    ssize_t got = pread(fd, shown, count, offset);
    shown[got < 0 ? 0 : got] = 0;
    for (ssize_t i = 0; i < got; i++) if (shown[i] == 0) shown[i] = '.';
    return shown;
}

int main(int count, char **arguments) {
    struct sigaction action = {.sa_handler = caught};
    sigaction(SIGBUS, &action, NULL);
    sigaction(SIGSEGV, &action, NULL);
    int fd = open("f.managed", O_RDWR | O_CREAT, 0644);
    int reader = open("f.managed", O_RDONLY), writer = open("f.managed", O_WRONLY);
    SAY(write(fd, "0123456789", 10));

    /* What is told no, as by the kernel. */
    SAY(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, writer, 0));
    SAY(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, reader, 0));
    SAY(mmap(NULL, 0, PROT_READ, MAP_SHARED, fd, 0));
    SAY(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 1));
    SAY(mmap(NULL, PAGE, PROT_READ, 0, fd, 0));

    /* Loads, stores and calls see each other at once; also through two mappings. */
    char *seen = map(reader, 4 * PAGE, PROT_READ, 0), *both = map(fd, 4 * PAGE, PROT_READ | PROT_WRITE, 0);
    SAY(memcmp(seen, "0123456789\0\0", 12));
    SAY(pwrite(fd, "abc", 3, 4));
    printf("%.10s %.10s\n", seen, both);
    memcpy(both + 1, "XY", 2);
    printf("%.10s %s\n", seen, at(fd, 0, 20));
    SAY(mprotect(seen, PAGE, PROT_READ | PROT_WRITE));
    SAY(store(seen, 'x') == SIGSEGV);
    SAY(msync(both, PAGE, MS_SYNC));
    SAY(msync(both, PAGE, MS_ASYNC));
    SAY(msync(both + 1, PAGE, MS_SYNC));
    SAY(msync(both, PAGE, MS_SYNC | MS_ASYNC));
    both[3] = 'Z';
    printf("%s\n", at(fd, 0, 20));

    /* The end of the file. */
    SAY(load(both + 20));
    SAY(load(both + PAGE) == -SIGBUS);
    SAY(store(both + PAGE, 'x') == SIGBUS);
    SAY(lseek(fd, 0, SEEK_END));
    SAY(ftruncate(fd, PAGE + 100));
    printf("%s|\n", at(fd, 8, 10));
    SAY(store(both + PAGE, 'p'));
    SAY(store(both + PAGE + 99, 'q'));
    printf("%s|\n", at(fd, PAGE + 97, 10));
    SAY(ftruncate(fd, PAGE + 50));
    SAY(ftruncate(fd, 3 * PAGE));
    SAY(load(both + PAGE + 99));
    SAY(load(both + PAGE));
    SAY(ftruncate(fd, 5));
    SAY(load(both + PAGE) == -SIGBUS);
    SAY(ftruncate(fd, 3 * PAGE));
    SAY(load(both + PAGE));
    SAY(store(both + PAGE, 'r'));
    printf("%s|\n", at(fd, PAGE, 3));
    SAY(pwrite(fd, "end", 3, 3 * PAGE + 10));
    printf("%.3s\n", seen + 3 * PAGE + 10);

    /* Offsets, parts, places. */
    char *second = map(fd, PAGE, PROT_READ | PROT_WRITE, PAGE);
    second[1] = 's';
    printf("%.2s\n", both + PAGE);
    SAY(munmap(both + PAGE, PAGE));
    SAY(load(both + PAGE) == -SIGSEGV);
    SAY(store(both + 2 * PAGE, 't'));
    printf("%s\n", at(fd, 2 * PAGE, 2));
    SAY(fsync(fd));
    SAY(store(both, 'u'));
    SAY(store(both + 2 * PAGE + 1, 'v'));
    SAY(mmap(both + PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == both + PAGE);
    both[PAGE + 1] = 'w';
    printf("%.2s %s\n", both, at(fd, 0, 2));
    SAY(mmap(second, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == second);
    second[0] = 'n';
    printf("%s\n", at(fd, PAGE, 2));

    /* Places that are none, that are taken, that were free, and those of several mappings. */
    SAY(mmap(both + 1, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0));
    SAY(mmap((void *)(1L << 47), PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0));
    SAY(mmap(both, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0));
    char *free_now = mmap(NULL, 64 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(free_now, 64 * PAGE);
    SAY(mmap(free_now, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == free_now);
    SAY(mmap(free_now + PAGE, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, reader, 0) == free_now + PAGE);
    SAY(store(free_now + PAGE, 'x') == SIGSEGV);
    SAY(store(free_now + 1, '1'));
    printf("%.2s %s\n", free_now + PAGE, at(fd, 0, 2));
    SAY(fsync(fd));
    SAY(mmap(free_now, 2 * PAGE - 10, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, PAGE) == free_now);
    SAY(store(free_now + 2, '2'));
    SAY(store(free_now + PAGE + 3, '3'));
    printf("%s %s\n", at(fd, PAGE, 4), at(fd, 2 * PAGE, 4));
    SAY(munmap(free_now, 64 * PAGE));

    /* Made writable later. */
    char *later = map(fd, PAGE, PROT_READ, 2 * PAGE);
    SAY(store(later, 'x') == SIGSEGV);
    SAY(mprotect(later, PAGE, PROT_READ | PROT_WRITE));
    SAY(store(later + 2, 'm'));
    printf("%s\n", at(fd, 2 * PAGE, 4));

    /* Longer, and elsewhere. */
    char *moved = mremap(later, PAGE, 2 * PAGE, MREMAP_MAYMOVE);
    SAY(moved == MAP_FAILED);
    moved[3] = 'o';
    moved[PAGE] = 'O';
    printf("%s %s\n", at(fd, 2 * PAGE, 4), at(fd, 3 * PAGE, 3));
    SAY(mremap(moved, 2 * PAGE, PAGE, 0) == moved);
    SAY(munmap(moved, PAGE));

    /* The kernel's own stores, if they can wait. */
    int ends[2];
    SAY(pipe(ends));
    SAY(write(ends[1], "pipe", 4));
    SAY(fsync(fd));
    if (count > 1) {
        SAY(read(ends[0], both + 100, 4));
        SAY(pread(reader, both + 200, 10, 0));
    }
    printf("%s\n", at(fd, 100, 4));
    SAY(pwrite(fd, both, 10, 300));
    printf("%s\n", at(fd, 300, 10));

    /* A child has them too. */
    memcpy(both, "fork", 4);
    char *whole = map(fd, 2 * PAGE, PROT_READ | PROT_WRITE, 0);
    SAY(WEXITSTATUS(child(in_child, whole)));
    printf("%.4s %.3s %s\n", both, whole + PAGE, at(fd, 0, 4));

    /* They outlive their descriptors, and the file's name. */
    close(fd), close(reader), close(writer);
    SAY(store(whole + 5, '!'));
    SAY(msync(whole, 2 * PAGE, MS_SYNC));
    SAY(store(whole + 6, '?'));
    fd = open("f.managed", O_RDWR);
    printf("%s\n", at(fd, 0, 10));
    SAY(unlink("f.managed"));
    SAY(store(whole + 7, '#'));
    printf("%s\n", at(fd, 0, 10));
    close(fd);
    SAY(load(whole + 7));

    /* What is left when nobody syncs. */
    fd = open("g.managed", O_RDWR | O_CREAT, 0644);
    SAY(ftruncate(fd, 100 * PAGE));
    char *many = (char *)syscall(SYS_mmap, NULL, 100L * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0L);
    close(fd);
    for (int i = 0; i < 100; i += 3) memset(many + i * PAGE, 'a' + i % 26, 1 + i * 40);
    /* A page that was taken away and came back. */
    fd = open("g.managed", O_RDWR);
    many[80 * PAGE] = 'x';
    SAY(ftruncate(fd, 50 * PAGE));
    SAY(ftruncate(fd, 100 * PAGE));
    many[80 * PAGE + 1] = 'y';
    /* A second store after a sync, by each mapping that there is; and one by each kind of mapping. */
    char *other = map(fd, 100 * PAGE, PROT_READ, 0);
    SAY(mprotect(other, 100 * PAGE, PROT_READ | PROT_WRITE));
    many[0] = other[PAGE] = '1';
    SAY(fsync(fd));
    many[1] = other[PAGE + 1] = '2';
    SAY(fsync(fd));
    other[2] = many[PAGE + 2] = '3';
    SAY(mmap(other + PAGE, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 10 * PAGE) == other + PAGE);
    other[PAGE] = other[2 * PAGE] = '4';
    other[4 * PAGE] = '4';
    other = mremap(other + 3 * PAGE, 90 * PAGE, 97 * PAGE, MREMAP_MAYMOVE);
    SAY(other == MAP_FAILED);
    other[PAGE + 1] = other[96 * PAGE] = '5';
    SAY(mprotect(many, PAGE, PROT_READ));
    SAY(store(many, 'x') == SIGSEGV);
    SAY(mprotect(many, PAGE, PROT_READ | PROT_WRITE));
    many[3] = '6';
    SAY(madvise(many, 100 * PAGE, MADV_DONTNEED));
    many[4] = many[99 * PAGE + 1] = '7';
    SAY(madvise(many, 100 * PAGE, MADV_DONTFORK));
    SAY(ftruncate(fd, 101 * PAGE - 1));
    SAY(mlock(many + 20 * PAGE, PAGE));
    many[20 * PAGE + 4000] = '8';
    close(fd);
    SAY(syscall(SYS_munmap, many, 100L * PAGE));
    other[PAGE + 5] = '9';
    fflush(stdout);
    return 0;
}
