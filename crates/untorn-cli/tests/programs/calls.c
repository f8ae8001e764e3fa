/* Makes every call on files, and says what each returned: the same bare and under
   untorn. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <ftw.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FILE_NAME "file.managed"

static void say(int line, long result) {
    printf("%d: %ld %s\n", line, result, result < 0 ? strerrorname_np(errno) : "");
}
#define SAY(call) do { errno = 0; say(__LINE__, (long)(call)); } while (0)

static void show(int fd) {
    char bytes[64] = {0};
    long count = pread(fd, bytes, sizeof bytes - 1, 0);
    struct stat status;
    fstat(fd, &status);
    printf("   %ld of %ld at %ld: ", count, (long)status.st_size, (long)lseek(fd, 0, SEEK_CUR));
    for (long i = 0; i < count; i++) putchar(bytes[i] >= ' ' ? bytes[i] : '.');
    putchar('\n');
}

static void reading_and_writing(void) {
    char a[8], b[8];
    int fd = open(FILE_NAME, O_RDWR | O_CREAT | O_TRUNC, 0644);
    SAY(write(fd, "hello, world", 12));
    SAY(lseek(fd, 3, SEEK_SET));
    SAY(read(fd, a, 4));
    printf("   %.4s\n", a);
    SAY(pwrite(fd, "PQ", 2, 20));
    SAY(pread(fd, b, 8, 16));
    SAY(pread(fd, b, 8, 1000));
    struct iovec two[2] = {{a, 3}, {b, 5}};
    SAY(readv(fd, two, 2));
    memcpy(a, "ONE", 3); memcpy(b, "TWO45", 5);
    SAY(writev(fd, two, 2));
    SAY(preadv(fd, two, 2, 1));
    SAY(pwritev(fd, two, 2, 30));
    SAY(preadv2(fd, two, 2, 2, 0));
    SAY(preadv2(fd, two, 2, -1, 0));
    SAY(pwritev2(fd, two, 2, 4, RWF_DSYNC));
    SAY(pwritev2(fd, two, 2, -1, 0));
    SAY(pwritev2(fd, two, 1, 0, RWF_APPEND));
    SAY(writev(fd, two, -1));
    SAY(writev(fd, two, 0));
    show(fd);
    SAY(write(fd, "x", 0));
    SAY(write(fd, (void *)8, 4));
    SAY(read(fd, (void *)8, 4));
    SAY(pread(fd, (void *)8, 4, 0));
    SAY(pread(fd, a, 4, -1));
    SAY(pwrite(fd, a, 4, -5));
    SAY(lseek(fd, -1, SEEK_SET));
    SAY(lseek(fd, -2, SEEK_END));
    SAY(lseek(fd, -1, SEEK_CUR));
    SAY(lseek(fd, 100, SEEK_END));
    SAY(lseek(fd, 0, 77));
    SAY(write(fd, "past", 4));
    show(fd);
    char *large = malloc(3000000);
    memset(large, 'L', 3000000);
    SAY(pwrite(fd, large, 3000000, 4090));
    SAY(pread(fd, large, 3000000, 100));
    SAY(pread(fd, large, 3000000, 2000000));
    free(large);
    SAY(pwrite(fd, "far", 3, 5000000000));
    SAY(ftruncate(fd, 40));
    show(fd);
    SAY(close(fd));
    SAY(close(fd));
    SAY(read(fd, a, 1));
}

static void flags_and_modes(void) {
    char a[8];
    SAY(open(FILE_NAME, O_RDWR | O_CREAT | O_EXCL, 0644));
    int fd = open(FILE_NAME, O_RDONLY);
    SAY(write(fd, "x", 1));
    SAY(ftruncate(fd, 1));
    SAY(fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND));
    SAY(close(fd));
    fd = open(FILE_NAME, O_WRONLY | O_APPEND | O_CLOEXEC);
    SAY(read(fd, a, 1));
    SAY(write(fd, "tail", 4));
    SAY(pwrite(fd, "also", 4, 0));
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(fcntl(fd, F_GETFD));
    SAY(fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND));
    SAY(fcntl(fd, F_SETFL, 0));
    SAY(pwrite(fd, "INPLACE", 7, 0));
    SAY(fcntl(fd, F_SETFL, O_APPEND));
    SAY(write(fd, "end", 3));
    SAY(close(fd));
    fd = openat(AT_FDCWD, FILE_NAME, O_RDWR | O_DSYNC);
    show(fd);
    SAY(write(fd, "durable", 7));
    SAY(close(fd));
    fd = creat("other.managed", 0600);
    SAY(write(fd, "other", 5));
    SAY(close(fd));
    SAY(open("other.managed", O_DIRECTORY));
    SAY(open("none.managed", O_RDWR));
    fd = open("other.managed", O_RDONLY | O_TRUNC);
    show(fd);
    SAY(close(fd));
    char name[] = "XXXXXX.managed";
    fd = mkstemps(name, 8);
    SAY(write(fd, "temporary", 9));
    show(fd);
    SAY(unlink(name));
    SAY(write(fd, " still", 6));
    show(fd);
    SAY(fsync(fd));
    SAY(close(fd));
}

static void lengths_and_syncs(void) {
    struct stat status;
    struct statx extended;
    int fd = open(FILE_NAME, O_RDWR);
    SAY(ftruncate(fd, 10000));
    SAY(ftruncate(fd, -1));
    SAY(truncate(FILE_NAME, 9000));
    SAY(truncate(FILE_NAME, -1));
    SAY(truncate("none.managed", 1));
    SAY(stat(FILE_NAME, &status)); SAY(status.st_size);
    SAY(lstat(FILE_NAME, &status)); SAY(status.st_size);
    SAY(fstatat(AT_FDCWD, FILE_NAME, &status, 0)); SAY(status.st_size);
    SAY(fstatat(fd, "", &status, AT_EMPTY_PATH)); SAY(status.st_size);
    SAY(statx(AT_FDCWD, FILE_NAME, 0, STATX_SIZE, &extended)); SAY(extended.stx_size);
    SAY(statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &extended)); SAY(extended.stx_size);
    SAY(pwrite(fd, "bytes in the middle", 19, 5));
    SAY(fallocate(fd, 0, 8000, 4000));
    SAY(fallocate(fd, FALLOC_FL_KEEP_SIZE, 100000, 10));
    SAY(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 8, 6));
    SAY(fallocate(fd, FALLOC_FL_ZERO_RANGE, 20, 2));
    SAY(fallocate(fd, 0, -1, 5));
    SAY(fallocate(fd, 0, 5, 0));
    SAY(posix_fallocate(fd, 0, 20000));
    SAY(posix_fallocate(fd, 0, -1));
    show(fd);
    SAY(fsync(fd));
    SAY(fdatasync(fd));
    SAY(sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE));
    SAY(syncfs(fd));
    SAY(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
    struct timespec times[2] = {{1000000000, 5}, {1000000001, 6}};
    SAY(pwrite(fd, "t", 1, 0));
    SAY(futimens(fd, times));
    SAY(fstat(fd, &status)); SAY(status.st_mtim.tv_sec); SAY(status.st_mtim.tv_nsec);
    SAY(pwrite(fd, "t", 1, 0));
    SAY(fstat(fd, &status)); SAY(status.st_mtim.tv_sec > 1600000000);
    SAY(utimensat(AT_FDCWD, FILE_NAME, times, 0));
    SAY(close(fd));
    SAY(stat(FILE_NAME, &status)); SAY(status.st_mtim.tv_sec); SAY(status.st_mtim.tv_nsec);
}

static void copies_and_children(char *self) {
    char a[8];
    int fd = open(FILE_NAME, O_RDWR | O_TRUNC), status;
    SAY(write(fd, "0123456789", 10));
    int second = dup(fd);
    SAY(lseek(second, 2, SEEK_SET));
    SAY(read(fd, a, 2));
    int third = fcntl(fd, F_DUPFD_CLOEXEC, 50);
    SAY(third);
    SAY(dup2(fd, 60));
    SAY(dup3(fd, 61, O_CLOEXEC));
    SAY(dup2(60, 60));
    SAY(lseek(60, 0, SEEK_CUR));
    SAY(close(fd));
    SAY(write(third, "AB", 2));
    int reused = open("other.managed", O_RDWR | O_CREAT, 0600);
    SAY(reused == fd);
    SAY(write(reused, "reused", 6));
    SAY(close(reused));
    fflush(stdout);
    if (fork() == 0) {
        SAY(write(second, "child", 5));
        SAY(close(second));
        fflush(stdout);
        _exit(3);
    }
    wait(&status);
    SAY(WEXITSTATUS(status));
    SAY(lseek(second, 0, SEEK_CUR));
    fflush(stdout);
    if (fork() == 0) {
        char number[8];
        sprintf(number, "%d", second);
        execl(self, self, "inherited", number, NULL);
        _exit(9);
    }
    wait(&status);
    SAY(WEXITSTATUS(status));
    char number[8];
    sprintf(number, "%d", second);
    char *arguments[] = {self, "inherited", number, NULL}, *nothing[] = {NULL};
    pid_t child;
    SAY(posix_spawn(&child, self, NULL, NULL, arguments, nothing));
    wait(&status);
    SAY(WEXITSTATUS(status));
    fflush(stdout);
    if (vfork() == 0) {
        write(second, "V", 1);
        _exit(4);
    }
    wait(&status);
    SAY(WEXITSTATUS(status));
    show(second);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 5};
    SAY(fcntl(second, F_SETLK, &lock));
    SAY(flock(second, LOCK_EX));
    fflush(stdout);
    if (fork() == 0) {
        int mine = open(FILE_NAME, O_RDWR);
        struct flock theirs = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
        SAY(fcntl(mine, F_SETLK, &theirs));
        SAY(flock(mine, LOCK_EX | LOCK_NB));
        fflush(stdout);
        _exit(0);
    }
    wait(&status);
    SAY(close_range(50, 70, 0));
    SAY(lseek(60, 0, SEEK_CUR));
    SAY(close(second));
}

static void *thread_writes(void *argument) {
    int fd = *(int *)argument;
    for (int i = 0; i < 200; i++) if (write(fd, "0123456789abcdef", 16) != 16) return (void *)1;
    return NULL;
}

static void threads(void) {
    int fd = open(FILE_NAME, O_RDWR | O_TRUNC);
    pthread_t all[4];
    void *failed;
    for (int i = 0; i < 4; i++) pthread_create(&all[i], NULL, thread_writes, &fd);
    for (int i = 0; i < 4; i++) { pthread_join(all[i], &failed); SAY(failed != NULL); }
    SAY(lseek(fd, 0, SEEK_END));
    SAY(close(fd));
}

static void names(void) {
    int fd = open("named.managed", O_RDWR | O_CREAT, 0644);
    SAY(write(fd, "before", 6));
    SAY(rename("named.managed", "renamed.managed"));
    SAY(write(fd, " after", 6));
    SAY(link("renamed.managed", "second.managed"));
    SAY(unlink("renamed.managed"));
    SAY(fsync(fd));
    show(fd);
    SAY(close(fd));
    fd = open("second.managed", O_RDWR);
    show(fd);
    SAY(unlink("second.managed"));
    SAY(write(fd, "gone", 4));
    show(fd);
    SAY(close(fd));
    SAY(access("second.managed", F_OK));
}

static void streams_and_copies(void) {
    char line[64];
    FILE *file = fopen(FILE_NAME, "w+");
    SAY(fprintf(file, "first %d\nsecond\n", 1));
    SAY(ftell(file));
    rewind(file);
    while (fgets(line, sizeof line, file)) printf("   %s", line);
    SAY(fseek(file, 2, SEEK_SET));
    SAY(fputs("XX", file));
    SAY(fflush(file));
    show(fileno(file));
    SAY(fclose(file));
    SAY((file = fopen(FILE_NAME, "wx")) != NULL);
    file = fopen(FILE_NAME, "a");
    SAY(fputs("appended\n", file));
    SAY(fclose(file));
    int fd = open(FILE_NAME, O_RDWR);
    SAY(dprintf(fd, "%s %d %.2f %d %d %d %d|", "dprintf", 1, 2.5, 3, 4, 5, 6));
    show(fd);
    file = fdopen(dup(fd), "r+");
    SAY(fgetc(file));
    SAY(fclose(file));
    int out = open("copy.managed", O_RDWR | O_CREAT | O_TRUNC, 0644);
    off_t from = 2;
    SAY(sendfile(out, fd, &from, 100000)); SAY(from);
    lseek(fd, 1, SEEK_SET);
    SAY(sendfile(out, fd, NULL, 4));
    show(out); show(fd);
    off_t to = 20;
    int ends[2];
    from = 1;
    SAY(copy_file_range(fd, &from, out, &to, 3, 0)); SAY(from); SAY(to);
    lseek(fd, 2, SEEK_SET);
    SAY(copy_file_range(fd, NULL, out, NULL, 100000, 0));
    SAY(copy_file_range(fd, NULL, out, NULL, 5, 0));
    show(out); show(fd);
    from = 0, to = 4;
    SAY(copy_file_range(out, &from, out, &to, 5, 0)); SAY(from);
    SAY(copy_file_range(out, &from, out, &to, 4, 0)); SAY(to);
    from = -1;
    SAY(copy_file_range(fd, &from, out, NULL, 5, 0));
    SAY(copy_file_range(fd, NULL, out, NULL, 5, 1));
    int odd = open("copy.managed", O_RDONLY);
    SAY(copy_file_range(fd, NULL, odd, NULL, 5, 0)); SAY(close(odd));
    odd = open("copy.managed", O_WRONLY | O_APPEND);
    SAY(copy_file_range(fd, NULL, odd, NULL, 5, 0));
    SAY(copy_file_range(odd, NULL, fd, NULL, 5, 0)); SAY(close(odd));
    odd = open(".", O_RDONLY);
    SAY(copy_file_range(odd, NULL, fd, NULL, 5, 0)); SAY(close(odd));
    SAY(pipe(ends));
    SAY(copy_file_range(fd, NULL, ends[1], NULL, 5, 0)); SAY(close(ends[0])); SAY(close(ends[1]));
    odd = open("plain", O_RDWR | O_CREAT, 0644);
    from = 3;
    SAY(copy_file_range(out, &from, odd, NULL, 10, 0)); SAY(ftruncate(odd, 6)); to = 30;
    from = 0;
    SAY(copy_file_range(odd, &from, out, &to, 10, 0)); show(out); SAY(close(odd));
    char *mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    printf("   %.7s\n", mapped);
    mapped[0] = 'Z';
    show(fd);
    SAY(munmap(mapped, 4096));
    SAY(close(out));
    SAY(close(fd));
    fflush(stdout);
    int kept = dup(1);
    out = open("stdout.managed", O_RDWR | O_CREAT | O_TRUNC, 0644);
    dup2(out, 1);
    printf("to a file\n");
    puts("and more");
    fflush(stdout);
    dup2(kept, 1);
    printf("back again\n");
    show(out);
    SAY(close(out));
}

static void standard_streams_reopened(void) {
    int numbered = open("numbered.managed", O_RDWR | O_CREAT, 0644);
    SAY(write(numbered, "1\n2\n3", 5));
    SAY(close(numbered));
    fflush(stdout);
    int kept = dup(1);
    FILE *again = freopen("reopened.managed", "w", stdout);
    printf("first %d\n", again == stdout);
    again = freopen("reopened.managed", "a", stdout);
    printf("second %d %d\n", again == stdout, fileno(stdout));
    fflush(stdout);
    dup2(kept, 1);
    close(kept);
    printf("back again\n");
    int in = dup(0), fd = open("reopened.managed", O_RDWR);
    show(fd);
    SAY(close(fd));
    char line[32];
    SAY(freopen("reopened.managed", "r", stdin) == stdin);
    while (fgets(line, sizeof line, stdin)) printf("   %s", line);
    clearerr(stdin);
    /* What was read ahead or put back belongs to what the stream was. */
    SAY(freopen("reopened.managed", "r", stdin) == stdin);
    SAY(fgets(line, sizeof line, stdin) == line);
    SAY(ungetc('q', stdin));
    SAY(freopen("numbered.managed", "r", stdin) == stdin);
    while (fgets(line, sizeof line, stdin)) printf("   %s", line);
    clearerr(stdin);
    dup2(in, 0);
    SAY(close(in));
    /* Appending begins at the end, for the stream and for its descriptor. */
    fflush(stdout);
    kept = dup(1);
    freopen("numbered.managed", "a", stdout);
    long told = ftell(stdout), offset = lseek(1, 0, SEEK_CUR);
    printf("appended\n");
    long after = ftell(stdout);
    fflush(stdout);
    dup2(kept, 1);
    close(kept);
    SAY(told); SAY(offset); SAY(after);
}

#include "numbers.h"
#include "others.h"

static void modes_of_streams(void) {
    FILE *file = fopen(FILE_NAME, "w");
    fputs("five\n", file);
    fclose(file);
    file = fopen(FILE_NAME, "a");
    SAY(ftell(file)); SAY(fputs("x", file)); SAY(ftell(file)); SAY(fclose(file));
    file = fopen(FILE_NAME, "a+");
    SAY(ftell(file)); SAY(fgetc(file)); SAY(fclose(file));
    file = fdopen(open(FILE_NAME, O_WRONLY), "a");
    SAY(ftell(file)); SAY(fcntl(fileno(file), F_GETFL) & O_APPEND); SAY(fclose(file));
    int fd = open(FILE_NAME, O_RDONLY);
    SAY(fdopen(fd, "w") != NULL); SAY(fdopen(fd, "r+") != NULL); SAY(fdopen(fd, "?") != NULL);
    SAY(close(fd));
    SAY(freopen("new.plain", "wx", fopen("/dev/null", "r")) != NULL);
    SAY(freopen("new.plain", "wx", fopen("/dev/null", "r")) != NULL);
    fd = open(FILE_NAME, O_WRONLY);
    SAY((long)mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0));
    SAY(close(fd));
}

/* Standard output becomes a managed file, and something else again, in other ways than by dup2. */
static void standard_output(void) {
    FILE *same = stdout;
    fflush(stdout);
    int kept = dup(1), out = open("ways.managed", O_RDWR | O_CREAT | O_TRUNC, 0644);
    close(1);
    SAY(fcntl(out, F_DUPFD, 1));
    fflush(stdout);
    dup2(kept, 1);
    show(out);
    dup2(out, 1);
    puts("left behind");
    freopen("away.plain", "w", stdout);
    puts("away");
    fflush(stdout);
    dup2(kept, 1);
    show(out);
    printf("back\n");
    char name[] = "XXXXXX.managed", found[8] = {0};
    fflush(stdout);
    close(1);
    mkstemps(name, 8);
    printf("made");
    fflush(stdout);
    pread(1, found, 7, 0);
    dup2(kept, 1);
    unlink(name);
    puts(found);
    /* The streams are the parent's, the descriptors the child's. */
    fprintf(same, "before\n");
    pid_t child = vfork();
    if (child == 0) {
        dup2(out, 1);
        execlp("echo", "echo", "child", (char *)0);
        _exit(1);
    }
    waitpid(child, NULL, 0);
    fprintf(same, "after\n");
    fflush(same);
    show(out);
    SAY(close(out));
}

int main(int count, char **arguments) {
    if (count == 3) {
        int fd = atoi(arguments[2]);
        SAY(write(fd, "exec", 4));
        show(fd);
        return 5;
    }
    reading_and_writing();
    flags_and_modes();
    lengths_and_syncs();
    copies_and_children(arguments[0]);
    threads();
    names();
    streams_and_copies();
    standard_streams_reopened();
    by_number();
    more_by_number();
    modes_of_streams();
    standard_output();
    walks();
    ends_of_files();
    lists_of_arguments();
    sync();
    return 0;
}
