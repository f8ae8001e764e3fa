/* Part of calls.c: what other calls of the C library know of files, and how it is told of programs. */
/* What walks over directories find: lengths of which the kernel knows nothing yet. */
static int found(const char *path, const struct stat *status, int kind, struct FTW *place) {
    if (strcmp(path + place->base, "walked.managed") == 0) printf("   nftw %d: %ld\n", kind, (long)status->st_size);
    return 0;
}
static int simply_found(const char *path, const struct stat *status, int kind) {
    if (strcmp(path, "./walked.managed") != 0) return 0;
    printf("   ftw %d: %ld\n", kind, (long)status->st_size);
    return 17;
}

static void walks(void) {
    int fd = open("walked.managed", O_RDWR | O_CREAT | O_TRUNC, 0644);
    SAY(write(fd, "twelve bytes, and more", 22)); SAY(fsync(fd)); SAY(ftruncate(fd, 12));
    SAY(nftw(".", found, 10, FTW_PHYS));
    SAY(ftw(".", simply_found, 10));
    char *roots[] = {"walked.managed", NULL};
    FTS *walk = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    FTSENT *entry = fts_read(walk);
    printf("   fts %d: %ld\n", entry->fts_info, (long)entry->fts_statp->st_size);
    SAY(fts_close(walk));
    char *here[] = {".", NULL};
    walk = fts_open(here, FTS_PHYSICAL, NULL);
    SAY(fts_read(walk) != NULL);
    for (entry = fts_children(walk, 0); entry; entry = entry->fts_link)
        if (strcmp(entry->fts_name, "walked.managed") == 0) printf("   fts: %ld\n", (long)entry->fts_statp->st_size);
    SAY(fts_close(walk));
    SAY(fdopendir(fd) == NULL);
    SAY(close(fd));
}

#if defined __x86_64__ && defined PLAIN
/* Old programs have it from the C library. */
extern long old_llseek(int, long, int);
__asm__(".symver old_llseek, llseek@GLIBC_2.2.5");
#else
#define old_llseek lseek
#endif

/* What is counted from an end, or to it, that the kernel does not know yet. */
static void ends_of_files(void) {
    int fd = open("ends.managed", O_RDWR | O_CREAT | O_TRUNC, 0644), unread = -1, status;
    SAY(write(fd, "twelve bytes, and more", 22)); SAY(fsync(fd)); SAY(ftruncate(fd, 12));
    SAY(lseek(fd, 5, SEEK_SET));
    SAY(ioctl(fd, FIONREAD, &unread)); SAY(unread);
    SAY(ioctl(fd, FIONREAD, (int *)8));
    SAY(syscall(SYS_ioctl, fd, FIONREAD, &unread)); SAY(unread);
    SAY(old_llseek(fd, -2, SEEK_END));
    SAY(read(fd, (char[8]){0}, 8));
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_END, .l_start = -4, .l_len = 2};
    SAY(fcntl(fd, F_SETLK, &lock)); SAY(lock.l_whence); SAY(lock.l_start);
    SAY(fcntl(fd, F_SETLK, (struct flock *)8));
    SAY(fsync(fd));
    fflush(stdout);
    if (fork() == 0) {
        struct flock other = {.l_type = F_WRLCK, .l_whence = SEEK_END, .l_start = -12, .l_len = 0};
        SAY(fcntl(fd, F_GETLK, &other));
        SAY(other.l_type); SAY(other.l_whence); SAY(other.l_start); SAY(other.l_len);
        other = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_END, .l_start = -2, .l_len = 2};
        SAY(fcntl(fd, F_GETLK, &other));
        SAY(other.l_type); SAY(other.l_whence); SAY(other.l_start); SAY(other.l_len);
        other.l_type = F_WRLCK;
        other.l_start = -13;
        SAY(fcntl(fd, F_SETLK, &other));
        fflush(stdout);
        _exit(0);
    }
    wait(&status);
    SAY(pwrite(fd, "more", 4, 12));
    lock = (struct flock){.l_type = F_UNLCK, .l_whence = SEEK_END, .l_start = -8, .l_len = 2};
    SAY(fcntl(fd, F_SETLK, &lock));
    fflush(stdout);
    if (fork() == 0) {
        struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        SAY(fcntl(fd, F_GETLK, &all)); SAY(all.l_type);
        fflush(stdout);
        _exit(0);
    }
    wait(&status);
    struct timeval times[2] = {{1000000000, 5}, {1000000001, 6}};
    struct stat now;
    SAY(lutimes("ends.managed", times));
    SAY(fstat(fd, &now)); SAY(now.st_mtim.tv_sec);
    SAY(close(fd));
    SAY(stat("ends.managed", &now)); SAY(now.st_mtim.tv_sec); SAY(now.st_mtim.tv_nsec);
}

/* Arguments that stand in registers, and those that do not. */
static void lists_of_arguments(void) {
    char *word[] = {"WORD=given", NULL};
    fflush(stdout);
    if (fork() == 0) execl("/bin/echo", "echo", "1", "2", "3", "4", "5", "6", "7", "8", "9", NULL);
    wait(NULL);
    if (fork() == 0) execlp("echo", "echo", "1", "2", "3", NULL);
    wait(NULL);
    if (fork() == 0) execle("/bin/sh", "sh", "-c", "echo $WORD $1 $2 $3 $4", "sh", "1", "2", "3", "4", NULL, word);
    wait(NULL);
    if (fork() == 0) execl("/bin/sh", "sh", NULL);
    wait(NULL);
#define TEN(word) word, word, word, word, word, word, word, word, word, word
    if (fork() == 0)
        execl("/bin/echo", "echo", TEN("a"), TEN("b"), TEN("c"), TEN("d"), TEN("e"), TEN("f"), TEN("g"), TEN("h"),
              TEN("i"), TEN("j"), TEN("k"), TEN("l"), TEN("m"), TEN("n"), NULL);
    wait(NULL);
    SAY(execl("/none", "none", NULL));
    SAY(execlp("there is no such program", "none", NULL));
    SAY(execle("/", "none", NULL, word));
}
