// Writes by a program that is itself in the way of them: signals, other threads, memory that is none, an exec amid a
// write, a descriptor that becomes another file's, a child in its memory.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static int fd;
static volatile sig_atomic_t handled;

static void must(int right, const char *what) {
    if (!right) {
        printf("%s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static void on_signal(int number) {
    (void)number;
    int before = errno;
    char block[512];
    memset(block, 's', sizeof block);
    if (pwrite(fd, block, sizeof block, 8192) == (ssize_t)sizeof block && fsync(fd) == 0)
        handled++;
    errno = before;
}

// A handler that runs amid a write of the same file would wait for ever for the turn of it.
static void signals(void) {
    char block[4096];
    memset(block, 'm', sizeof block);
    signal(SIGALRM, on_signal);
    struct itimerval every = {{0, 200}, {0, 200}};
    must(setitimer(ITIMER_REAL, &every, NULL) == 0, "setitimer");
    while (handled < 100)
        must(pwrite(fd, block, sizeof block, 0) == (ssize_t)sizeof block, "pwrite");
    struct itimerval never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &never, NULL);
    must(pread(fd, block, 512, 8192) == 512 && block[0] == 's' && block[511] == 's', "pread");
}

static void memory(void) {
    char *pages = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(pages != MAP_FAILED && munmap(pages + 8192, 4096) == 0, "mmap");
    memset(pages, 'p', 8192);
    must(pwrite(fd, pages, 8192, 0) == 8192, "whole");
    must(pwrite(fd, NULL, 10, 0) == -1 && errno == EFAULT, "null");
    must(pwrite(fd, pages + 8192, 10, 0) == -1 && errno == EFAULT, "unmapped");
    must(pwrite(fd, pages, 10, -1) == -1 && errno == EINVAL, "before the beginning");
    must(mprotect(pages, 4096, PROT_NONE) == 0, "mprotect");
    must(pwrite(fd, pages, 10, 0) == -1 && errno == EFAULT, "protected");
    must(pwrite(fd, pages + 4090, 100, 0) == -1 && errno == EFAULT, "its first bytes protected");
    must(pwrite(fd, pages + 4096, 4096, 4096) == 4096, "up to the end");
    char found[8192];
    must(pread(fd, found, sizeof found, 0) == (ssize_t)sizeof found, "pread");
    for (size_t at = 0; at < sizeof found; at++)
        must(found[at] == 'p', "what was not written is there");
}

static void *write_on(void *unused) {
    char block[16384];
    memset(block, 'w', sizeof block);
    for (int round = 0;; round++)
        if (pwrite(fd, block, sizeof block, round % 5 * 1000) != (ssize_t)sizeof block)
            return unused;
}

// The kernel ends the other threads of a process that executes another program, wherever they are.
static void executed(void) {
    for (int round = 0; round < 20; round++) {
        pid_t child = fork();
        must(child >= 0, "fork");
        if (child == 0) {
            pthread_t writer;
            pthread_create(&writer, NULL, write_on, NULL);
            usleep(1000 + round * 371);
            execl("/bin/true", "true", (char *)NULL);
            _exit(1);
        }
        int status;
        must(waitpid(child, &status, 0) == child && status == 0, "the child");
        must(pwrite(fd, "after", 5, 100) == 5 && fsync(fd) == 0, "after it");
        char found[5];
        must(pread(fd, found, 5, 100) == 5 && memcmp(found, "after", 5) == 0, "pread");
    }
}

static volatile int written;

static void *write_blocks(void *unused) {
    char block[1000];
    memset(block, 'b', sizeof block);
    for (int round = 0; round < 40; round++) {
        must(write(fd, block, sizeof block) == (ssize_t)sizeof block, "write");
        written = round + 1;
    }
    return unused;
}

static long blocks_of(int file) {
    static char found[100000];
    ssize_t bytes = pread(file, found, sizeof found, 0);
    must(bytes >= 0 && bytes % 1000 == 0, "pread");
    for (ssize_t at = 0; at < bytes; at++)
        must(found[at] == 'b', "a file has what nobody wrote there");
    return bytes / 1000;
}

// As a program replaces its log. The 21st write of its own takes its time, before the kernel is told of it.
static void replaced(void) {
    int other = open("other", O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    int first = dup(fd);
    must(other >= 0 && first >= 0 && lseek(fd, 0, SEEK_SET) == 0, "dup");
    pthread_t writer;
    must(pthread_create(&writer, NULL, write_blocks, NULL) == 0, "pthread_create");
    while (written < 20)
        usleep(100);
    usleep(50000);
    must(dup2(other, fd) == fd, "dup2");
    must(pthread_join(writer, NULL) == 0, "pthread_join");
    long in_first = blocks_of(first), in_other = blocks_of(other);
    must(in_first >= 20 && in_first + in_other == 40, "a write is in neither, or in both");
}

static volatile int is_over;

static void *sync_blocks(void *unused) {
    char block[3000];
    memset(block, 'c', sizeof block);
    while (!is_over)
        must(pwrite(fd, block, sizeof block, 0) == (ssize_t)sizeof block && fsync(fd) == 0, "write");
    return unused;
}

// A program that counts on no number being taken takes all that are high for files of its own, also that of the log.
static void numbers(void) {
    int other = open("numbers", O_RDWR | O_CREAT, 0644);
    must(other >= 0 && pwrite(other, "mine", 4, 0) == 4, "open");
    pthread_t writer;
    must(pthread_create(&writer, NULL, sync_blocks, NULL) == 0, "pthread_create");
    // As far as there may be any.
    for (int number = 100; number < 900 && dup2(other, number) == number; number++) {
        if (number % 100 == 0)
            usleep(20000);
    }
    usleep(20000);
    is_over = 1;
    must(pthread_join(writer, NULL) == 0, "pthread_join");
    struct stat found;
    must(fstat(other, &found) == 0 && found.st_size == 4, "what is the log's is in a file of the program's");
    must(unlink("numbers") == 0, "unlink");
}

#define RECORDS 1000

static void *write_records(void *number) {
    long kind = (long)number;
    for (int record = 0; record < RECORDS; record++) {
        char text[9];
        snprintf(text, sizeof text, "%ld %05d\n", kind, record);
        struct iovec pieces[2] = {{text, 3}, {text + 3, 5}};
        must((kind % 2 ? write(fd, text, 8) : pwritev2(fd, pieces, 2, -1, RWF_DSYNC)) == 8, "write");
    }
    return NULL;
}

// Of threads that share an offset, some of whose writes are the server's: each has a place of its own.
static void offsets(void) {
    must(lseek(fd, 0, SEEK_SET) == 0, "lseek");
    pthread_t writers[4];
    for (long number = 0; number < 4; number++)
        must(pthread_create(&writers[number], NULL, write_records, (void *)number) == 0, "pthread_create");
    for (int number = 0; number < 4; number++)
        must(pthread_join(writers[number], NULL) == 0, "pthread_join");
    int next[4] = {0, 0, 0, 0};
    char text[9] = "";
    for (off_t at = 0; pread(fd, text, 8, at) == 8; at += 8) {
        int kind = text[0] - '0';
        must(kind >= 0 && kind < 4 && next[kind] == atoi(text + 2), "a record is not where it was written");
        next[kind]++;
    }
    for (int kind = 0; kind < 4; kind++)
        must(next[kind] == RECORDS, "a record is missing");
}

// A child with its parent's memory opens the first file that is boosted, and writes to it.
static void shared_memory(void) {
    pid_t child = vfork();
    if (child == 0) {
        int own = open("f.managed", O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        int right = own >= 0;
        for (int round = 0; round < 10; round++)
            right = right && pwrite(own, "child", 5, round) == 5;
        _exit(!right);
    }
    int status;
    must(waitpid(child, &status, 0) == child && status == 0, "the child");
    fd = open("g.managed", O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    must(fd >= 0, "open");
    for (int round = 0; round < 100; round++)
        must(pwrite(fd, "parent", 6, round) == 6, "pwrite");
    puts("done");
}

int main(int count, char **arguments) {
    if (count == 2 && !strcmp(arguments[1], "vfork")) {
        shared_memory();
        return 0;
    }
    fd = open("f.managed", O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    must(fd >= 0 && count == 2, "open");
    // The first write of a file is not its process's own.
    must(pwrite(fd, "first", 5, 0) == 5, "first");
    if (!strcmp(arguments[1], "signals"))
        signals();
    else if (!strcmp(arguments[1], "memory"))
        memory();
    else if (!strcmp(arguments[1], "replaced"))
        replaced();
    else if (!strcmp(arguments[1], "numbers"))
        numbers();
    else if (!strcmp(arguments[1], "offsets"))
        offsets();
    else
        executed();
    puts("done");
    return 0;
}
