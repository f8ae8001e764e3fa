/*
 * untorn.h - memory-mapped files that never tear: the native C interface.
 *
 * untorn gives failure atomicity to file I/O. A commit makes all changes since
 * the previous commit durable together: after a crash at any instant, opening
 * the file yields exactly the state of one commit, at least the last one whose
 * call returned success. docs/fault-model.md says against which faults.
 *
 * A first program:
 *
 *     #include <untorn.h>
 *     #include <stdio.h>
 *
 *     int main(void) {
 *         untorn_options options = UNTORN_OPTIONS_INIT;
 *         untorn_error error;
 *         options.flags = UNTORN_CREATE;
 *         options.length = 1 << 20;
 *         untorn_t *file = untorn_open("ledger", &options, &error);
 *         if (!file) {
 *             fprintf(stderr, "%s\n", error.message);
 *             return 1;
 *         }
 *         int code = untorn_write(file, 4090, "all of this or none of it", 25);
 *         int closed = untorn_close(file);
 *         return code || closed;
 *     }
 *
 * Compile and link, with an installed library or in a checkout (the static
 * library needs the system libraries it names):
 *
 *     cc -std=c11 first.c $(pkg-config --cflags --libs untorn) -o first
 *     cc -std=c11 -Iinclude first.c -Ltarget/release -luntorn -o first
 *     cc -std=c11 -Iinclude first.c target/release/libuntorn.a -lpthread -ldl -lm -o first
 *
 * Install: `cargo xtask dist` lays out a tree with libuntorn.so.0, whose
 * functions have versions, libuntorn.a, the headers, untorn.pc and a package
 * file for CMake; docs/install.md has all ways. The SONAME of the library in
 * target/release is libuntorn.so, or what UNTORN_SONAME says at its build.
 *
 * Conventions:
 * - A function that returns int returns 0 or a negative code, UNTORN_E*. A code
 *   above -1000 is the negative errno of the reason, so codes not listed here
 *   occur too: -EMFILE, for instance. untorn_strerror returns a short text;
 *   untorn_last_error returns the whole text, with the path and what to do.
 * - A null pointer is UNTORN_EINVAL unless the function allows it.
 * - No function prints, aborts, or lets a panic out.
 * - Offsets and lengths are in bytes.
 * - Many threads may use a handle at once. Reads and writes are atomic with
 *   respect to each other, over any number of pages. The call that ends a
 *   handle or transaction must be the last one to use it. A child cannot use a
 *   handle after fork: it must open the file again. Maps have their own rules,
 *   below.
 *
 * The papers' own interfaces are in untorn/acumen.h, addresses and ato_memcpy,
 * untorn/nvmmio.h, addresses, nvmemcpy and nvmsync, and untorn/region.h, regions
 * and pmsync. untorn/shared.h is for several processes that store to one file,
 * untorn/protect.h for checksums and parity of a mapping of the program's own.
 * untorn.hpp has it all for C++17, with handles that close themselves.
 */
#ifndef UNTORN_H
#define UNTORN_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Codes.
 */

/* The file, or a directory of its path, does not exist. */
#define UNTORN_ENOENT (-ENOENT)
/* The device failed to write or flush. */
#define UNTORN_EIO (-EIO)
/* Out of memory. */
#define UNTORN_ENOMEM (-ENOMEM)
/* The permissions of the file or a directory do not allow it. */
#define UNTORN_EACCES (-EACCES)
/* The range is not within the file; untorn_resize changes its length. */
#define UNTORN_EFAULT (-EFAULT)
/* Nothing was committed: the commit log is full, and keeps its oldest commits
 * for a consumer. Commit again when the consumer has got on. */
#define UNTORN_EAGAIN (-EAGAIN)
/* A commit is made, and the consumers of the commit log have not acknowledged
 * it in time (UNTORN_COMMIT_LOG_AWAIT). */
#define UNTORN_ETIMEDOUT (-ETIMEDOUT)
/* Another process, or a handle of this process with other options, has the
 * file open. */
#define UNTORN_EBUSY (-EBUSY)
/* UNTORN_EXCL is set and the file exists. */
#define UNTORN_EEXIST (-EEXIST)
/* The path names a directory. */
#define UNTORN_EISDIR (-EISDIR)
/* A null pointer, or an argument or option that is not allowed. */
#define UNTORN_EINVAL (-EINVAL)
/* The device is full. */
#define UNTORN_ENOSPC (-ENOSPC)
/* The handle or the file system is read-only. */
#define UNTORN_EROFS (-EROFS)
/* The quota is used up. */
#define UNTORN_EDQUOT (-EDQUOT)
/* A file format, feature or option that this version does not know. */
#define UNTORN_EOPNOTSUPP (-EOPNOTSUPP)
/* A sidecar, log, store or redundancy file is damaged. */
#define UNTORN_EBADMSG (-EBADMSG)
/* A log holds writes that a replay could not bring to their files. (Opening a
 * file after a crash is no error: a read-only handle serves its last commit.) */
#define UNTORN_EUCLEAN (-EUCLEAN)
/* The handle belongs to the parent process, not to this forked child. */
#define UNTORN_EOWNERDEAD (-EOWNERDEAD)

/* An internal error in untorn; the text says which. Please report it. */
#define UNTORN_EINTERNAL (-1001)
/* An earlier flush failed, or a page of the file was lost. Nothing more is
 * promised through this handle. Close it and open the file again to return
 * to the last commit. */
#define UNTORN_EPOISONED (-1002)
/* The sidecar that holds committed bytes is missing. */
#define UNTORN_ESIDECAR_MISSING (-1003)
/* The sidecar beside the file belongs to another file. */
#define UNTORN_ESIDECAR_MISMATCH (-1004)
/* Another program changed the file while its sidecar held committed bytes. */
#define UNTORN_EMIXED_USE (-1005)
/* Transactions of the handle are still open: commit or abort them first.
 * This is the only failure of untorn_close and untorn_settle that leaves the
 * handle open. */
#define UNTORN_ETXOPEN (-1006)
/* The snapshot has ended: there was no space to keep a page for it, or the
 * process that has the file open closed it or ended. */
#define UNTORN_ESNAPSHOT (-1007)
/* Commits that were asked for are not in the commit log any more, or the file
 * has no commit log. The text names the oldest commit to go on from. */
#define UNTORN_ECOMMITS (-1008)

/* Bytes of untorn_error.message, including the final zero. */
#define UNTORN_MESSAGE_SIZE 508

/* Why a call failed. */
typedef struct untorn_error {
    /* 0 after a success, else a negative code. */
    int code;
    /* A sentence in UTF-8 that names the file and says what to do; empty
     * after a success. Longer messages are cut. */
    char message[UNTORN_MESSAGE_SIZE];
} untorn_error;

/* An open file. */
typedef struct untorn_t untorn_t;

/* A transaction: writes that commit together or not at all. */
typedef struct untorn_tx untorn_tx;

/*
 * Options.
 */

/* untorn_options.engine: how a commit is made all-or-nothing. AUTO is the
 * file's own engine. For a file without one it is HYBRID_LOG on a disk with
 * durability per commit, and otherwise, or with redundancy, REFLECTION.
 * REFLECTION: a second page beside each page, written alternately (the Acumen
 * paper).
 * HYBRID_LOG: a log for each block. A commit costs the same however much was
 * written (the Libnvmmio paper). It suits programs that write a lot between two
 * calls of untorn_sync. Its default durability is per commit.
 * SHADOW: a write copies each page that it touches whole, as NOVA does. It is
 * the baseline that the Acumen paper compares with.
 * PASSTHROUGH: no atomicity at all, for comparison.
 * To change the engine of a file, call untorn_settle first. */
#define UNTORN_ENGINE_AUTO 0
#define UNTORN_ENGINE_REFLECTION 1
#define UNTORN_ENGINE_PASSTHROUGH 2
#define UNTORN_ENGINE_HYBRID_LOG 3
#define UNTORN_ENGINE_SHADOW 4

/* untorn_options.layout: layout of a new sidecar. AUTO is dense up to 16
 * GiB. */
#define UNTORN_LAYOUT_AUTO 0
#define UNTORN_LAYOUT_DENSE 1
#define UNTORN_LAYOUT_SPARSE 2

/* untorn_options.durability: when a write is durable.
 * AUTO: as the file was created, else per write on persistent memory and per
 * commit on a block device.
 * PER_WRITE: each write or transaction is one commit, durable when it returns,
 * and visible to readers only then.
 * PER_COMMIT: writes are visible at once and join the open epoch;
 * untorn_sync commits the epoch. */
#define UNTORN_DURABILITY_AUTO 0
#define UNTORN_DURABILITY_PER_WRITE 1
#define UNTORN_DURABILITY_PER_COMMIT 2

/* untorn_options.order: fences of one atomic write on persistent memory. ONE is
 * measured faster; TWO is the order of the Acumen paper. */
#define UNTORN_ORDER_ONE_FENCE 0
#define UNTORN_ORDER_TWO_FENCE 1

/* untorn_options.read_policy: a read either copies each slice from its valid
 * place, or first deploys the page's slices into the data file, as the
 * Acumen paper does. */
#define UNTORN_READ_GATHER 0
#define UNTORN_READ_DEPLOY 1

/* untorn_options.log_policy: what HYBRID_LOG logs.
 * HYBRID: chosen for each epoch by the reads and writes of the last one, see
 * untorn_options.redo_from; on a block device always redo.
 * UNDO: the old bytes. The write goes to the file at once, so a read never
 * looks at the log. It needs persistent memory and is refused with
 * UNTORN_EINVAL elsewhere: the kernel could write the file back before the log.
 * REDO: the new bytes, which go to the file after the commit. */
#define UNTORN_LOG_HYBRID 0
#define UNTORN_LOG_UNDO 1
#define UNTORN_LOG_REDO 2

/* untorn_options.dirty_tracking: how untorn_map finds the pages that a program
 * has stored to. AUTO is the best method that the kernel and the process's
 * rights allow.
 * WRITE_PROTECT: the kernel notes the first store to each page since the last
 * commit (userfaultfd, Linux 6.7). Committed pages may stay in memory, where
 * the next store to them costs least. If it is not available, untorn_map fails
 * with the system's reason.
 * PAGE_TABLE: a stored page is private to the process. It works on every
 * kernel, and in containers that forbid userfaultfd. */
#define UNTORN_TRACKING_AUTO 0
#define UNTORN_TRACKING_WRITE_PROTECT 1
#define UNTORN_TRACKING_PAGE_TABLE 2

/* untorn_options.flags. */
/* Open read-only: change nothing, not even by recovery. After a crash the handle
 * serves the last commit. */
#define UNTORN_READ_ONLY 1
/* If the file does not exist, create one of untorn_options.length zero bytes.
 * An empty file grows to that length; any other file keeps its own. */
#define UNTORN_CREATE 2
/* With UNTORN_CREATE: fail with UNTORN_EEXIST if the file exists. */
#define UNTORN_EXCL 4
/* When a cleanly closed file is opened, check its bitmaps only, not the digest
 * of all reflected slices, which reads them all. */
#define UNTORN_NO_VERIFY 8
/* When a page of the file is lost (another program truncates the file, the
 * disk is full, the medium fails), the process gets a SIGBUS. Without this
 * flag the library handles that SIGBUS: the call that accesses the page
 * fails with UNTORN_EIO, and every later one with that or UNTORN_EPOISONED.
 * The library passes any other SIGBUS to the handler that the program had
 * installed before it opened its first file. A handler that the program
 * installs later replaces the library's, and should call the handler that it
 * replaces. If a file has several handles, the first decides. */
#define UNTORN_LOST_PAGE_SIGNAL 16
/* With HYBRID_LOG, start no checkpoint threads. Writers write committed
 * bytes from the log to the file when the log is full, and so does
 * untorn_close. */
#define UNTORN_NO_CHECKPOINTERS 32
/* Share the open file with other processes that set this flag; for untorn_open.
 * Each process reads what the others write, and untorn_sync commits the open
 * epoch of all.
 * One process has the file open and executes the calls of the others, which
 * makes those slower and limits one call to 128 MiB. When it ends, another one
 * takes over. With PER_WRITE nothing is lost then. With PER_COMMIT, if the
 * process is killed while the epoch may have any bytes, every call of every
 * participating process fails with UNTORN_EPOISONED, until it has closed its
 * handles and opened the file again, at the last commit. The same happens after
 * a failure that poisoned the file in the process that had it open.
 * An option left at its default (engine, durability, and all others that shape
 * how the file works) takes the value of the first process. Any other value
 * that differs fails with UNTORN_EBUSY, and the message names both values.
 * It cannot be combined with UNTORN_READ_ONLY. The processes must run as one
 * user and trust each other. For plain memory use untorn_share. */
#define UNTORN_SHARED 64
/* For a protected file (`untorn protect`), with untorn_open: each read first
 * compares the covered pages that it reads with their checksums, and fails
 * with UNTORN_EBADMSG for a damaged one. It skips pages that were written
 * since they were last covered. UNTORN_EINVAL for a file that is not
 * protected. It cannot be combined with UNTORN_READ_ONLY or untorn_map. All
 * processes that share a file (UNTORN_SHARED) must ask for the same. */
#define UNTORN_VERIFY_READS 128
/* Like UNTORN_VERIFY_READS, but the read rebuilds a damaged page from
 * parity, and fails only if parity cannot rebuild it. */
#define UNTORN_REPAIR_READS 256
/* Closing keeps the sidecar, which then holds committed bytes of the closed
 * file: a copy needs it too. Close and the next open do less. Without this
 * flag, closing deploys everything and removes the sidecar: a closed file is
 * a plain one. If a file has several handles, the first decides; if several
 * processes share it, the last to leave. */
#define UNTORN_KEEP_SIDECAR 512
/* With REFLECTION, deploy nothing in the background; see
 * untorn_options.deploy_ahead. */
#define UNTORN_NO_DEPLOY_AHEAD 1024
/* With untorn_options.commit_log: keep commits until every registered consumer
 * has acknowledged them. A commit for which the log has no room waits for the
 * slowest consumer, up to untorn_options.commit_log_wait, and then fails with
 * UNTORN_EAGAIN. Without this flag the oldest commits go, and the consumer is
 * told. */
#define UNTORN_COMMIT_LOG_BLOCK 2048
/* Start no thread that gives snapshots of the open file to other processes:
 * there, untorn_snapshot_open then fails with UNTORN_EBUSY. Without this flag,
 * opening a file for writing starts that thread, one with a socket for the
 * process. It serves all files that the process has open or opens later, with
 * this flag or without it, to processes of the same user and of root. */
#define UNTORN_NO_SERVE_SNAPSHOTS 4096
/* With untorn_options.commit_log: a commit returns once every registered
 * consumer has acknowledged it, and waits while there is none. It is durable
 * here before that. With UNTORN_COMMIT_LOG_BLOCK it waits up to
 * untorn_options.commit_log_wait, and then fails with UNTORN_ETIMEDOUT: it
 * stays, and the next commit waits for it, too. Without this flag a log that is
 * there stays as it is in this respect. */
#define UNTORN_COMMIT_LOG_AWAIT 8192

/* How to open a file. Start from UNTORN_OPTIONS_INIT; a field of zero has
 * its default. Later versions add fields at the end, and the size field
 * tells the library which fields the program knows. If a program sets a
 * field that the library does not know, the call fails with
 * UNTORN_EOPNOTSUPP. */
typedef struct untorn_options {
    /* sizeof(untorn_options). */
    uint32_t size;
    /* UNTORN_ENGINE_*. */
    uint32_t engine;
    /* UNTORN_LAYOUT_*. */
    uint32_t layout;
    /* UNTORN_DURABILITY_*. */
    uint32_t durability;
    /* UNTORN_ORDER_*. */
    uint32_t order;
    /* UNTORN_READ_GATHER or UNTORN_READ_DEPLOY. */
    uint32_t read_policy;
    /* UNTORN_READ_ONLY, UNTORN_CREATE, UNTORN_EXCL, UNTORN_NO_VERIFY,
     * UNTORN_LOST_PAGE_SIGNAL, UNTORN_NO_CHECKPOINTERS, UNTORN_SHARED,
     * UNTORN_VERIFY_READS, UNTORN_REPAIR_READS, UNTORN_KEEP_SIDECAR,
     * UNTORN_NO_DEPLOY_AHEAD, UNTORN_COMMIT_LOG_BLOCK,
     * UNTORN_COMMIT_LOG_AWAIT, UNTORN_NO_SERVE_SNAPSHOTS, or'ed. */
    uint32_t flags;
    /* Zero. */
    uint32_t reserved;
    /* Bytes of the file that UNTORN_CREATE creates. */
    uint64_t length;
    /* The maximum length that the file may grow to while open. 0: 1 TiB or
     * twice the length, whichever is larger. A file takes address space in
     * proportion to its length. A map keeps its address, so untorn_map reserves
     * address space (not memory) for the maximum; 0: 64 MiB or twice the
     * length, whichever is larger. */
    uint64_t max_len;
    /* The next four fields are for HYBRID_LOG; other engines ignore them. */
    /* The maximum size of the log, 256 KiB to 1 TiB, rounded up to whole
     * chunks of 2 MiB and at least two. The log starts small and grows as
     * needed. All writes of one epoch must fit; a write that would not is
     * refused with UNTORN_EINVAL. 0: 64 GiB. */
    uint64_t log_size;
    /* UNTORN_LOG_*. */
    uint32_t log_policy;
    /* The percentage of writes among the reads and writes of an epoch from
     * which UNTORN_LOG_HYBRID logs redo in the next epoch. 0: 5. */
    uint32_t redo_from;
    /* Threads that write committed bytes from the log to the file in the
     * background, up to 64. 0: 2; for none, see UNTORN_NO_CHECKPOINTERS. */
    uint32_t checkpointers;
    /* UNTORN_TRACKING_*; for untorn_map. */
    uint32_t dirty_tracking;
    /* For REFLECTION; other engines ignore it. When the pages that have bytes
     * in the sidecar take so many bytes, a thread begins to copy committed
     * pages into the data file while the file is open, so that closing is
     * short. 0: 64 MiB; for never, see UNTORN_NO_DEPLOY_AHEAD. A protected
     * file, one with UNTORN_SHARED or UNTORN_KEEP_SIDECAR, and a forked child
     * do without it. */
    uint64_t deploy_ahead;
    /* Give the file a commit log of at most so many bytes, for the functions
     * untorn_commits_*. The file keeps it through later openings, also those
     * that leave this 0. 0: none is begun. */
    uint64_t commit_log;
    /* With UNTORN_COMMIT_LOG_BLOCK: milliseconds that a commit waits for
     * consumers; 0 fails at once. */
    uint64_t commit_log_wait;
    /* Bytes of memory that the snapshots of this file may take together, for
     * pages of 4 KiB that changed since; at least one page. Further pages go to
     * a file without a name in the directory of the data file; if that fails,
     * the snapshots end. 0: 64 MiB. */
    uint64_t snapshot_memory;
} untorn_options;

/* All defaults: `untorn_options options = UNTORN_OPTIONS_INIT;` */
#define UNTORN_OPTIONS_INIT { (uint32_t)sizeof(untorn_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/*
 * Files.
 */

/* Opens the file at `path`. Unless it is opened read-only, the call recovers
 * the file after a crash, and creates a sidecar if the file has none. Opening
 * one file twice in a process gives two handles to one state.
 *
 * opts: NULL for the defaults. err: NULL, or where to store the reason of a
 * failure.
 * Returns a handle, which untorn_close or untorn_settle ends, or NULL; the file
 * is then unchanged.
 * Errors: UNTORN_ENOENT, UNTORN_EEXIST, UNTORN_EISDIR, UNTORN_EACCES,
 * UNTORN_EBUSY (open elsewhere, or here with other options), UNTORN_EINVAL
 * (an option), UNTORN_EOPNOTSUPP, UNTORN_EBADMSG,
 * UNTORN_ESIDECAR_MISSING, UNTORN_ESIDECAR_MISMATCH, UNTORN_EMIXED_USE, UNTORN_ENOSPC and others from the system. */
untorn_t *untorn_open(const char *path, const untorn_options *opts, untorn_error *err);

/* Fills `dst` with the `n` bytes at `off`, atomically: a write by another thread
 * is seen whole or not at all. There are no short reads. If n is 0, dst may be
 * NULL, as src of every call that writes.
 * Errors: UNTORN_EFAULT unless all bytes are within the file; UNTORN_EIO.
 * The content of dst is then unspecified. */
int untorn_read(untorn_t *file, uint64_t off, void *dst, size_t n);

/* Writes the `n` bytes at `src` to `off`, atomically, over any number of pages.
 * With durability per write it is durable when it returns; with durability per
 * commit it joins the open epoch. The file does not grow.
 * Errors: UNTORN_EFAULT unless all bytes are within the file; UNTORN_EROFS,
 * UNTORN_ENOSPC, UNTORN_EIO, UNTORN_EPOISONED. After an error the file holds
 * none of the bytes. Exception: after a failed flush, only opening the file
 * again tells whether it holds all of them or none. */
int untorn_write(untorn_t *file, uint64_t off, const void *src, size_t n);

/* Commits the open epoch. When it returns 0, everything that any thread wrote
 * before is durable. With durability per write there is nothing left to do.
 * Errors: UNTORN_EIO and others of a flush; the handle is then poisoned. */
int untorn_sync(untorn_t *file);

/* Changes the length atomically; new bytes are zeros. The new length is durable
 * when the call returns, and the open epoch commits with it. Exception: under
 * HYBRID_LOG with durability per commit, the new length joins the open epoch;
 * untorn_sync commits it with everything else, and a crash before that discards
 * it.
 * Errors: UNTORN_EINVAL above untorn_options.max_len; UNTORN_EROFS,
 * UNTORN_ENOSPC, UNTORN_EIO, UNTORN_EPOISONED. */
int untorn_resize(untorn_t *file, uint64_t len);

/* Frees unused space of the sidecar: reflection pages that hold nothing, or the
 * log, which is checkpointed first. *freed gets the bytes freed; it may be NULL.
 * Errors: UNTORN_EROFS, UNTORN_EIO, UNTORN_EPOISONED. */
int untorn_reclaim(untorn_t *file, uint64_t *freed);

/* The length in bytes; 0 for NULL. */
uint64_t untorn_len(untorn_t *file);

/* The number of the last commit, which grows with each; a negative code for
 * NULL and in a forked child. */
int64_t untorn_commit_number(untorn_t *file);

/* The number and the time of the last commit, the time in nanoseconds since
 * 1970, or 0 if it is not known. Either pointer may be NULL. Both outlast the
 * close of the file, its time to the millisecond; after a crash of the engine
 * reflection the time is that of the sidecar's last change. */
int untorn_last_commit(untorn_t *file, uint64_t *number, uint64_t *time_ns);

/*
 * Snapshots: the file as it was at one commit, while writers go on. The first
 * change of a page after it copies the page once, into memory and, beyond
 * untorn_options.snapshot_memory, into a file without a name. Any number may be held at a time, by any
 * threads.
 */
typedef struct untorn_snapshot_t untorn_snapshot_t;

/* Takes a snapshot of the last commit. It holds the file open: the last that is
 * closed, handle or snapshot, closes the file.
 * Errors: NULL, with the code in *err (which may be NULL). */
untorn_snapshot_t *untorn_snapshot(untorn_t *file, untorn_error *err);

/* Takes a snapshot of a file that this process, another one, or none has open.
 * One in another process ends when that process closes the file or ends.
 * Errors: NULL, with the code in *err (which may be NULL): UNTORN_EBUSY if the
 * process that has the file open serves no snapshots; those of untorn_open. */
untorn_snapshot_t *untorn_snapshot_open(const char *path, untorn_error *err);

/* Reads n bytes from off.
 * Errors: UNTORN_EFAULT unless all bytes are within the snapshot;
 * UNTORN_ESNAPSHOT if the snapshot has ended; UNTORN_EIO. */
int untorn_snapshot_read(untorn_snapshot_t *snapshot, uint64_t off, void *dst, size_t n);

/* The length in bytes, and the number of the commit; 0 for NULL. */
uint64_t untorn_snapshot_len(untorn_snapshot_t *snapshot);
uint64_t untorn_snapshot_commit(untorn_snapshot_t *snapshot);

/* Gives a snapshot up. No other thread may use it any more. */
int untorn_snapshot_close(untorn_snapshot_t *snapshot);

/*
 * The stream of commits: each commit of a file with a commit log
 * (untorn_options.commit_log), once and in order, for any process, also while
 * another one has the file open. One thread at a time may use a stream.
 * A slow stream never slows a commit, unless it is that of a consumer and
 * UNTORN_COMMIT_LOG_BLOCK or UNTORN_COMMIT_LOG_AWAIT is set.
 */
typedef struct untorn_commits_t untorn_commits_t;

/* Bytes that a commit changed. */
typedef struct untorn_change {
    uint64_t offset;
    uint64_t len;
    const void *bytes;
} untorn_change;

/* One commit. To repeat it: set the length to `shortest`, then to `len` (bytes
 * in between are zeros), then write the changes. */
typedef struct untorn_commit {
    uint64_t number;
    /* The number of the commit before it. */
    uint64_t previous;
    /* Nanoseconds since 1970; 0 if that is not known. */
    uint64_t time_ns;
    /* The length of the file after it. */
    uint64_t len;
    /* The shortest that the file was in it. */
    uint64_t shortest;
    /* Ascending. They are valid until the next call with the stream. */
    const untorn_change *changes;
    size_t change_count;
} untorn_commit;

/* Opens the stream of the commits after the one of number `from`, as
 * untorn_commit_number returns it; 0: all since the file was created with its
 * log.
 * Errors: NULL, with the code in *err (which may be NULL): UNTORN_ECOMMITS;
 * UNTORN_EINVAL if the file has no commit `from` yet; those of untorn_open. */
untorn_commits_t *untorn_commits_open(const char *path, uint64_t from, untorn_error *err);

/* Opens the stream of a registered consumer, which has a name (1 to 64 letters,
 * digits, `-`, `_` and `.`) and a durable position. The stream goes on after
 * the last commit that was acknowledged, or, if `from` is not NULL, after
 * *from. A new name is registered, and begins at the start of the log.
 * Errors: as for untorn_commits_open; UNTORN_EBUSY if another stream is of this
 * consumer. */
untorn_commits_t *untorn_commits_consumer(const char *path, const char *name, const uint64_t *from,
                                          untorn_error *err);

/* Returns 1 with the next commit in *commit; 0 if there is none after so many
 * milliseconds, and 0 of them look only. All bytes of the commit are in memory.
 * Errors: UNTORN_ECOMMITS; UNTORN_EBADMSG if the log is damaged; UNTORN_EIO. */
int untorn_commits_next(untorn_commits_t *stream, uint64_t timeout_ms, untorn_commit *commit);

/* Notes durably that the consumer is done with the commits up to this one. It
 * costs a flush; a consumer may acknowledge many commits at once.
 * Errors: UNTORN_EINVAL if the stream is of no consumer, or has not given that
 * commit yet; UNTORN_EIO. */
int untorn_commits_acknowledge(untorn_commits_t *stream, uint64_t number);

/* Removes a consumer: the log keeps nothing for it any more.
 * Errors: UNTORN_ENOENT if there is none of this name. */
int untorn_commits_forget(const char *path, const char *name);

/* Closes a stream. No other thread may use it any more. */
int untorn_commits_close(untorn_commits_t *stream);

/* Commits the open epoch. If this is the process's last handle to the file, it
 * also deploys everything into the data file and removes the sidecar: a closed
 * file is a plain one. With UNTORN_KEEP_SIDECAR the sidecar stays, and the
 * next open needs no recovery. A process that ends without it leaves the last
 * commit.
 * The handle is gone whatever the call returns, except UNTORN_ETXOPEN.
 * Errors: UNTORN_ETXOPEN; UNTORN_EIO and others of a flush: the next open
 * returns to the last commit. If the message says that a commit is durable,
 * that is this one, and only closing failed. */
int untorn_close(untorn_t *file);

/* Commits, deploys everything into the data file, removes the sidecar and
 * closes. The result is a plain file that any program may read and write.
 * The handle is gone whatever the call returns, except UNTORN_ETXOPEN.
 * Errors: UNTORN_ETXOPEN; UNTORN_EBUSY while another handle of this process
 * has the file open; UNTORN_EROFS, UNTORN_EIO: the file can be opened and
 * settled again. */
int untorn_settle(untorn_t *file);

/*
 * Transactions. One is used by one thread at a time; a file may have any number.
 *
 *     untorn_tx *tx = untorn_begin(file);
 *     int code = untorn_tx_write(tx, from, &less, sizeof less);
 *     if (!code) code = untorn_tx_write(tx, to, &more, sizeof more);
 *     if (!code) code = untorn_tx_commit(tx);
 *     else untorn_tx_abort(tx);
 */

/* Begins a transaction: writes to any ranges that commit together or not at
 * all, and that no other reader sees before.
 * Returns the transaction, which untorn_tx_commit or untorn_tx_abort ends,
 * or NULL; untorn_last_error has the reason. */
untorn_tx *untorn_begin(untorn_t *file);

/* Adds a write of the `n` bytes at `src` to `off`. It copies the bytes, so src
 * may be reused at once. A later write to the same bytes replaces an earlier
 * one.
 * Errors: UNTORN_EFAULT unless all bytes are within the file; UNTORN_ENOMEM.
 * The transaction is then unchanged. */
int untorn_tx_write(untorn_tx *tx, uint64_t off, const void *src, size_t n);

/* Applies all writes as one. With durability per write they are one commit,
 * durable when it returns. With durability per commit they join the open epoch
 * together.
 * The transaction is gone whatever the call returns.
 * Errors: as for untorn_write; after an error none of the writes is applied. */
int untorn_tx_commit(untorn_tx *tx);

/* Drops the writes and the transaction. NULL is allowed. */
void untorn_tx_abort(untorn_tx *tx);

/*
 * Maps: a file as plain memory. The program loads and stores freely through its
 * own pointers, and then commits. When the commit returns, every store since
 * the last commit is durable. Its cost grows with the number of stored pages,
 * not with the length.
 *
 * A second program:
 *
 *     #include <untorn.h>
 *     #include <stdio.h>
 *
 *     int main(void) {
 *         untorn_options options = UNTORN_OPTIONS_INIT;
 *         untorn_error error;
 *         options.flags = UNTORN_CREATE;
 *         options.length = 1 << 20;
 *         uint64_t *counts = untorn_map("counts", &options, NULL, &error);
 *         if (!counts) {
 *             fprintf(stderr, "%s\n", error.message);
 *             return 1;
 *         }
 *         counts[0]++;
 *         counts[100000] += 2;
 *         int code = untorn_map_commit(counts);
 *         int ended = untorn_unmap(counts);
 *         return code || ended;
 *     }
 *
 * The rules:
 * - A map is identified by its address, exactly as untorn_map returned it. An
 *   address inside it, or of a map that has ended, is UNTORN_EINVAL. The
 *   address is the same until the map ends, whatever its length, and differs at
 *   each untorn_map: store offsets in the file, not pointers.
 * - Only untorn_map_commit and untorn_map_commit_beside_stores commit. A crash, untorn_map_rollback, untorn_unmap
 *   and untorn_map_settle discard later stores; unlike with a shared mapping,
 *   the kernel never writes them to the file.
 * - Any thread may load and store, under the program's own locks. Calls by
 *   several threads on one map take turns. While untorn_map_commit runs,
 *   threads may load but must not store: otherwise the log may have bytes that
 *   do not match its checksum, and recovery may drop the commit. Beside
 *   untorn_map_commit_beside_stores they may do both. While
 *   untorn_map_rollback or untorn_map_resize runs, threads must not load
 *   either. After a call of untorn_unmap or untorn_map_settle, no thread may
 *   access the memory.
 * - A load or store beyond the length is an error of the program. It may go
 *   unnoticed, or make all later calls on the map fail with UNTORN_EIO.
 * - Stores that the kernel makes for the program, as read(2) does, count as
 *   stores.
 * - After fork the child has the memory as it was at that moment. Its stores
 *   stay private, and its calls on the map fail with UNTORN_EOWNERDEAD.
 * - A file can be open as one map only, and not as a handle at the same time
 *   (UNTORN_EBUSY); read-only maps are not limited.
 * - A lost page reads as zeros, and the next call on the map fails with
 *   UNTORN_EIO; see UNTORN_LOST_PAGE_SIGNAL.
 */

/* Opens the file at `path` as plain memory. Unless it is opened read-only, the
 * call recovers the file after a crash, and creates a sidecar if the file has
 * none.
 *
 * opts: NULL for the defaults. The engine is HYBRID_LOG, the durability
 * PER_COMMIT, the log REDO; other values are refused. With UNTORN_READ_ONLY,
 * stores stay in the memory of this map, and calls that change the file fail
 * with UNTORN_EROFS.
 * len: NULL, or where to store the length in bytes.
 * err: NULL, or where to store the reason of a failure.
 * Returns the page-aligned address of the first byte, which untorn_unmap or
 * untorn_map_settle ends, or NULL. After NULL no byte of the file has changed,
 * but a file that UNTORN_CREATE created may exist.
 * Errors: those of untorn_open; UNTORN_EINVAL for an engine, durability or
 * log policy that a map cannot have, or a read-only map of a file with
 * committed bytes in its sidecar; -EPERM and others of the system for a
 * dirty_tracking that is not available. */
void *untorn_map(const char *path, const untorn_options *opts, size_t *len, untorn_error *err);

/* Commits. When it returns 0, every store since the last commit, and the
 * length, is durable. If nothing was stored, it writes nothing.
 * It looks for stores in all of the map. That takes 3 ns for each page in
 * memory, 0.8 ms for 1 GiB, and nothing for pages that were never touched;
 * without userfaultfd (UNTORN_TRACKING_PAGE_TABLE) it takes 26 ns a page.
 * Errors: UNTORN_EINVAL if the stores do not fit into the log
 * (untorn_options.log_size), UNTORN_ENOSPC: nothing is committed, the stores
 * are still there, and the call may be repeated. UNTORN_EROFS, UNTORN_EIO,
 * UNTORN_EPOISONED: after a failed flush, only mapping the file again tells
 * whether this commit is durable, all of it or nothing. */
int untorn_map_commit(void *map);

/* Commits as untorn_map_commit does, while other threads store. Every store that
 * ended before the call is in the commit. A store that runs meanwhile is in it
 * whole, in part or not at all, and whole in the next commit.
 * It copies each stored page before it writes it to the log. Every page that was
 * ever stored to stays in memory until untorn_map_commit or untorn_map_rollback.
 * Errors: those of untorn_map_commit. */
int untorn_map_commit_beside_stores(void *map);

/* Takes a snapshot of the last commit: stores since then are not in it. It holds
 * the file open, as one of untorn_snapshot does; untorn_snapshot_close ends it.
 * Errors: NULL, with the code in *err (which may be NULL). */
untorn_snapshot_t *untorn_map_snapshot(void *map, untorn_error *err);

/* Discards every store since the last commit and restores the length of that
 * commit.
 * Errors: UNTORN_EROFS; UNTORN_EIO, UNTORN_EPOISONED: some stores may be
 * discarded then, and others not. */
int untorn_map_rollback(void *map);

/* Changes the length. The new length commits or rolls back with the stores. New
 * bytes are zeros. The address stays the same.
 * Errors: UNTORN_EINVAL above untorn_options.max_len; UNTORN_EROFS,
 * UNTORN_ENOSPC, UNTORN_EIO, UNTORN_EPOISONED. After an error the length is
 * unchanged. */
int untorn_map_resize(void *map, uint64_t len);

/* The length in bytes; 0 for NULL, and if no map starts there. */
uint64_t untorn_map_len(void *map);

/* Ends the map: discards every store since the last commit, and closes the file
 * at that commit, as untorn_close does: the file is a plain one then, unless
 * UNTORN_KEEP_SIDECAR is set. A process that ends without it also leaves the
 * last commit.
 *
 * Unlike untorn_close it does not commit. A write by untorn_write is complete
 * when it returns, but only the program knows when its plain stores are
 * complete. A program that unmaps in an error path would otherwise commit half
 * a change.
 *
 * The map is gone whatever the call returns, except UNTORN_EINVAL and
 * UNTORN_EOWNERDEAD, for which there is none.
 * Errors: UNTORN_EIO and others of a flush: the next open returns to the
 * last commit. */
int untorn_unmap(void *map);

/* Ends the map as untorn_unmap does, writes the last commit to the data file
 * and removes the sidecar. The result is a plain file that any program may read
 * and write.
 * The map is gone whatever the call returns, except UNTORN_EINVAL and
 * UNTORN_EOWNERDEAD, for which there is none.
 * Errors: UNTORN_EROFS, UNTORN_EIO, UNTORN_EPOISONED: the file can be mapped
 * and settled again. */
int untorn_map_settle(void *map);

/*
 * Errors.
 */

/* Stores the reason of this thread's last failure in `err`, including failures
 * of the other untorn headers. A success does not change it; before the first
 * failure the code is 0.
 * Errors: UNTORN_EINVAL for NULL. */
int untorn_last_error(untorn_error *err);

/* A short text for a code, in English. It lives as long as the process and is
 * never NULL, whatever the number. */
const char *untorn_strerror(int code);

/*
 * Version.
 */

/* The version of the library that the program runs with, as "0.1.0". It lives
 * as long as the process and is never NULL. */
const char *untorn_version(void);

#ifdef __cplusplus
}
#endif

#endif
