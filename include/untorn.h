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
 * Compile and link (the static library needs the system libraries it names):
 *
 *     cc -std=c11 -Iinclude first.c -Ltarget/release -luntorn -o first
 *     cc -std=c11 -Iinclude first.c target/release/libuntorn.a -lpthread -ldl -lm -o first
 *
 * Install: copy untorn.h and untorn/ to a directory for headers, libuntorn.so
 * and libuntorn.a to one for libraries. The SONAME is libuntorn.so; built with
 * UNTORN_SONAME=libuntorn.so.0 in the environment it is libuntorn.so.0, for
 * packages that install the library under a versioned name.
 *
 * Conventions:
 * - A function that returns int returns 0 or a negative code, UNTORN_E*. A code
 *   above -1000 is the negative errno of the reason, so codes not listed here
 *   occur too: -EMFILE, for instance. untorn_strerror gives a short text;
 *   untorn_last_error gives the whole text, with the path and what to do.
 * - A null pointer is UNTORN_EINVAL wherever it is not said to be allowed.
 * - No function prints, aborts, or lets a panic out.
 * - Offsets and lengths are in bytes.
 * - Handles may be used from many threads at once; reads and writes are atomic
 *   against each other, over any number of pages. The call that ends a handle
 *   or transaction must be the last one to use it. A handle means nothing in a
 *   child after fork: open the file anew there. Maps have rules of their own,
 *   below.
 *
 * The papers' own interfaces are in untorn/acumen.h, addresses and ato_memcpy,
 * untorn/nvmmio.h, addresses, nvmemcpy and nvmsync, and untorn/region.h, regions
 * and pmsync. untorn/shared.h is for several processes that store to one file,
 * untorn/protect.h for checksums and parity of a mapping of the program's own.
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
/* No memory. */
#define UNTORN_ENOMEM (-ENOMEM)
/* The permissions of the file or a directory do not allow it. */
#define UNTORN_EACCES (-EACCES)
/* The range does not lie within the file; untorn_resize changes its length. */
#define UNTORN_EFAULT (-EFAULT)
/* Another process, or a handle of this one with other options, has the file
 * open. */
#define UNTORN_EBUSY (-EBUSY)
/* UNTORN_EXCL, and the file exists. */
#define UNTORN_EEXIST (-EEXIST)
/* The path names a directory. */
#define UNTORN_EISDIR (-EISDIR)
/* A null pointer, or an argument that no file could satisfy. */
#define UNTORN_EINVAL (-EINVAL)
/* The device is full. */
#define UNTORN_ENOSPC (-ENOSPC)
/* The handle, or the file system, is for reading only. */
#define UNTORN_EROFS (-EROFS)
/* The quota is used up. */
#define UNTORN_EDQUOT (-EDQUOT)
/* A file format, feature or option that this version does not know. */
#define UNTORN_EOPNOTSUPP (-EOPNOTSUPP)
/* The sidecar is damaged. */
#define UNTORN_EBADMSG (-EBADMSG)
/* The file was not closed cleanly, and a read-only handle may not repair it:
 * open it for writing, or run `untorn recover`. */
#define UNTORN_EUCLEAN (-EUCLEAN)
/* The handle belongs to the process that opened it; this is its child. */
#define UNTORN_EOWNERDEAD (-EOWNERDEAD)

/* A fault inside untorn; the text says which. Please report it. */
#define UNTORN_EINTERNAL (-1001)
/* An earlier flush failed, or a page of the file was lost, so nothing more is
 * promised through this handle.
 * Close it and open the file again to return to the last commit. */
#define UNTORN_EPOISONED (-1002)
/* Committed bytes live in a sidecar that is not there. */
#define UNTORN_ESIDECAR_MISSING (-1003)
/* The sidecar beside the file belongs to another file. */
#define UNTORN_ESIDECAR_MISMATCH (-1004)
/* Another program changed the file while its sidecar held committed bytes. */
#define UNTORN_EMIXED_USE (-1005)
/* Transactions of the handle are open: commit or abort them first. This is the
 * one failure of untorn_close and untorn_settle that leaves the handle open. */
#define UNTORN_ETXOPEN (-1006)

/* Bytes of untorn_error.message, the final zero included. */
#define UNTORN_MESSAGE_SIZE 508

/* Why a call failed. */
typedef struct untorn_error {
    /* 0 after a success, else a negative code. */
    int code;
    /* A sentence in UTF-8 that names the file and says what to do; empty after a
     * success. Longer ones are cut. */
    char message[UNTORN_MESSAGE_SIZE];
} untorn_error;

/* An open file. */
typedef struct untorn_t untorn_t;

/* A transaction: writes that commit together or not at all. */
typedef struct untorn_tx untorn_tx;

/*
 * Options.
 */

/* untorn_options.engine: how a commit is made all or nothing. AUTO is the one
 * that the file has, and REFLECTION for a file that has none.
 * REFLECTION: a second page beside each page, written in turn (the Acumen paper).
 * HYBRID_LOG: a log for each block, whose commit costs the same however much was
 * written (the Libnvmmio paper): for programs that write a lot between two calls
 * of untorn_sync. Its durability is per commit unless another is asked for.
 * PASSTHROUGH gives no atomicity at all: it is there to compare with.
 * A file that has an engine takes another one after untorn_settle. */
#define UNTORN_ENGINE_AUTO 0
#define UNTORN_ENGINE_REFLECTION 1
#define UNTORN_ENGINE_PASSTHROUGH 2
#define UNTORN_ENGINE_HYBRID_LOG 3

/* untorn_options.layout: of a new sidecar. AUTO is dense up to 16 GiB. */
#define UNTORN_LAYOUT_AUTO 0
#define UNTORN_LAYOUT_DENSE 1
#define UNTORN_LAYOUT_SPARSE 2

/* untorn_options.durability: when a write is durable.
 * AUTO: as the file was created, else per write on persistent memory and per
 * commit on a block device.
 * PER_WRITE: each write or transaction is one commit, durable when it returns,
 * and seen by no reader before it is durable.
 * PER_COMMIT: writes are seen at once and join the open epoch; untorn_sync
 * commits the epoch. */
#define UNTORN_DURABILITY_AUTO 0
#define UNTORN_DURABILITY_PER_WRITE 1
#define UNTORN_DURABILITY_PER_COMMIT 2

/* untorn_options.order: fences of one atomic write on persistent memory. ONE is
 * measured faster; TWO is the order of the Acumen paper. */
#define UNTORN_ORDER_ONE_FENCE 0
#define UNTORN_ORDER_TWO_FENCE 1

/* untorn_options.read_policy: whether a read copies each slice from where it is
 * valid, or first deploys the page's slices into the data file, as the Acumen
 * paper does. */
#define UNTORN_READ_GATHER 0
#define UNTORN_READ_DEPLOY 1

/* untorn_options.log_policy: what HYBRID_LOG logs.
 * HYBRID: for each epoch what suits the reads and writes of the last one, see
 * untorn_options.redo_from; on a block device always redo.
 * UNDO: the bytes before a write, which goes to the file at once, so that a read
 * never looks at the log. On persistent memory only, refused with UNTORN_EINVAL
 * elsewhere: the kernel would write the file back before the log.
 * REDO: the bytes of a write, which go to the file after the commit. */
#define UNTORN_LOG_HYBRID 0
#define UNTORN_LOG_UNDO 1
#define UNTORN_LOG_REDO 2

/* untorn_options.dirty_tracking: how untorn_map finds out which pages a program
 * has stored to. AUTO is the best that the kernel and the process's rights allow.
 * WRITE_PROTECT: the kernel notes the first store to each page since the last
 * commit (userfaultfd, Linux 6.7); committed pages may stay in memory, where the
 * next store to them costs least. Where it is not to be had, untorn_map fails
 * with the system's reason.
 * PAGE_TABLE: by whose the pages are, which works on every kernel and in
 * containers that forbid userfaultfd. */
#define UNTORN_TRACKING_AUTO 0
#define UNTORN_TRACKING_WRITE_PROTECT 1
#define UNTORN_TRACKING_PAGE_TABLE 2

/* untorn_options.flags. */
/* Change nothing, not even to recover. */
#define UNTORN_READ_ONLY 1
/* If the file does not exist, create one of untorn_options.length zero bytes. */
#define UNTORN_CREATE 2
/* With UNTORN_CREATE: fail with UNTORN_EEXIST if the file exists. */
#define UNTORN_EXCL 4
/* When a cleanly closed file is opened, check its bitmaps only, not the digest
 * of all reflected slices, which reads them all. */
#define UNTORN_NO_VERIFY 8
/* When a page of the file is lost (another program truncates the file, the disk
 * is full, the medium fails) the process gets a SIGBUS. Without it the library
 * handles that SIGBUS, and the call that comes upon the page fails with
 * UNTORN_EIO, every later one with that or UNTORN_EPOISONED. Any other SIGBUS
 * goes to the handler that the program had installed before it opened its first
 * file; one that it installs later takes the library's place, and should call
 * the one it replaces. Of several handles to one file the first decides. */
#define UNTORN_LOST_PAGE_SIGNAL 16
/* With HYBRID_LOG, no thread of the library's own carries committed bytes from
 * the log to the file: writers do, when the log is full, and untorn_close. */
#define UNTORN_NO_CHECKPOINTERS 32
/* Other processes that open the file with this flag may have it open at once;
 * for untorn_open. Each reads what the others write, and untorn_sync commits the
 * open epoch of all. One of them has the file open and does the calls of the
 * others, which makes these slower and limits one call to 128 MiB; when it ends
 * another one takes its place. Nothing is lost then with PER_WRITE. With
 * PER_COMMIT, if it is killed while the epoch may have something in it, every
 * call of every process that took part fails with UNTORN_EPOISONED until it has
 * closed its handles and opened the file again, at the last commit; so it does
 * after a failure that poisoned the file in the one that had it open. What is
 * left at its default of the engine, the durability and all else that shapes how
 * the file works is as those who came first have it; any other value that is not
 * theirs fails with UNTORN_EBUSY and both values in the message. Not with UNTORN_READ_ONLY. Processes of one user, which
 * trust each other. untorn_share is for plain memory. */
#define UNTORN_SHARED 64
/* For a file that is protected (`untorn protect`), with untorn_open: each read
 * compares the covered pages that it reads from with their checksums first, and
 * fails with UNTORN_EBADMSG for one that is damaged. Pages that were written
 * since they were last covered are passed over. UNTORN_EINVAL for a file that is
 * not protected. Not with UNTORN_READ_ONLY, UNTORN_SHARED or untorn_map. */
#define UNTORN_VERIFY_READS 128
/* The same, but such a page is given its bytes back, and they are read; the call
 * fails only where parity does not have them. */
#define UNTORN_REPAIR_READS 256

/* How to open a file. Start from UNTORN_OPTIONS_INIT; a field of zero has its
 * default. The struct grows at its end; the size field tells a library which
 * fields the program knows. A program that sets a field the library does not
 * know is refused with UNTORN_EOPNOTSUPP. */
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
     * UNTORN_VERIFY_READS, UNTORN_REPAIR_READS, or'ed. */
    uint32_t flags;
    /* Zero. */
    uint32_t reserved;
    /* Bytes of the file that UNTORN_CREATE creates. */
    uint64_t length;
    /* Bytes the file may grow to while open: address space is reserved for it,
     * memory is not. 0: 1 TiB or twice the length, whichever is more. */
    uint64_t max_len;
    /* From here on for HYBRID_LOG; the other engines do not look at them. */
    /* The most bytes the log may take, 256 KiB to 1 TiB, rounded up to whole
     * chunks of 2 MiB and to two of them. It starts small and grows as it must; all that one epoch writes has
     * to fit, and a write that would not is refused with UNTORN_EINVAL. 0: 64
     * GiB. */
    uint64_t log_size;
    /* UNTORN_LOG_*. */
    uint32_t log_policy;
    /* The share of writes among the reads and writes of an epoch, in percent,
     * from which on UNTORN_LOG_HYBRID logs redo in the next one. 0: 5. */
    uint32_t redo_from;
    /* Threads that carry committed bytes from the log to the file while the
     * program goes on, up to 64. 0: 2; for none, see UNTORN_NO_CHECKPOINTERS. */
    uint32_t checkpointers;
    /* UNTORN_TRACKING_*; for untorn_map. */
    uint32_t dirty_tracking;
} untorn_options;

/* All defaults: `untorn_options options = UNTORN_OPTIONS_INIT;` */
#define UNTORN_OPTIONS_INIT { (uint32_t)sizeof(untorn_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/*
 * Files.
 */

/* Opens the file at `path` and, unless it is opened for reading only, recovers
 * it if it stands at a crash and gives it a sidecar if it has none. Opening one
 * file twice in a process gives two handles to one state.
 *
 * opts: NULL for the defaults. err: NULL, or where to put why it failed.
 * Returns the handle, to be ended by untorn_close or untorn_settle, or NULL; the
 * file is unchanged then.
 * Errors: UNTORN_ENOENT, UNTORN_EEXIST, UNTORN_EISDIR, UNTORN_EACCES,
 * UNTORN_EBUSY (open elsewhere, or here with other options), UNTORN_EINVAL (an
 * option), UNTORN_EOPNOTSUPP, UNTORN_EUCLEAN (read-only), UNTORN_EBADMSG,
 * UNTORN_ESIDECAR_MISSING, UNTORN_ESIDECAR_MISMATCH, UNTORN_EMIXED_USE,
 * UNTORN_ENOSPC and others from the system. */
untorn_t *untorn_open(const char *path, const untorn_options *opts, untorn_error *err);

/* Fills `dst` with the `n` bytes at `off`, atomically: a write by another thread
 * is seen whole or not at all. There are no short reads.
 * Errors: UNTORN_EFAULT unless all bytes lie within the file; UNTORN_EIO. What
 * dst holds then is unspecified. */
int untorn_read(untorn_t *file, uint64_t off, void *dst, size_t n);

/* Writes the `n` bytes at `src` to `off`, atomically, over any number of pages.
 * Per write durability: durable when it returns. Per commit: it joins the open
 * epoch. The file does not grow.
 * Errors: UNTORN_EFAULT unless all bytes lie within the file; UNTORN_EROFS,
 * UNTORN_ENOSPC, UNTORN_EIO, UNTORN_EPOISONED. The file holds none of the bytes
 * then, except that after a flush that failed just now only opening it again
 * tells whether all of them are in or none. */
int untorn_write(untorn_t *file, uint64_t off, const void *src, size_t n);

/* Commits the open epoch: when it returns 0, everything written before, by any
 * thread, is durable. Per write durability: there is nothing left to do.
 * Errors: UNTORN_EIO and others of a flush; the handle is poisoned then. */
int untorn_sync(untorn_t *file);

/* Changes the length, atomically; new bytes are zeros. Durable when it returns,
 * and the open epoch commits with it; but under HYBRID_LOG with per commit
 * durability the new length joins the open epoch, and is committed by
 * untorn_sync with all else, or lost with it.
 * Errors: UNTORN_EINVAL above untorn_options.max_len; UNTORN_EROFS,
 * UNTORN_ENOSPC, UNTORN_EIO, UNTORN_EPOISONED. */
int untorn_resize(untorn_t *file, uint64_t len);

/* The length in bytes; 0 for NULL. */
uint64_t untorn_len(untorn_t *file);

/* Commits the open epoch and, if this is the last handle of the process to the
 * file, closes it cleanly: the sidecar stays, and the next open needs no
 * recovery. A process that ends without it leaves the last commit.
 * The handle is gone whatever it returns, except UNTORN_ETXOPEN.
 * Errors: UNTORN_ETXOPEN; UNTORN_EIO and others of a flush: the next open
 * returns to the last commit. */
int untorn_close(untorn_t *file);

/* Commits, deploys everything into the data file, removes the sidecar and
 * closes: what is left is a plain file that any program may read and write.
 * The handle is gone whatever it returns, except UNTORN_ETXOPEN.
 * Errors: UNTORN_ETXOPEN; UNTORN_EBUSY while another handle of this process has
 * the file open; UNTORN_EROFS, UNTORN_EIO: the file can be opened and settled
 * again. */
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

/* Begins a transaction: writes to any ranges that commit together or not at all,
 * and that nobody else sees before.
 * Returns it, to be ended by untorn_tx_commit or untorn_tx_abort, or NULL;
 * untorn_last_error says why. */
untorn_tx *untorn_begin(untorn_t *file);

/* Adds a write of the `n` bytes at `src` to `off`; the bytes are copied, so src
 * is free again. A later write to the same bytes replaces an earlier one.
 * Errors: UNTORN_EFAULT unless all bytes lie within the file; UNTORN_ENOMEM. The
 * transaction stays as it was. */
int untorn_tx_write(untorn_tx *tx, uint64_t off, const void *src, size_t n);

/* Applies all writes as one. Per write durability: they are one commit, durable
 * when it returns. Per commit: they join the open epoch together.
 * The transaction is gone whatever it returns.
 * Errors: as for untorn_write; none of the writes is applied then. */
int untorn_tx_commit(untorn_tx *tx);

/* Drops the writes and the transaction. NULL is allowed. */
void untorn_tx_abort(untorn_tx *tx);

/*
 * Maps: a file as plain memory. The program loads and stores as it likes,
 * through pointers of its own, and then commits; the call returns when every
 * store since the last commit is durable. What a commit costs grows with the
 * pages that were stored to, not with the length.
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
 * - A map is named by its address, exactly as untorn_map returned it; an address
 *   within it, or of a map that has ended, is UNTORN_EINVAL. The address is the
 *   same until the map ends, whatever its length, and another one at each
 *   untorn_map: keep offsets in the file, not pointers.
 * - Only untorn_map_commit commits. What is stored after it is discarded by a
 *   crash, by untorn_map_rollback, untorn_unmap and untorn_map_settle; the kernel
 *   never writes it to the file, as it does with a shared mapping.
 * - Any thread may load and store, under the locks of the program. Calls on one
 *   map by several threads take turns. While untorn_map_commit runs, threads may
 *   load, but none may store: a store meanwhile may leave the log with bytes that
 *   its checksum is not of, and a crash may take the commit back. While
 *   untorn_map_rollback or untorn_map_resize runs none may load either, and none
 *   ever after untorn_unmap or untorn_map_settle has been called.
 * - A load or store beyond the length is a fault of the program. It may pass
 *   unseen, or cost the map: its calls fail with UNTORN_EIO from then on.
 * - What the kernel stores for the program, as read(2) does, counts as stored.
 * - After fork the child has the memory as it was at that moment. Its stores stay
 *   its own, and its calls on the map fail with UNTORN_EOWNERDEAD.
 * - A file is open as a map once, and not as a handle too (UNTORN_EBUSY); for
 *   reading only, any number of times.
 * - A page that is lost reads as zeros, and the next call on the map fails with
 *   UNTORN_EIO; see UNTORN_LOST_PAGE_SIGNAL.
 */

/* Opens the file at `path` as plain memory and, unless it is opened for reading
 * only, recovers it if it stands at a crash and gives it a sidecar if it has none.
 *
 * opts: NULL for the defaults. The engine is HYBRID_LOG, the durability
 * PER_COMMIT, the log REDO; others are refused. With UNTORN_READ_ONLY what is
 * stored stays in the memory of this map, and calls that change the file fail
 * with UNTORN_EROFS.
 * len: NULL, or where to put the length in bytes.
 * err: NULL, or where to put why it failed.
 * Returns the address of the first byte, which begins a page, to be ended by
 * untorn_unmap or untorn_map_settle, or NULL; no byte of the file is changed then,
 * but one that UNTORN_CREATE has created may be there.
 * Errors: those of untorn_open; UNTORN_EINVAL for an engine, durability or log
 * policy that a map can't have, or a read-only map of a file with committed bytes
 * in its sidecar; -EPERM and others of the system for a dirty_tracking that
 * is not to be had. */
void *untorn_map(const char *path, const untorn_options *opts, size_t *len, untorn_error *err);

/* Commits: when it returns 0, every store since the last commit is durable, and
 * the length with it. If nothing was stored, nothing is written.
 * Errors: UNTORN_EINVAL if what was stored does not fit into the log
 * (untorn_options.log_size), UNTORN_ENOSPC: nothing is committed, the stores are
 * still there, and it may be tried again. UNTORN_EROFS, UNTORN_EIO,
 * UNTORN_EPOISONED: after a flush that failed just now only mapping the file
 * again tells whether the commit is in, whole, or not. */
int untorn_map_commit(void *map);

/* Discards every store since the last commit; the length is that of the last
 * commit again.
 * Errors: UNTORN_EROFS; UNTORN_EIO, UNTORN_EPOISONED: some stores may be
 * discarded then, and others not. */
int untorn_map_rollback(void *map);

/* Changes the length; it is committed, or rolled back, with the stores. New bytes
 * are zeros. The address stays.
 * Errors: UNTORN_EINVAL above untorn_options.max_len; UNTORN_EROFS,
 * UNTORN_ENOSPC, UNTORN_EIO, UNTORN_EPOISONED. The length is as before then. */
int untorn_map_resize(void *map, uint64_t len);

/* The length in bytes; 0 for NULL, and where no map is. */
uint64_t untorn_map_len(void *map);

/* Ends the map: discards every store since the last commit, and closes the file
 * cleanly at that commit. The sidecar stays, and the next open needs no recovery.
 * A process that ends without it leaves the last commit, too.
 *
 * It does not commit, unlike untorn_close: what untorn_write wrote was whole when
 * it returned, but of plain stores only the program knows when they are. One that
 * unmaps on its way out of an error would commit half a change.
 *
 * The map is gone whatever it returns, except UNTORN_EINVAL and
 * UNTORN_EOWNERDEAD, for which there is none.
 * Errors: UNTORN_EIO and others of a flush: the next open returns to the last
 * commit. */
int untorn_unmap(void *map);

/* Ends the map as untorn_unmap does, brings the last commit home and removes the
 * sidecar: what is left is a plain file that any program may read and write.
 * The map is gone whatever it returns, except UNTORN_EINVAL and
 * UNTORN_EOWNERDEAD, for which there is none.
 * Errors: UNTORN_EROFS, UNTORN_EIO, UNTORN_EPOISONED: the file can be mapped and
 * settled again. */
int untorn_map_settle(void *map);

/*
 * Errors.
 */

/* Why the last call that failed in this thread failed, untorn/acumen.h and
 * untorn/nvmmio.h included.
 * A success does not change it; before the first failure the code is 0.
 * Errors: UNTORN_EINVAL for NULL. */
int untorn_last_error(untorn_error *err);

/* A short text for a code, in English. It lives as long as the process and is
 * never NULL, whatever the number. */
const char *untorn_strerror(int code);

#ifdef __cplusplus
}
#endif

#endif
