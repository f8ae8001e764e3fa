/* What the tests of the two families of mappings share. MMAP is the function that maps. */
#ifndef MAPPING_H
#define MAPPING_H

#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

#define RW (PROT_READ | PROT_WRITE)

static size_t page;

static int plain(const char *path, size_t length) {
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0644);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)length) == 0);
    return fd;
}

/* The errno of a mapping that is to fail. */
static int refused(size_t length, int prot, int flags, int fd, off_t offset) {
    errno = 0;
    CHECK(MMAP(NULL, length, prot, flags, fd, offset) == MAP_FAILED);
    return errno;
}

static char *mapped(size_t length, int prot, int fd, off_t offset) {
    char *address = MMAP(NULL, length, prot, MAP_SHARED, fd, offset);
    CHECK(address != MAP_FAILED && (uintptr_t)address % page == 0);
    return address;
}

/* What both families refuse to map of a file of two pages at `path` in `dir`. */
static void refused_by_both(const char *dir, const char *path, int fd) {
    CHECK(refused(0, RW, MAP_SHARED, fd, 0) == EINVAL);
    CHECK(refused(page, RW, MAP_SHARED, fd, 1) == EINVAL);
    CHECK(refused(page, RW, MAP_SHARED, fd, -(off_t)page) == EINVAL);
    CHECK(refused((size_t)1 << 60, RW, MAP_SHARED, fd, 0) == ENOMEM);
    CHECK(refused(page, RW, MAP_PRIVATE, fd, 0) == EINVAL);
    CHECK(refused(page, RW, MAP_SHARED | MAP_FIXED, fd, 0) == EOPNOTSUPP);
    CHECK(refused(page, PROT_WRITE, MAP_SHARED, fd, 0) == EOPNOTSUPP);
    CHECK(refused(page, RW, MAP_SHARED, -1, 0) == EBADF);
    int directory = open(dir, O_RDONLY | O_DIRECTORY);
    CHECK(refused(page, PROT_READ, MAP_SHARED, directory, 0) == ENODEV);
    int reading = open(path, O_RDONLY);
    CHECK(refused(page, RW, MAP_SHARED, reading, 0) == EACCES);
    CHECK(close(directory) == 0 && close(reading) == 0);
}

static int shared_fd;
static char *shared_mapping;

/* Four threads that run `copier` over one mapping of two pages, which stays. */
static void four_threads(const char *dir, void *(*copier)(void *)) {
    pthread_t ids[4];
    shared_fd = plain(in_dir(dir, "threads"), 2 * page);
    shared_mapping = mapped(2 * page, RW, shared_fd, 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&ids[i], NULL, copier, NULL) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(ids[i], NULL) == 0);
}

#endif
