/* Part of calls.c: system calls by number. */
static void by_number(void) {
    int fd = syscall(SYS_openat, AT_FDCWD, "numbers.managed", O_RDWR | O_CREAT | O_TRUNC, 0644), ends[2];
    SAY(syscall(SYS_write, fd, "some bytes", 10));
    struct iovec pieces[2] = {{"one ", 4}, {"two", 3}};
    SAY(syscall(SYS_pwritev, fd, pieces, 2, 20L, 0L));
    SAY(syscall(SYS_ftruncate, fd, 25L));
    struct stat status;
    SAY(syscall(SYS_fstat, fd, &status)); SAY(status.st_size);
    SAY(syscall(SYS_newfstatat, AT_FDCWD, "numbers.managed", &status, 0)); SAY(status.st_size);
    struct statx extended;
    SAY(syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_SIZE, &extended)); SAY(extended.stx_size);
    char a[4], b[8];
    struct iovec into[2] = {{a, 4}, {b, 8}};
    SAY(syscall(SYS_preadv, fd, into, 2, 18L, 0L));
    printf("   %.2s\n", b);
    long from = 0, to = 30;
    SAY(syscall(SYS_copy_file_range, fd, &from, fd, &to, 10L, 0L));
    SAY(syscall(SYS_fallocate, fd, 0, 0L, 50L));
    SAY(syscall(SYS_lseek, fd, 0L, SEEK_SET));
    show(fd);
    char *mapped = (char *)syscall(SYS_mmap, NULL, 4096L, PROT_READ, MAP_PRIVATE, fd, 0L);
    printf("   %.4s\n", mapped);
    SAY(munmap(mapped, 4096));
    SAY(syscall(SYS_close, fd));
}

/* Where a kernel has no openat2, or it is told that there is none, a program takes openat. */
static int openat2_or_openat(unsigned long resolve) {
    unsigned long how[3] = {O_RDWR, 0, resolve};
    int fd = syscall(SYS_openat2, AT_FDCWD, "numbers.managed", how, sizeof how);
    return fd < 0 && (errno == ENOSYS || errno == EPERM) ? openat(AT_FDCWD, "numbers.managed", O_RDWR) : fd;
}

/* The names, lengths, times and descriptors of files, by number. */
static void more_by_number(void) {
    int fd = open("numbers.managed", O_RDWR | O_CREAT | O_TRUNC, 0644);
    SAY(ftruncate(fd, 10000));
    SAY(syscall(SYS_truncate, "numbers.managed", 5000L));
    show(fd);
    SAY(pread(fd, (char[8]){0}, 8, 6000));
    SAY(pwrite(fd, "new bytes", 9, 0));
    int same = openat2_or_openat(0), resolved = openat2_or_openat(4 /* RESOLVE_NO_SYMLINKS */);
    show(same); show(resolved);
    SAY(pwrite(same, "NEW", 3, 0));
    show(fd);
    SAY(syscall(SYS_openat2, AT_FDCWD, "numbers.managed", NULL, 24L));
    SAY(close(same)); SAY(close(resolved));
    struct timespec times[2] = {{1000000000, 5}, {1000000001, 6}};
    struct stat status;
    SAY(syscall(SYS_utimensat, AT_FDCWD, "numbers.managed", times, 0));
    SAY(fstat(fd, &status)); SAY(status.st_mtim.tv_sec); SAY(status.st_mtim.tv_nsec);
    SAY(pwrite(fd, "n", 1, 0));
    times[1].tv_nsec = 7;
    SAY(syscall(SYS_utimensat, fd, NULL, times, 0));
    SAY(fstat(fd, &status)); SAY(status.st_mtim.tv_sec); SAY(status.st_mtim.tv_nsec);
    SAY(syscall(SYS_utimensat, fd, NULL, times, AT_SYMLINK_NOFOLLOW));
#ifdef SYS_creat
    int emptied = syscall(SYS_creat, "numbers.managed", 0644);
#else
    int emptied = creat("numbers.managed", 0644);
#endif
    show(fd);
    SAY(write(emptied, "anew", 4));
    show(fd);
    SAY(syscall(SYS_close_range, emptied, emptied, 0));
    SAY(close(emptied));
    fflush(stdout);
    int kept = dup(1);
    SAY(ftruncate(fd, 0));
    fflush(stdout);
    SAY(syscall(SYS_dup3, fd, 1, 0));
    fflush(stdout);
    SAY(syscall(SYS_dup3, kept, 1, 0));
    fflush(stdout);
    show(fd);
    fflush(stdout);
    close(1);
    SAY(syscall(SYS_fcntl, fd, F_DUPFD, 1));
    fflush(stdout);
#ifdef SYS_dup2
    SAY(syscall(SYS_dup2, kept, 1));
#else
    SAY(dup2(kept, 1));
#endif
    fflush(stdout);
    show(fd);
    SAY(syscall(SYS_dup3, fd, fd, 0));
    SAY(close(kept));
    SAY(close(fd));
}
