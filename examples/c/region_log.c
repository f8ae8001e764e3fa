/*
 * Listing 1 of the Region System paper: a page of a region, mapped, stored to and
 * committed. A child process commits once and dies with stores that it did not
 * commit; the parent finds the first and nothing of the others.
 *
 * Usage: region_log STORE
 */
#define _POSIX_C_SOURCE 200809L

#include <untorn.h>
#include <untorn/region.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE_SIZE 4096

static int give_up(const char *doing) {
    int number = errno;
    untorn_error error;
    untorn_last_error(&error);
    fprintf(stderr, "%s: %s: %s\n", doing, strerror(number), error.message);
    return 2;
}

static int write_and_die(void) {
    /* From here on it is the listing. */
    int rd = region_open("__region_1", O_CREAT);
    if (rd < 0) return give_up("open the region");
    int64_t ppage_no = alloc_ppage(rd);
    if (ppage_no != 0) return give_up("allocate its first page");
    char *log = pmmap(NULL, rd, ppage_no, PAGE_SIZE, MAP_SHARED);
    if (log == MAP_FAILED) return give_up("map the page");

    strcpy(log, "written and committed");

    if (pmsync(rd) != 0) return give_up("commit");

    /* Where the listing unmaps and closes, this process is killed instead. */
    strcpy(log, "written, and not committed");
    alloc_ppage(rd);
    raise(SIGKILL);
    return 2;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: region_log STORE\n");
        return 2;
    }
    if (setenv("UNTORN_REGION_STORE", argv[1], 1) != 0) return give_up("name the store");
    pid_t child = fork();
    if (child < 0) return give_up("fork");
    if (child == 0) return write_and_die();
    int status;
    if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status)) return 2;

    int rd = region_open("__region_1", 0);
    if (rd < 0) return give_up("open the region again");
    char *log = pmmap(NULL, rd, 0, PAGE_SIZE, MAP_SHARED);
    if (log == MAP_FAILED) return give_up("map the page again");
    int64_t next = alloc_ppage(rd);
    printf("page 0: %s; the next page is %lld\n", log, (long long)next);
    int whole = strcmp(log, "written and committed") == 0 && next == 1;
    if (pmunmap(log) != 0 || region_close(rd) != 0) return give_up("close");
    if (region_delete("__region_1") != 0) return give_up("delete");
    return whole ? 0 : 1;
}
