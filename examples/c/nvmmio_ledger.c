/*
 * The Libnvmmio paper's interface: a log and an index of it in one file, written
 * by nvmemcpy and committed together by nvmsync. A child process appends entries
 * and dies in the middle of one; the parent finds every entry that was
 * committed, and nothing of the last.
 *
 * Usage: nvmmio_ledger FILE
 */
#define _POSIX_C_SOURCE 200809L

#include <untorn.h>
#include <untorn/nvmmio.h>

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define LENGTH ((size_t)1 << 20)
#define ENTRY 5000
#define COMMITTED 20

static int give_up(const char *doing) {
    int number = errno;
    untorn_error error;
    untorn_last_error(&error);
    fprintf(stderr, "%s: %s: %s\n", doing, strerror(number), error.message);
    return 2;
}

/* The program's own open. It says by O_ATOMIC which files are to be mapped
 * atomically; open(2) knows no such flag. */
static char *open_and_map(const char *path, int flags, size_t length) {
    int fd = open(path, flags & ~O_ATOMIC, 0644);
    struct stat now;
    if (fd < 0 || fstat(fd, &now) != 0) return MAP_FAILED;
    /* A new file. An old one is not touched behind untorn's back. */
    if (now.st_size == 0 && ftruncate(fd, (off_t)length) != 0) return MAP_FAILED;
    char *address = flags & O_ATOMIC ? nvmmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                                     : mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return address;
}

/* Entry `n` and then the count of entries, which stands at the start. */
static int append(char *ledger, uint64_t n) {
    uint64_t count = n + 1;
    if (!nvmemset(ledger + 4096 + n * ENTRY, 'a' + (int)(n % 26), ENTRY)) return 1;
    return nvmemcpy(ledger, &count, sizeof count) ? 0 : 1;
}

static int write_and_die(const char *path) {
    char *ledger = open_and_map(path, O_RDWR | O_CREAT | O_ATOMIC, LENGTH);
    if (ledger == MAP_FAILED) return give_up("map the ledger");
    for (uint64_t n = 0; n < COMMITTED; n++) {
        if (append(ledger, n)) return give_up("append");
        /* The whole file's changes commit, whatever range is named. */
        if (nvmsync(ledger, 1, MS_SYNC)) return give_up("commit");
    }
    if (append(ledger, COMMITTED)) return give_up("append");
    /* No nvmsync, no nvmunmap: as in a crash. */
    _exit(0);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: nvmmio_ledger FILE\n");
        return 64;
    }
    pid_t child = fork();
    if (child < 0) return give_up("fork");
    if (child == 0) _exit(write_and_die(argv[1]));
    int status;
    if (waitpid(child, &status, 0) != child || status != 0) return 2;

    char *ledger = open_and_map(argv[1], O_RDWR | O_ATOMIC, LENGTH);
    if (ledger == MAP_FAILED) return give_up("map the ledger");
    uint64_t count;
    if (!nvmemcpy(&count, ledger, sizeof count)) return give_up("read the count");
    char expected[ENTRY];
    for (uint64_t n = 0; n <= COMMITTED; n++) {
        memset(expected, n < count ? 'a' + (int)(n % 26) : 0, ENTRY);
        if (nvmemcmp(ledger + 4096 + n * ENTRY, expected, ENTRY) != 0) {
            fprintf(stderr, "entry %d is torn\n", (int)n);
            return 1;
        }
    }
    printf("%d entries committed, %d found, nothing of the one after\n", COMMITTED, (int)count);
    if (nvmunmap(ledger, LENGTH)) return give_up("unmap the ledger");
    return count == COMMITTED ? 0 : 1;
}
