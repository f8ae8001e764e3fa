/*
 * untorn/shared.h - plain loads and stores of several processes to one file,
 * with one commit for the stores of all.
 *
 *     #include <untorn/shared.h>
 *
 *     untorn_options options = UNTORN_OPTIONS_INIT;     in each process:
 *     options.flags = UNTORN_CREATE;
 *     options.length = 1 << 20;
 *     uint64_t *journal = untorn_share("journal", &options, NULL, NULL);
 *     if (!journal) ...
 *     ... load and store, seen by all ...
 *     if (untorn_share_commit(journal, NULL)) ...
 *     int left = untorn_share_leave(journal);
 *
 * A commit by any process makes the stores of all processes, up to one instant,
 * durable together. The commit has a store whole or not at all, together with
 * everything that happened before it. Threads go on storing meanwhile; a store
 * to a page that is being copied for the commit waits about ten microseconds.
 * After a crash of the machine, or when the last process has ended, the file
 * holds the last commit.
 *
 * The rules:
 * - A process may join and leave at any time, and may be killed at any
 *   instruction. Its stores stay in the memory, like those of an ended thread;
 *   the next commit includes them, or a rollback discards them. One process has
 *   the file open and serves the others. When it dies, another one takes over
 *   within milliseconds. Meanwhile commits wait, and so do loads of pages that
 *   no process had loaded before.
 * - Other processes store at any time: use atomic operations, or locks that all
 *   processes use. A lock in the memory is committed and rolled back like other
 *   bytes, and the program must detect that its holder died.
 * - A map is identified by its address, exactly as untorn_share returned it.
 *   The address stays the same until this process leaves, and differs between
 *   processes: store offsets, not pointers. Do not touch bytes beyond the
 *   length.
 * - read(2) and other system calls into the memory fail with EFAULT, unless
 *   untorn_share_open_range was called for the range.
 * - A forked child does not have the memory: loads fault, and calls on the map
 *   fail with UNTORN_EOWNERDEAD. The child may share the file again.
 * - The processes must run as one user and trust each other. A thread that
 *   stores must not block SIGBUS. A SIGBUS handler that the program installs
 *   after untorn_share must call the one it replaces.
 * - It needs Linux 5.19 and a process that may use userfaultfd.
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

/* Opens the file at `path` as plain memory, together with the processes that
 * already share it; the first process recovers it after a crash. The processes
 * meet in the directory .untorn beside the file, so each must be able to see it
 * and write to it.
 *
 * opts: NULL for the defaults; as for untorn_map, but without UNTORN_READ_ONLY.
 * Each of several processes may pass UNTORN_CREATE at once: all of them share
 * one file. The first process's max_len and log options apply to all. Address
 * space is reserved for max_len; if it is 0, for 1 GiB or twice the length,
 * whichever is larger.
 * len: NULL, or where to store the length in bytes.
 * err: NULL, or where to store the reason of a failure.
 * Returns the address of the first byte, which untorn_share_leave ends, or
 * NULL.
 * Errors: those of untorn_map; UNTORN_EBUSY if any process has the file open
 * in another way; -EPERM and others of the system if userfaultfd is not
 * available. */
void *untorn_share(const char *path, const untorn_options *opts, size_t *len, untorn_error *err);

/* Commits the stores of all processes, including those that this thread made
 * before the call. Processes that commit at once may share one commit.
 * number: NULL, or where to store the number of the commit.
 * Errors: UNTORN_EINVAL if the stores do not fit into the log
 * (untorn_options.log_size), UNTORN_ENOSPC, UNTORN_EIO: nothing is
 * committed, unless the flush failed; UNTORN_EPOISONED after a failure that
 * ends all promises. */
int untorn_share_commit(void *map, uint64_t *number);

/* Discards the stores of all processes since the last commit.
 * Errors: UNTORN_EIO, UNTORN_EPOISONED. */
int untorn_share_rollback(void *map);

/* Grows the file to `len` bytes for all processes, and commits. New bytes are
 * zeros. The current length is not an error.
 * Errors: UNTORN_EINVAL if the file is longer already, or `len` is above
 * max_len; those of untorn_share_commit. */
int untorn_share_grow(void *map, uint64_t len);

/* The length in bytes, the same in all processes; 0 where no map is. */
uint64_t untorn_share_len(void *map);

/* Allows system calls of any of the processes to load from and store to the
 * `len` bytes at `offset`, until the next commit by any process. The bytes are
 * part of that commit. Another process may commit before the system call runs,
 * which then fails with EFAULT: read into a buffer and copy it, or repeat both
 * calls.
 * Errors: UNTORN_EFAULT beyond the length; UNTORN_EINVAL, UNTORN_EPOISONED. */
int untorn_share_open_range(void *map, uint64_t offset, uint64_t len);

/* 1 if this process currently has the file open and serves the others, 0 if
 * another process does, or a negative code. */
int untorn_share_is_serving(void *map);

/* Leaves the shared file, after all calls on the map have ended. Uncommitted
 * stores of this process stay in the memory until the last process has left.
 * The map is gone whatever the call returns, except UNTORN_EINVAL and
 * UNTORN_EOWNERDEAD, for which there is none.
 * Errors: UNTORN_EPOISONED if this process was evicted. */
int untorn_share_leave(void *map);

#ifdef __cplusplus
}
#endif

#endif
