/* Makes one call fail in each run of a workload on the VFS `untorn`, and judges what the run reported and left.
 *
 * faults LIBRARY DIR LEVEL MODE FROM STEP ROLES
 *
 * LEVEL is `vfs`, where the VFS and its files answer with an error, or `system`, where the system calls below it do, or
 * `canary`: as `vfs`, but the workload takes for acknowledged what it only asked for.
 * MODE is a journal mode, `default`, or `attached`: two databases with journals in files, which one transaction changes
 * together. Of the workload's calls every STEP-th fails, from FROM on, in each of the ways in which it can. ROLES is
 * `all`, or `one` to choose one of them for each call: it goes on after the failure; it ends at the first error; it is
 * killed in place of the call. It prints the violations, and last the counts.
 *
 * Level `system` answers by seccomp(2) and SIGSYS. The handler's own calls pass, because they come from one address.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sqlite3.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

/* Transactions of a workload, and the last number if the failure comes so late that more are needed. */
enum { TRANSACTIONS = 7, LAST = 9, MOST_CALLS = 1 << 20, SECONDS = 60 };

enum fate { NOT_TRIED, ROLLED_BACK, IN_DOUBT, ACKNOWLEDGED };

/* What the processes of a case share. */
static struct shared {
    long count, target;
    int way, armed, met, told;
    enum role { GOES_ON, ENDS, IS_KILLED } role;
    enum fate fates[LAST + 1];
    char complaint[400];
    unsigned char kinds[MOST_CALLS];
} *shared;

enum kind {
    READ, WRITE, TRUNCATE, SYNC, SIZE, LOCK, UNLOCK, RESERVED, CONTROL, MAP, SHARE, OPEN, DELETE, ACCESS, CLOSE,
    SYS_OPENS, SYS_READS, SYS_WRITES, SYS_SYNCS, SYS_LENGTHS, SYS_NAMES, SYS_ATTRIBUTES, SYS_LOCKS, SYS_STATS, SYS_MAPS,
};

static const struct {
    const char *name;
    int ways;
} KINDS[] = {
    [READ] = {"xRead", 1}, [WRITE] = {"xWrite", 3}, [TRUNCATE] = {"xTruncate", 2}, [SYNC] = {"xSync", 2},
    [SIZE] = {"xFileSize", 1}, [LOCK] = {"xLock", 2}, [UNLOCK] = {"xUnlock", 1}, [RESERVED] = {"xCheckReservedLock", 1},
    [CONTROL] = {"xFileControl", 2}, [MAP] = {"xShmMap", 1}, [SHARE] = {"xShmLock", 1}, [OPEN] = {"xOpen", 1},
    [DELETE] = {"xDelete", 2}, [ACCESS] = {"xAccess", 1}, [CLOSE] = {"xClose", 1},
    [SYS_OPENS] = {"open", 3}, [SYS_READS] = {"read", 2}, [SYS_WRITES] = {"write", 3}, [SYS_SYNCS] = {"fsync", 1},
    [SYS_LENGTHS] = {"ftruncate", 2}, [SYS_NAMES] = {"rename", 2}, [SYS_ATTRIBUTES] = {"setxattr", 2},
    [SYS_LOCKS] = {"fcntl", 1}, [SYS_STATS] = {"fstat", 1}, [SYS_MAPS] = {"mmap", 1},
};

/* The way in which this call is to fail, or -1. */
static int meets(enum kind kind) {
    if (!shared->armed) return -1;
    long number = __atomic_add_fetch(&shared->count, 1, __ATOMIC_RELAXED);
    if (shared->target == 0 && number <= MOST_CALLS) shared->kinds[number - 1] = kind;
    if (number != shared->target || shared->way >= KINDS[kind].ways) return -1;
    shared->met = 1;
    if (shared->role == IS_KILLED) raise(SIGKILL);
    return shared->way;
}

/* Level `vfs`: the methods are replaced where they stand, for the VFS knows its files by their methods' address. */

static struct table {
    const sqlite3_io_methods *at;
    sqlite3_io_methods was;
} tables[8];

static const sqlite3_io_methods *was(sqlite3_file *file) {
    for (struct table *table = tables; table->at; table++)
        if (table->at == file->pMethods) return &table->was;
    abort();
}

static int fails_read(sqlite3_file *file, void *bytes, int len, sqlite3_int64 offset) {
    return meets(READ) < 0 ? was(file)->xRead(file, bytes, len, offset) : SQLITE_IOERR_READ;
}
static int fails_write(sqlite3_file *file, const void *bytes, int len, sqlite3_int64 offset) {
    switch (meets(WRITE)) {
    case 0: return SQLITE_IOERR_WRITE;
    case 1: return SQLITE_FULL;
    case 2: was(file)->xWrite(file, bytes, len / 2, offset); return SQLITE_IOERR_WRITE;
    default: return was(file)->xWrite(file, bytes, len, offset);
    }
}
/* One way fails before the call did anything, the other one after it did everything. */
#define BEFORE_OR_AFTER(kind, call, error)     \
    int way = meets(kind);                     \
    if (way == 0) return error;                \
    int code = call;                           \
    return way < 0 || code ? code : error
static int fails_truncate(sqlite3_file *file, sqlite3_int64 len) {
    BEFORE_OR_AFTER(TRUNCATE, was(file)->xTruncate(file, len), SQLITE_IOERR_TRUNCATE);
}
static int fails_sync(sqlite3_file *file, int flags) {
    BEFORE_OR_AFTER(SYNC, was(file)->xSync(file, flags), SQLITE_IOERR_FSYNC);
}
static int fails_size(sqlite3_file *file, sqlite3_int64 *len) {
    return meets(SIZE) < 0 ? was(file)->xFileSize(file, len) : SQLITE_IOERR_FSTAT;
}
static int fails_lock(sqlite3_file *file, int level) {
    switch (meets(LOCK)) {
    case 0: return SQLITE_BUSY;
    case 1: return SQLITE_IOERR_LOCK;
    default: return was(file)->xLock(file, level);
    }
}
static int fails_unlock(sqlite3_file *file, int level) {
    int way = meets(UNLOCK), code = was(file)->xUnlock(file, level);
    return way < 0 ? code : SQLITE_IOERR_UNLOCK;
}
static int fails_reserved(sqlite3_file *file, int *found) {
    return meets(RESERVED) < 0 ? was(file)->xCheckReservedLock(file, found) : SQLITE_IOERR_CHECKRESERVEDLOCK;
}
static int fails_control(sqlite3_file *file, int code_of, void *argument) {
    switch (code_of) {
    case SQLITE_FCNTL_SYNC:
    case SQLITE_FCNTL_COMMIT_PHASETWO:
    case SQLITE_FCNTL_BEGIN_ATOMIC_WRITE:
    case SQLITE_FCNTL_COMMIT_ATOMIC_WRITE: {
        BEFORE_OR_AFTER(CONTROL, was(file)->xFileControl(file, code_of, argument), SQLITE_IOERR);
    }
    default: return was(file)->xFileControl(file, code_of, argument);
    }
}
static int fails_map(sqlite3_file *file, int region, int size, int extend, void volatile **place) {
    return meets(MAP) < 0 ? was(file)->xShmMap(file, region, size, extend, place) : SQLITE_IOERR_SHMMAP;
}
static int fails_share(sqlite3_file *file, int offset, int count, int flags) {
    if (flags & SQLITE_SHM_LOCK && meets(SHARE) >= 0) return SQLITE_BUSY;
    return was(file)->xShmLock(file, offset, count, flags);
}
/* SQLite takes a file for closed whatever this returns. */
static int fails_close(sqlite3_file *file) {
    int way = meets(CLOSE), code = was(file)->xClose(file);
    return way < 0 ? code : SQLITE_IOERR_CLOSE;
}

static void replace(const sqlite3_io_methods *methods) {
    struct table *table = tables;
    for (; table->at; table++)
        if (table->at == methods) return;
    *table = (struct table){methods, *methods};
    uintptr_t page = sysconf(_SC_PAGESIZE), from = (uintptr_t)methods & -page;
    if (mprotect((void *)from, (uintptr_t)(methods + 1) - from, PROT_READ | PROT_WRITE)) abort();
    sqlite3_io_methods *at = (sqlite3_io_methods *)methods;
    at->xRead = fails_read, at->xWrite = fails_write, at->xTruncate = fails_truncate, at->xSync = fails_sync;
    at->xFileSize = fails_size, at->xLock = fails_lock, at->xUnlock = fails_unlock, at->xClose = fails_close;
    at->xCheckReservedLock = fails_reserved, at->xFileControl = fails_control;
    if (at->iVersion > 1) at->xShmMap = fails_map, at->xShmLock = fails_share;
}

static sqlite3_vfs vfs_was;

static int fails_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *file, int flags, int *given) {
    file->pMethods = NULL;
    if (meets(OPEN) >= 0) return SQLITE_CANTOPEN;
    int code = vfs_was.xOpen(vfs, name, file, flags, given);
    if (file->pMethods) replace(file->pMethods);
    return code;
}
static int fails_delete(sqlite3_vfs *vfs, const char *name, int sync) {
    BEFORE_OR_AFTER(DELETE, vfs_was.xDelete(vfs, name, sync), SQLITE_IOERR_DELETE);
}
static int fails_access(sqlite3_vfs *vfs, const char *name, int flags, int *found) {
    return meets(ACCESS) < 0 ? vfs_was.xAccess(vfs, name, flags, found) : SQLITE_IOERR_ACCESS;
}

static void fail_above(void) {
    sqlite3_vfs *vfs = sqlite3_vfs_find("untorn");
    vfs_was = *vfs;
    vfs->xOpen = fails_open, vfs->xDelete = fails_delete, vfs->xAccess = fails_access;
}

/* Level `system`. */

long raw(long number, long a, long b, long c, long d, long e, long f);
extern const char raw_end[];
__asm__(".text\n.globl raw\nraw:\n\tmov %rdi, %rax\n\tmov %rsi, %rdi\n\tmov %rdx, %rsi\n\tmov %rcx, %rdx\n"
        "\tmov %r8, %r10\n\tmov %r9, %r8\n\tmov 8(%rsp), %r9\n\tsyscall\n.globl raw_end\nraw_end:\n\tret\n");

static const struct {
    int number;
    enum kind kind;
} CALLS[] = {
    {SYS_openat, SYS_OPENS}, {SYS_open, SYS_OPENS}, {SYS_read, SYS_READS}, {SYS_pread64, SYS_READS},
    {SYS_preadv, SYS_READS}, {SYS_write, SYS_WRITES}, {SYS_pwrite64, SYS_WRITES}, {SYS_pwritev, SYS_WRITES},
    {SYS_fsync, SYS_SYNCS}, {SYS_fdatasync, SYS_SYNCS}, {SYS_msync, SYS_SYNCS}, {SYS_ftruncate, SYS_LENGTHS},
    {SYS_fallocate, SYS_LENGTHS}, {SYS_mkdir, SYS_NAMES}, {SYS_mkdirat, SYS_NAMES}, {SYS_rename, SYS_NAMES},
    {SYS_renameat, SYS_NAMES}, {SYS_renameat2, SYS_NAMES}, {SYS_link, SYS_NAMES}, {SYS_linkat, SYS_NAMES},
    {SYS_unlink, SYS_NAMES}, {SYS_unlinkat, SYS_NAMES}, {SYS_rmdir, SYS_NAMES}, {SYS_setxattr, SYS_ATTRIBUTES},
    {SYS_fsetxattr, SYS_ATTRIBUTES}, {SYS_getxattr, SYS_ATTRIBUTES}, {SYS_fgetxattr, SYS_ATTRIBUTES},
    {SYS_removexattr, SYS_ATTRIBUTES}, {SYS_fremovexattr, SYS_ATTRIBUTES}, {SYS_fcntl, SYS_LOCKS},
    {SYS_fstat, SYS_STATS}, {SYS_newfstatat, SYS_STATS}, {SYS_statx, SYS_STATS}, {SYS_mmap, SYS_MAPS},
};
enum { CALL_COUNT = sizeof CALLS / sizeof *CALLS };

static int is_event(int descriptor) {
    static const char EVENT[] = "anon_inode:[eventfd]";
    char name[40], text[sizeof EVENT - 1];
    snprintf(name, sizeof name, "/proc/self/fd/%d", descriptor);
    long len = raw(SYS_readlink, (long)name, (long)text, sizeof text, 0, 0, 0);
    return len == sizeof text && memcmp(text, EVENT, sizeof text) == 0;
}

/* Whether a call is one that a disk, a file system or a limit can let fail. */
static int applies(enum kind kind, const greg_t *registers) {
    if (kind == SYS_READS || kind == SYS_WRITES) return !is_event(registers[REG_RDI]);
    if (kind == SYS_MAPS) return (int)registers[REG_R8] >= 0;
    if (kind != SYS_LOCKS) return 1;
    int command = registers[REG_RSI];
    int locks = command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK || command == F_OFD_SETLKW;
    return locks && ((struct flock *)registers[REG_RDX])->l_type != F_UNLCK;
}

static void on_call(int signal, siginfo_t *info, void *context) {
    (void)signal;
    int saved = errno, number = info->si_syscall, way = -1;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    enum kind kind = SYS_OPENS;
    for (int at = 0; at < CALL_COUNT; at++)
        if (CALLS[at].number == number) kind = CALLS[at].kind;
    if (applies(kind, registers)) way = meets(kind);
    long len = registers[REG_RDX], answer = 0;
    if (way >= 0) {
        static const int ERRNOS[][3] = {
            [SYS_OPENS] = {EIO, EMFILE, ENOSPC}, [SYS_READS] = {EIO, 0}, [SYS_WRITES] = {EIO, ENOSPC, 0},
            [SYS_SYNCS] = {EIO}, [SYS_LENGTHS] = {EIO, ENOSPC}, [SYS_NAMES] = {EIO, ENOSPC},
            [SYS_ATTRIBUTES] = {EIO, ENOSPC}, [SYS_LOCKS] = {ENOLCK}, [SYS_STATS] = {EIO}, [SYS_MAPS] = {ENOMEM},
        };
        answer = -ERRNOS[kind][way];
        /* A call that transfers one part of a vector would need another vector, so only plain ones are short. */
        if (answer == 0 && number != SYS_preadv && number != SYS_pwritev && len > 1) len /= 2;
    }
    if (answer == 0)
        answer = raw(number, registers[REG_RDI], registers[REG_RSI], len, registers[REG_R10], registers[REG_R8],
                     registers[REG_R9]);
    registers[REG_RAX] = answer;
    errno = saved;
}

static void fail_below(void) {
    struct sigaction action = {.sa_sigaction = on_call, .sa_flags = SA_SIGINFO | SA_NODEFER};
    if (sigaction(SIGSYS, &action, NULL)) abort();
    struct sock_filter filter[CALL_COUNT + 10];
    int at = 0;
    uint64_t pass = (uintptr_t)raw_end;
#define LOAD(field) filter[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, field)
#define UNLESS(value, skip) filter[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skip)
#define RETURN(value) filter[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, value)
    LOAD(offsetof(struct seccomp_data, instruction_pointer));
    UNLESS((uint32_t)pass, 3);
    LOAD(offsetof(struct seccomp_data, instruction_pointer) + 4);
    UNLESS((uint32_t)(pass >> 32), 1);
    RETURN(SECCOMP_RET_ALLOW);
    LOAD(offsetof(struct seccomp_data, nr));
    for (int call = 0; call < CALL_COUNT; call++)
        filter[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, CALLS[call].number,
                                                    CALL_COUNT - call + 2, 0);
    /* With io_uring the flushes would be no calls of their own. */
    UNLESS(SYS_io_uring_setup, 1);
    RETURN(SECCOMP_RET_ERRNO | ENOSYS);
    RETURN(SECCOMP_RET_ALLOW);
    RETURN(SECCOMP_RET_TRAP);
    struct sock_fprog program = {at, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) _exit(69);
}

/* The workload. */

static char path[4096], uri[sizeof path + 20], attach[sizeof path + 200];
static const char *mode;
static int attached, lies;

static void complain(const char *what, const char *detail) {
    if (!shared->complaint[0]) snprintf(shared->complaint, sizeof shared->complaint, "%s: %s", what, detail);
}

static int number_of(sqlite3 *db, const char *text, sqlite3_int64 *number) {
    sqlite3_stmt *statement;
    int code = sqlite3_prepare_v2(db, text, -1, &statement, NULL);
    if (code == SQLITE_OK && (code = sqlite3_step(statement)) == SQLITE_ROW) {
        *number = sqlite3_column_int64(statement, 0);
        code = SQLITE_OK;
    }
    int end = sqlite3_finalize(statement);
    return code ? code : end;
}

static int run(sqlite3 *db, const char *text) {
    return sqlite3_exec(db, text, NULL, NULL, NULL);
}

static int connect_to(sqlite3 **db, const char *name) {
    int code = sqlite3_open_v2(name, db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_URI, NULL);
    if (code == SQLITE_OK) code = sqlite3_busy_timeout(*db, 1000);
    if (code == SQLITE_OK && name == uri && attached) {
        code = run(*db, attach);
    } else if (code == SQLITE_OK && name == uri && strcmp(mode, "default") != 0) {
        char text[100];
        snprintf(text, sizeof text, "PRAGMA journal_mode = %s", mode);
        code = run(*db, text);
    }
    if (code == SQLITE_OK) code = run(*db, "PRAGMA cache_size = 3; PRAGMA wal_autocheckpoint = 4");
    if (code) sqlite3_close(*db), *db = NULL;
    return code;
}

static const char *TABLES =
    "CREATE TABLE IF NOT EXISTS item (step, part, filling, PRIMARY KEY (step, part));"
    "CREATE TABLE IF NOT EXISTS done (step INTEGER PRIMARY KEY);"
    "CREATE TABLE IF NOT EXISTS counter (id INTEGER PRIMARY KEY, done); INSERT OR IGNORE INTO counter VALUES (1, 0);";

static const char *SAVEPOINT =
    "SAVEPOINT s; INSERT INTO item VALUES (0, 9, ''); DELETE FROM done; ROLLBACK TO s; RELEASE s;";

/* One transaction. Its fate is in the shared memory before each call that may end it. */
static int transact(sqlite3 *db, int step) {
    char text[1200];
    int code = run(db, "BEGIN IMMEDIATE");
    shared->fates[step] = ROLLED_BACK;
    if (code) return code;
    /* Without a journal SQLite rolls nothing back, only an end of the connection does. */
    int rolls_back = strcmp(mode, "off") != 0;
    snprintf(text, sizeof text,
             "INSERT INTO done VALUES (%d); UPDATE counter SET done = done + 1; DELETE FROM item WHERE step < %d - 2;"
             "INSERT INTO item VALUES (%d, 0, printf('%%0*d', 900, %d)); %s"
             "INSERT INTO item VALUES (%d, 1, printf('%%0*d', 2500, %d));"
             "INSERT INTO item VALUES (%d, 2, printf('%%0*d', 6000, %d));",
             step, step, step, step,
             rolls_back ? SAVEPOINT : "",
             step, step, step, step);
    code = run(db, text);
    if (code == SQLITE_OK && attached) {
        snprintf(text, sizeof text, "INSERT INTO other.also VALUES (%d, printf('%%0*d', 9000, %d))", step, step);
        code = run(db, text);
    }
    if (code == SQLITE_OK && step == 3 && rolls_back) return run(db, "ROLLBACK");
    if (code == SQLITE_OK) {
        shared->fates[step] = lies ? ACKNOWLEDGED : IN_DOUBT;
        code = run(db, "COMMIT");
        if (code == SQLITE_OK) shared->fates[step] = ACKNOWLEDGED;
    }
    /* Most errors have rolled it back already. */
    if (code && !sqlite3_get_autocommit(db)) run(db, "ROLLBACK");
    return code;
}

/* Closes a connection; what another one waits for goes with it. */
static void end(sqlite3 **db) {
    if (*db && sqlite3_close(*db)) complain("a connection does not close", sqlite3_errmsg(*db));
    *db = NULL;
}

static int make(sqlite3 *db) {
    int code = run(db, TABLES);
    if (code || !attached) return code;
    return run(db, "CREATE TABLE IF NOT EXISTS other.also (step INTEGER PRIMARY KEY, filling)");
}

static void work(int unused) {
    (void)unused;
    sqlite3 *db = NULL, *other = NULL;
    int worked = 0;
    for (int step = 0, tries = 0; step <= TRANSACTIONS || (!worked && step <= LAST); step++) {
        int code = SQLITE_OK;
        if (!db) {
            code = connect_to(&db, uri);
            if (code == SQLITE_OK) code = make(db);
        }
        if (code == SQLITE_OK && step > 0) code = transact(db, step);
        if (code == SQLITE_OK && step == 5 && strcmp(mode, "off") != 0) code = run(db, "VACUUM");
        sqlite3_int64 differs = 0;
        int seen = other ? SQLITE_OK : connect_to(&other, uri);
        if (seen == SQLITE_OK && (step > 0 || code == SQLITE_OK))
            seen = number_of(other, "SELECT count(*) - (SELECT done FROM counter) FROM done", &differs);
        if (seen == SQLITE_OK && differs) complain("a reader saw a part of a transaction", "the counter differs");
        if (code || seen) {
            shared->told = 1;
            if (shared->role == ENDS) _exit(0);
            worked = 0;
            /* Only a new connection gets over the failure of a file. */
            end(&db), end(&other);
            if (step == 0 && tries++ < 3) step--;
        } else {
            worked = 1;
        }
    }
    if (!worked) complain("the failure did not pass", db ? sqlite3_errmsg(db) : "no connection");
    end(&other), end(&db);
}

static int integrity(sqlite3 *db) {
    sqlite3_stmt *statement;
    int whole = sqlite3_prepare_v2(db, "PRAGMA integrity_check", -1, &statement, NULL) == SQLITE_OK
        && sqlite3_step(statement) == SQLITE_ROW;
    const char *said = whole ? (const char *)sqlite3_column_text(statement, 0) : sqlite3_errmsg(db);
    whole = whole && strcmp(said, "ok") == 0;
    if (!whole) complain("integrity_check", said);
    sqlite3_finalize(statement);
    return whole;
}

static void judge(void) {
    sqlite3 *db = NULL;
    int code = connect_to(&db, uri);
    if (code == SQLITE_OK) code = make(db);
    if (code) return complain("the database does not open", db ? sqlite3_errmsg(db) : sqlite3_errstr(code));
    if (!integrity(db)) return;
    sqlite3_int64 last = 0, wrong = 0;
    for (int step = 1; step <= LAST; step++) {
        char text[100];
        sqlite3_int64 there = 0;
        snprintf(text, sizeof text, "SELECT count(*) FROM done WHERE step = %d", step);
        if (number_of(db, text, &there)) return complain("the database cannot be read", sqlite3_errmsg(db));
        snprintf(text, sizeof text, "transaction %d", step);
        if (there && shared->fates[step] < IN_DOUBT) complain("it was rolled back, and is there", text);
        if (!there && shared->fates[step] == ACKNOWLEDGED) complain("it was acknowledged, and is lost", text);
        if (there) last = step;
    }
    char text[500];
    snprintf(text, sizeof text,
             "SELECT (SELECT count(*) FROM done) <> (SELECT done FROM counter) OR EXISTS (SELECT * FROM item WHERE "
             "part > 2 OR step < %d - 2 OR step NOT IN (SELECT step FROM done) OR filling <> printf('%%0*d', "
             "CASE part WHEN 0 THEN 900 WHEN 1 THEN 2500 ELSE 6000 END, step)) "
             "OR (SELECT count(*) FROM item) <> 3 * (SELECT count(*) FROM done WHERE step >= %d - 2)",
             (int)last, (int)last);
    if (number_of(db, text, &wrong) || wrong) return complain("a transaction is half there", sqlite3_errmsg(db));
    const char *apart = "SELECT EXISTS (SELECT step FROM done EXCEPT SELECT step FROM other.also) "
                        "OR EXISTS (SELECT step FROM other.also EXCEPT SELECT step FROM done)";
    if (attached && (number_of(db, apart, &wrong) || wrong))
        return complain("two databases are apart", sqlite3_errmsg(db));
    if ((code = run(db, "INSERT INTO done VALUES (100)"))) return complain("no commit works", sqlite3_errmsg(db));
    end(&db);
    if ((code = connect_to(&db, path))) return complain("a stock SQLite does not open it", sqlite3_errstr(code));
    integrity(db);
    end(&db);
    char journal[4200];
    snprintf(journal, sizeof journal, "%s-journal", path);
    struct stat found;
    if (stat(journal, &found) == 0 && S_ISDIR(found.st_mode))
        complain("the journal's name is still a directory", journal);
}

static const char *library;

static void load(void) {
    sqlite3 *db;
    char *message = NULL;
    if (sqlite3_open(":memory:", &db) || sqlite3_enable_load_extension(db, 1)
        || sqlite3_load_extension(db, library, NULL, &message)) {
        fprintf(stderr, "%s\n", message ? message : sqlite3_errmsg(db));
        _exit(74);
    }
    sqlite3_close(db);
}

static void in_a_child(void (*act)(int), int argument, void (*before)(void), const char *what) {
    pid_t child = fork();
    if (child == 0) {
        alarm(SECONDS);
        load();
        if (before) before();
        shared->armed = before != NULL;
        act(argument);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    shared->armed = 0;
    char detail[40];
    int by = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    snprintf(detail, sizeof detail, by ? "signal %d" : "exit %d", by ? by : WEXITSTATUS(status));
    if (by == SIGKILL && shared->role == IS_KILLED && shared->met) return;
    if (by == SIGALRM) complain(what, "hangs");
    else if (status) complain(what, detail);
}

static void judge_it(int unused) {
    (void)unused;
    judge();
}

/* One case; whether it holds. */
static int attempt(const char *dir, void (*fail)(void), long target, int way, enum role role) {
    char command[4200];
    snprintf(command, sizeof command, "rm -rf '%s/case' && mkdir '%s/case'", dir, dir);
    if (system(command)) abort();
    memset(shared, 0, offsetof(struct shared, kinds));
    shared->target = target, shared->way = way, shared->role = role;
    in_a_child(work, 0, fail, "the workload");
    /* What is in doubt, or was rolled back by the end of the process, is judged the same. */
    shared->role = GOES_ON;
    in_a_child(judge_it, 0, NULL, "the judge");
    return !shared->complaint[0];
}

int main(int count, char **words) {
    if (count != 8) return 64;
    library = words[1], mode = words[4];
    long from = atol(words[5]), step = atol(words[6]);
    int all = strcmp(words[7], "all") == 0;
    attached = strcmp(mode, "attached") == 0;
    void (*fail)(void) = strcmp(words[3], "system") == 0 ? fail_below : fail_above;
    lies = strcmp(words[3], "canary") == 0;
    snprintf(path, sizeof path, "%s/case/app.db", words[2]);
    snprintf(uri, sizeof uri, "file:%s?vfs=untorn", path);
    snprintf(attach, sizeof attach,
             "PRAGMA journal_mode = delete; ATTACH 'file:%s-other?vfs=untorn' AS other; "
             "PRAGMA other.journal_mode = delete",
             path);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!attempt(words[2], fail, 0, 0, GOES_ON) || shared->told) {
        printf("without a failure: %s\n", shared->complaint[0] ? shared->complaint : "an error was told");
        return 1;
    }
    static const char *const ROLES[] = {"goes on", "ends", "is killed"};
    long calls = shared->count, cases = 0, met = 0, told = 0, violations = 0;
    for (long number = from; number <= calls; number += step) {
        enum kind kind = shared->kinds[number - 1];
        for (int way = 0; way < KINDS[kind].ways; way++) {
            for (enum role role = GOES_ON; role <= IS_KILLED; role++) {
                if (role == IS_KILLED && way > 0) continue;
                if (!all && (number / step + way) % 3 != role) continue;
                int holds = attempt(words[2], fail, number, way, role);
                cases++, met += shared->met, told += shared->told;
                if (holds) continue;
                violations++;
                printf("violation: %s number %ld, way %d, %s: %s\n", KINDS[kind].name, number, way,
                       ROLES[role], shared->complaint);
                fflush(stdout);
            }
        }
    }
    printf("%ld calls, %ld cases, %ld came about, %ld told, %ld violations\n", calls, cases, met, told, violations);
    return violations || !met || !told;
}
