/* Lists directories and attributes by every call that does so, while untorn has a sidecar and a mark there, and
   removes directories whose files are open still. With an argument: what is there all the same, and what the mark's
   name is told. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <ftw.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

static char *found[64];
static int count;

static void note(const char *name) { found[count++] = strdup(name); }

static int order(const void *a, const void *b) { return strcmp(*(char **)a, *(char **)b); }

static void tell(const char *call) {
    qsort(found, count, sizeof *found, order);
    printf("%s:", call);
    for (int i = 0; i < count; i++) { printf(" %s", found[i]); free(found[i]); }
    printf("\n");
    count = 0;
}

static void said(const char *what, long result) {
    printf("%s: %ld %s\n", what, result, result < 0 ? strerrorname_np(errno) : "");
}

/* A managed file with an open epoch, and so with a sidecar. */
static int make(const char *directory) {
    char path[64];
    if (mkdir(directory, 0755) != 0) perror("mkdir");
    snprintf(path, sizeof path, "%s/a.managed", directory);
    int fd = open(path, O_RDWR | O_CREAT, 0644);
    if (write(fd, "first", 5) != 5) perror("write");
    return fd;
}

static void read_all(void) {
    DIR *directory = opendir("d");
    struct dirent *entry;
    while ((entry = readdir(directory))) note(entry->d_name);
    tell("readdir");
    /* Each position leads to the entry that was found there. */
    rewinddir(directory);
    long at = telldir(directory);
    int wrong = 0;
    while ((entry = readdir(directory))) {
        char name[256];
        strcpy(name, entry->d_name);
        long next = telldir(directory);
        seekdir(directory, at);
        entry = readdir(directory);
        wrong += !entry || strcmp(name, entry->d_name) != 0;
        seekdir(directory, next);
        at = next;
    }
    printf("positions: %d wrong\n", wrong);
    rewinddir(directory);
    struct dirent64 *larger;
    while ((larger = readdir64(directory))) note(larger->d_name);
    tell("readdir64");
    rewinddir(directory);
    struct dirent one, *filled;
    while (readdir_r(directory, &one, &filled) == 0 && filled) note(one.d_name);
    tell("readdir_r");
    rewinddir(directory);
    struct dirent64 large, *large_filled;
    while (readdir64_r(directory, &large, &large_filled) == 0 && large_filled) note(large.d_name);
    tell("readdir64_r");
    closedir(directory);
}

static int not_dots(const struct dirent *entry) { return strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."); }

/* Scans another directory from within a scan. */
static int nested(const struct dirent *entry) {
    struct dirent **list;
    int inner = scandir("d/sub", &list, not_dots, alphasort);
    for (int i = 0; i < inner; i++) free(list[i]);
    return inner == 1 && not_dots(entry);
}

static void scan(const char *call, int result, struct dirent **list) {
    for (int i = 0; i < result; i++) { note(list[i]->d_name); free(list[i]); }
    if (result >= 0) free(list);
    tell(call);
}

static void scan_all(void) {
    struct dirent **list;
    struct dirent64 **large;
    int result = scandir("d", &list, NULL, alphasort);
    scan("scandir", result, list);
    result = scandir("d", &list, not_dots, alphasort);
    scan("scandir, filtered", result, list);
    result = scandir("d", &list, nested, NULL);
    scan("scandir, nested", result, list);
    result = scandir64("d", &large, NULL, alphasort64);
    scan("scandir64", result, (struct dirent **)large);
    result = scandirat(AT_FDCWD, "d", &list, NULL, alphasort);
    scan("scandirat", result, list);
    result = scandirat64(AT_FDCWD, "d", &large, NULL, alphasort64);
    scan("scandirat64", result, (struct dirent **)large);
    said("scandir of nothing", scandir("nothing", &list, NULL, NULL));
}

static void entries(const char *call, int by_number, size_t size) {
    char buffer[4096];
    int fd = open("d", O_RDONLY | O_DIRECTORY);
    long len;
    while ((len = by_number ? syscall(by_number, fd, buffer, size) : getdents64(fd, buffer, size)) > 0)
        for (long at = 0; at < len; at += *(unsigned short *)(buffer + at + 16))
            note(buffer + at + 18 + (by_number == SYS_getdents64 || !by_number));
    if (len < 0) perror(call);
    close(fd);
    tell(call);
}

static int simple(const char *path, const struct stat *status, int kind) { return note(path), 0; }
static int each(const char *path, const struct stat *status, int kind, struct FTW *place) { return note(path), 0; }
static int by_name(const FTSENT **a, const FTSENT **b) { return strcmp((*a)->fts_name, (*b)->fts_name); }

static void walk(char *root, int options, int children) {
    char *roots[] = {root, NULL};
    FTS *walk = fts_open(roots, options, by_name);
    FTSENT *entry, *child;
    while ((entry = fts_read(walk))) {
        note(entry->fts_path);
        if (children && entry->fts_info == FTS_D)
            for (child = fts_children(walk, children == 2 ? FTS_NAMEONLY : 0); child; child = child->fts_link)
                /* Of names only nobody can say which are directories. */
                if (children == 1 || strcmp(child->fts_name, ".untorn") != 0) note(child->fts_name);
    }
    fts_close(walk);
    tell("fts");
}

static void walk_all(void) {
    said("ftw", ftw("d", simple, 8));
    tell("ftw");
    said("nftw", nftw("d//", each, 8, FTW_PHYS));
    tell("nftw");
    said("nftw64", nftw64("./d", (__nftw64_func_t)each, 8, FTW_DEPTH | FTW_CHDIR | FTW_ACTIONRETVAL));
    tell("nftw64, the other way round");
    for (int children = 0; children < 3; children++) {
        walk("d", FTS_PHYSICAL | FTS_NOCHDIR, children);
        walk(".", FTS_LOGICAL | FTS_NOSTAT, children);
    }
    glob_t all;
    if (glob("d/*", 0, NULL, &all) != 0) perror("glob");
    for (size_t i = 0; i < all.gl_pathc; i++) note(all.gl_pathv[i]);
    globfree(&all);
    tell("glob");
}

static void names(const char *call, long len, char *list) {
    if (len < 0) { said(call, len); return; }
    for (char *name = list; name < list + len; name += strlen(name) + 1) note(name);
    printf("%ld ", len);
    tell(call);
}

static void list_all(const char *path, int fd) {
    char list[1024], value[64];
    for (int i = 0; i < 6; i++) {
        size_t size = (size_t[]){0, 1, 11, 12, 23, 1024}[i];
        printf("%zu bytes\n", size);
        memset(list, '?', sizeof list);
        long len = listxattr(path, list, size);
        names("listxattr", size || len < 0 ? len : (printf("%ld ", len), 0), list);
        len = llistxattr(path, list, size);
        names("llistxattr", size || len < 0 ? len : (printf("%ld ", len), 0), list);
        len = flistxattr(fd, list, size);
        names("flistxattr", size || len < 0 ? len : (printf("%ld ", len), 0), list);
        len = syscall(SYS_flistxattr, fd, list, size);
        names("by number", size || len < 0 ? len : (printf("%ld ", len), 0), list);
    }
    said("nowhere", listxattr("nothing", list, sizeof list));
    said("no memory", flistxattr(fd, (char *)8, 11));
    said("getxattr", getxattr(path, "user.untorn", value, sizeof value));
    said("lgetxattr", lgetxattr(path, "user.untorn", NULL, 0));
    said("fgetxattr", fgetxattr(fd, "user.untorn", value, sizeof value));
    said("getxattr of nothing", getxattr("nothing", "user.untorn", value, sizeof value));
    said("by number", syscall(SYS_fgetxattr, fd, "user.untorn", value, sizeof value));
    said("another", getxattr(path, "user.other", value, sizeof value));
}

static int with_rmdir(const char *path) { return rmdir(path); }
static int with_unlinkat(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
static int with_remove(const char *path) { return remove(path); }
static int by_number(const char *path) { return syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR); }
static int with_rename(const char *path) {
    if (mkdir("other", 0755) != 0 || rename("other", path) != 0) return -1;
    return rmdir(path);
}

/* What is open goes on after its directory went. */
static void goes_on(int fd) {
    char bytes[16] = "";
    said("write", pwrite(fd, "second", 6, 5));
    said("fsync", fsync(fd));
    said("read", pread(fd, bytes, sizeof bytes, 0));
    struct stat status;
    fstat(fd, &status);
    printf("%s, %ld bytes, %d names; close: %d\n", bytes, (long)status.st_size, (int)status.st_nlink, close(fd));
}

static void remove_all(void) {
    int (*ways[])(const char *) = {with_rmdir, with_unlinkat, with_remove, by_number, with_rename};
    for (int way = 0; way < 5; way++) {
        int fd = make("r"), other = open("r/b.managed", O_RDWR | O_CREAT, 0644);
        write(other, "b", 1);
        said("not empty", ways[way]("r"));
        rmdir("other");
        said("put over", rename("r/b.managed", "r/a.managed"));
        said("not empty", ways[way]("r"));
        rmdir("other");
        said("unlink", unlink("r/a.managed"));
        said("remove", ways[way]("r"));
        goes_on(fd);
        goes_on(other);
    }
    /* The directory is another one's name by then. */
    int fd = make("r");
    said("fsync", fsync(fd));
    said("rename", rename("r", "moved"));
    said("remove", remove("moved/a.managed"));
    said("rmdir", rmdir("moved"));
    goes_on(fd);
}

static void unseen(int fd) {
    char value[64];
    said("sidecars", access("d/.untorn", F_OK));
    said("setxattr", setxattr("d/a.managed", "user.untorn", "1234567890123456", 16, 0));
    said("lsetxattr", lsetxattr("d/a.managed", "user.untorn", "1234567890123456", 16, 0));
    said("fsetxattr", fsetxattr(fd, "user.untorn", "1234567890123456", 16, 0));
    said("by number", syscall(SYS_fsetxattr, fd, "user.untorn", "1234567890123456", 16, 0));
    said("removexattr", removexattr("d/a.managed", "user.untorn"));
    said("lremovexattr", lremovexattr("d/a.managed", "user.untorn"));
    said("fremovexattr", fremovexattr(fd, "user.untorn"));
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IONBF, 0);
    int fd = make("d");
    if (argc > 1) { unseen(fd); return 0; }
    mkdir("d/sub", 0755);
    read_all();
    scan_all();
    entries("getdents64", 0, 4096);
    entries("by number", SYS_getdents64, 4096);
    entries("one at a time", SYS_getdents64, 32);
#ifdef SYS_getdents
    entries("the old one", SYS_getdents, 4096);
    entries("the old one, one at a time", SYS_getdents, 32);
#endif
    walk_all();
    list_all("d/a.managed", fd);
    fsetxattr(fd, "user.other", "value", 5, 0);
    list_all("d/a.managed", fd);
    remove_all();
    return 0;
}
