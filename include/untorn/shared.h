/*
 * untorn/shared.h - plain loads and stores of several processes to one file,
 * with one commit for the stores of all.
 *
 *     #include <untorn/shared.h>
 *     #include <fcntl.h>
 *     #include <unistd.h>
 *
 *     close(open("journal", O_RDWR | O_CREAT, 0600));   in each process:
 *     uint64_t *journal = untorn_share("journal", NULL, NULL, NULL);
 *     if (!journal) ...
 *     if (untorn_share_grow(journal, 1 << 20)) ...      unless it is as long already
 *     ... load and store, seen by all ...
 *     if (untorn_share_commit(journal, NULL)) ...
 *     int left = untorn_share_leave(journal);
 *
 * A commit by any process makes all processes' stores up to one instant durable
 * together: a store is in it whole or not at all, and with it everything that
 * happened before it. Threads go on storing meanwhile; a store to a page that is
 * being copied for the commit waits for some ten microseconds. After a crash of
 * the machine, or when the last process has ended, the file holds the last commit.
 *
 * The rules:
 * - A process may come and go at any time and be killed at any instruction. What
 *   it stored stays in the memory, like the stores of a thread that has ended, and
 *   goes with the next commit, or rollback. One of the processes has the file open
 *   and serves the others; when it dies another takes its place within
 *   milliseconds, in which commits, and loads of pages that nobody had loaded
 *   before, wait.
 * - Other processes store at any time: use atomic operations, or locks that all
 *   keep to. A lock in the memory is committed and rolled back like the rest, and
 *   its dead holder is for the program to notice.
 * - A map is named by its address, exactly as untorn_share returned it. It stays
 *   the same until this process leaves, and is another one in each process: keep
 *   offsets, not pointers. Bytes beyond the length are not to be touched.
 * - read(2) and the like into the memory fail with EFAULT, unless
 *   untorn_share_open_range was called for it.
 * - A forked child does not have the memory: loads fault, and calls on the map
 *   fail with UNTORN_EOWNERDEAD. It may share the file anew.
 * - The processes are of one user and trust each other. SIGBUS is not blocked in a
 *   thread that stores; a handler for it that the program installs after
 *   untorn_share calls the one it replaces.
 * - It takes Linux 5.19 and a process that may use userfaultfd.
 *
 * Functions return 0 or a negative code, as those of untorn.h do, which says more
 * about codes. Threads may call them at once.
 */
#ifndef UNTORN_SHARED_H
#define UNTORN_SHARED_H

#include <untorn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Opens the file at `path` as plain memory, together with the processes that share
 * it already; the first one recovers it if it stands at a crash. They meet in the
 * directory .untorn beside the file, so all have to see that and be allowed to
 * write to it.
 *
 * opts: NULL for the defaults; as for untorn_map, but no UNTORN_CREATE (a file of
 * length 0 can be shared, and grown) and no UNTORN_READ_ONLY. What the process that
 * came first said of max_len and the log counts for all. max_len, for which address
 * space is reserved, is 64 GiB if it is 0, or twice the length if that is more.
 * len: NULL, or where to put the length in bytes.
 * err: NULL, or where to put why it failed.
 * Returns the address of the first byte, to be ended by untorn_share_leave, or NULL.
 * Errors: those of untorn_map; UNTORN_EBUSY if the file is open in another way, in
 * any process; -EPERM and others of the system where userfaultfd is not to be had. */
void *untorn_share(const char *path, const untorn_options *opts, size_t *len, untorn_error *err);

/* Commits the stores of all processes, those of this thread before the call among
 * them. Processes that commit at once may share one.
 * number: NULL, or where to put the number of the commit.
 * Errors: UNTORN_EINVAL if what was stored does not fit into the log
 * (untorn_options.log_size), UNTORN_ENOSPC, UNTORN_EIO: nothing is committed then,
 * unless the flush failed; UNTORN_EPOISONED, when nothing more is promised. */
int untorn_share_commit(void *map, uint64_t *number);

/* Takes back the stores of all processes since the last commit.
 * Errors: UNTORN_EIO, UNTORN_EPOISONED. */
int untorn_share_rollback(void *map);

/* Makes the file `len` bytes long for all processes, and commits. New bytes are
 * zeros. It is no error if it is that long.
 * Errors: UNTORN_EINVAL if it is longer already, or above max_len; those of
 * untorn_share_commit. */
int untorn_share_grow(void *map, uint64_t len);

/* The length in bytes, the same in all processes; 0 where no map is. */
uint64_t untorn_share_len(void *map);

/* Lets system calls, of any of the processes, load from `len` bytes at `offset` and
 * store to them until the next commit, by whomever. They are part of that commit.
 * Another process may commit before the system call is made, which then fails with
 * EFAULT: read into a buffer and copy it, or call both again.
 * Errors: UNTORN_EFAULT beyond the length; UNTORN_EINVAL, UNTORN_EPOISONED. */
int untorn_share_open_range(void *map, uint64_t offset, uint64_t len);

/* 1 if this process has the file open and serves the others at this moment, 0 if
 * another does, or a negative code. */
int untorn_share_is_serving(void *map);

/* Leaves, when every call on the map is through. What this process stored and nobody
 * committed stays in the memory; it goes when the last process has left.
 * The map is gone whatever it returns, except UNTORN_EINVAL and
 * UNTORN_EOWNERDEAD, for which there is none.
 * Errors: UNTORN_EPOISONED if this process had lost touch with the others. */
int untorn_share_leave(void *map);

#ifdef __cplusplus
}
#endif

#endif
