/* untorn/region.h: every function with arguments that work and with ones that do
 * not. Usage: region DIR; exits with 0 if all is well. */
#define _DEFAULT_SOURCE

#include <untorn.h>
#include <untorn/region.h>

#include "check.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

#define PAGE 4096

/* The signal that a load from an address ends a process with, or 0. */
static int signal_of_load(const volatile char *address) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char byte = *address;
        _exit(byte == 'x' ? 1 : 0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void names(void) {
    CHECK(FAILS(region_open("r", 0), -1, ENOENT));
    CHECK(FAILS(region_delete("r"), -1, ENOENT));
    CHECK(FAILS(region_open(NULL, 0), -1, EINVAL));
    CHECK(FAILS(region_open("", O_CREAT), -1, EINVAL));
    CHECK(FAILS(region_open("\xff", O_CREAT), -1, EINVAL));
    CHECK(FAILS(region_open("r", O_APPEND), -1, EINVAL));
    int rd = region_open("r", O_RDWR | O_CREAT | O_EXCL);
    CHECK(rd >= 0);
    CHECK(FAILS(region_open("r", O_CREAT | O_EXCL), -1, EEXIST));
    int again = region_open("r", O_CREAT);
    CHECK(again >= 0 && again != rd);
    CHECK(FAILS(region_delete("r"), -1, EBUSY));
    CHECK(region_close(rd) == 0);
    CHECK(FAILS(region_close(rd), -1, EBADF));
    CHECK(FAILS(region_delete("r"), -1, EBUSY));
    CHECK(region_close(again) == 0);
    CHECK(FAILS(region_open("r", O_CREAT | O_EXCL), -1, EEXIST));
    CHECK(region_delete("r") == 0);
    CHECK(FAILS(region_open("r", 0), -1, ENOENT));
}

static void pages(void) {
    int rd = region_open("pages", O_CREAT);
    CHECK(rd >= 0);
    for (int64_t n = 0; n < 8; n++) CHECK(alloc_ppage(rd) == n);
    CHECK(FAILS(free_ppage(rd, 8), -1, EINVAL));
    CHECK(FAILS(free_ppage(rd, -1), -1, EINVAL));
    CHECK(free_ppage(rd, 5) == 0);

    CHECK(FAILS(pmmap(NULL, rd, 5, 1, MAP_SHARED), MAP_FAILED, EINVAL));
    CHECK(FAILS(pmmap(NULL, rd, 4, 2 * PAGE, MAP_SHARED), MAP_FAILED, EINVAL));
    CHECK(FAILS(pmmap(NULL, rd, 0, 0, MAP_SHARED), MAP_FAILED, EINVAL));
    CHECK(FAILS(pmmap(NULL, rd, -1, 1, MAP_SHARED), MAP_FAILED, EINVAL));
    CHECK(FAILS(pmmap(NULL, rd, 0, 1, MAP_PRIVATE), MAP_FAILED, EINVAL));
    CHECK(FAILS(pmmap(NULL, rd, 0, 1, MAP_SHARED | MAP_FIXED), MAP_FAILED, EOPNOTSUPP));
    CHECK(FAILS(pmmap(NULL, rd, INT64_MAX, 1, MAP_SHARED), MAP_FAILED, EFAULT));
    CHECK(FAILS(pmmap(NULL, rd, 0, SIZE_MAX, MAP_SHARED), MAP_FAILED, EFAULT));
    CHECK(FAILS(pmmap(NULL, rd + 1, 0, 1, MAP_SHARED), MAP_FAILED, EBADF));

    char *two = pmmap(NULL, rd, 1, 2 * PAGE, MAP_SHARED | MAP_POPULATE);
    CHECK(two != MAP_FAILED);
    char *seven = pmmap(NULL, rd, 7, 1, MAP_SHARED);
    CHECK(seven == two + 6 * PAGE);
    CHECK(FAILS(pmmap(two, rd, 7, 1, MAP_SHARED | MAP_FIXED_NOREPLACE), MAP_FAILED, EEXIST));
    CHECK(pmmap(two, rd, 1, 1, MAP_SHARED | MAP_FIXED_NOREPLACE) == two);
    CHECK(two[0] == 0 && two[2 * PAGE - 1] == 0);
    strcpy(two + PAGE - 2, "over the edge");
    strcpy(seven, "seven");

    /* Pages that are not mapped, allocated or not, cannot be touched. */
    CHECK(signal_of_load(two) == 0 && signal_of_load(seven) == 0);
    CHECK(signal_of_load(two - PAGE) == SIGSEGV && signal_of_load(two + 2 * PAGE) == SIGSEGV);
    CHECK(signal_of_load(two + 4 * PAGE) == SIGSEGV && signal_of_load(seven + PAGE) == SIGSEGV);

    CHECK(FAILS(free_ppage(rd, 1), -1, EBUSY));
    CHECK(FAILS(region_close(rd), -1, EBUSY));
    CHECK(pmsync(rd) == 0);
    CHECK(pmunmap(two) == 0);
    CHECK(two[PAGE] == 'e' && FAILS(free_ppage(rd, 1), -1, EBUSY));
    CHECK(pmunmap(two) == 0);
    CHECK(FAILS(pmunmap(two), -1, EINVAL));
    CHECK(FAILS(pmunmap(NULL), -1, EINVAL));
    CHECK(signal_of_load(two) == SIGSEGV);
    strcpy(seven, "eight");
    CHECK(pmunmap(seven) == 0);
    CHECK(region_close(rd) == 0);

    /* What was not committed is gone; the rest is not. */
    CHECK((rd = region_open("pages", 0)) >= 0);
    CHECK(alloc_ppage(rd) == 5);
    two = pmmap(NULL, rd, 1, 2 * PAGE, MAP_SHARED);
    seven = pmmap(NULL, rd, 7, PAGE, MAP_SHARED);
    CHECK(strcmp(two + PAGE - 2, "over the edge") == 0 && strcmp(seven, "seven") == 0);
    strcpy(seven, "nine");
    CHECK(pmunmap(seven) == 0 && pmunmap(two) == 0);
    CHECK(pmsync(rd) == 0);
    CHECK((seven = pmmap(NULL, rd, 7, PAGE, MAP_SHARED)) != MAP_FAILED);
    CHECK(strcmp(seven, "nine") == 0);
    CHECK(pmunmap(seven) == 0);
    CHECK(region_close(rd) == 0);
}

/* A child has no descriptors, and its stores are its own. */
static void forks(void) {
    int rd = region_open("forks", O_CREAT);
    CHECK(rd >= 0 && alloc_ppage(rd) == 0);
    char *page = pmmap(NULL, rd, 0, PAGE, MAP_SHARED);
    CHECK(page != MAP_FAILED);
    page[0] = 'p';
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        page[0] = 'c';
        CHECK(FAILS(pmsync(rd), -1, EBADF));
        CHECK(FAILS(pmunmap(page), -1, EINVAL));
        CHECK(FAILS(region_open("forks", 0), -1, EBUSY));
        _exit(0);
    }
    ended(child);
    CHECK(page[0] == 'p');
    CHECK(pmsync(rd) == 0 && pmunmap(page) == 0 && region_close(rd) == 0);
}

/* The file in memory that a region's pages are in. */
static int memory_of(const char *region) {
    DIR *descriptors = opendir("/proc/self/fd");
    CHECK(descriptors);
    int found = -1;
    for (struct dirent *entry; (entry = readdir(descriptors)) != NULL;) {
        char target[256];
        ssize_t length = readlinkat(dirfd(descriptors), entry->d_name, target, sizeof target - 1);
        if (length < 0) continue;
        target[length] = 0;
        const char *file = "/memfd:";
        size_t prefix = strlen(file);
        if (strncmp(target, file, prefix) == 0 && strncmp(target + prefix, region, strlen(region)) == 0)
            found = atoi(entry->d_name);
    }
    closedir(descriptors);
    return found;
}

/* A region whose memory was lost commits no more; it can be closed and opened anew all the same. */
static void lost(void) {
    int rd = region_open("lost", O_CREAT);
    CHECK(rd >= 0 && alloc_ppage(rd) == 0 && alloc_ppage(rd) == 1);
    volatile char *page = pmmap(NULL, rd, 0, 2 * PAGE, MAP_SHARED);
    CHECK(page != MAP_FAILED);
    page[0] = 'k';
    CHECK(pmsync(rd) == 0);
    page[0] = 'l';
    CHECK(ftruncate(memory_of("lost"), 0) == 0);
    CHECK(page[PAGE] == 0);
    CHECK(FAILS(pmsync(rd), -1, EIO));
    CHECK(FAILS(region_close(rd), -1, EBUSY));
    CHECK(pmunmap((void *)page) == 0);
    CHECK(region_close(rd) == 0);
    CHECK((rd = region_open("lost", 0)) >= 0);
    CHECK((page = pmmap(NULL, rd, 0, 2 * PAGE, MAP_SHARED)) != MAP_FAILED);
    CHECK(page[0] == 'k');
    CHECK(pmunmap((void *)page) == 0 && region_close(rd) == 0);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    CHECK(unsetenv("UNTORN_REGION_STORE") == 0);
    CHECK(FAILS(region_open("r", O_CREAT), -1, EINVAL));
    CHECK(setenv("UNTORN_REGION_STORE", in_dir(argv[1], "store"), 1) == 0);
    CHECK(FAILS(alloc_ppage(0), -1, EBADF) && FAILS(free_ppage(0, 0), -1, EBADF) && FAILS(pmsync(-1), -1, EBADF));
    names();
    pages();
    forks();
    lost();
    return 0;
}
