/*
 * untorn/acumen.h - the interface of the Acumen paper: files mapped to
 * addresses, copied to and from atomically.
 *
 * A program written against mmap and memcpy changes to it name by name:
 *
 *     #include <untorn/acumen.h>
 *     #include <fcntl.h>
 *     #include <sys/mman.h>
 *
 *     int fd = open("ledger", O_RDWR);
 *     char *ledger = ato_mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
 *     if (ledger == MAP_FAILED) ...
 *     if (!ato_memcpy(ledger + 4090, "all or nothing", 14)) ...
 *     char copy[14];
 *     if (!ato_memcpy(copy, ledger + 4090, 14)) ...
 *     ato_munmap(ledger, 8192);
 *
 * The addresses are names, not memory. Only the functions here may use them: a
 * plain load or store through one, or a system call given one, faults (SIGSEGV,
 * EFAULT). It must: the valid bytes of a page may be partly in the sidecar, and
 * a load from the data file would return stale ones without a word.
 *
 * The paper lets a program load from a page that a read has deployed. untorn does
 * not, and ATO_EAGER makes no address readable either. A page can be readable
 * only while no write to it is possible: the next write of any thread or process
 * goes to the reflection page, and from then on the page at home is stale. To
 * take the access away first, each such write would have to change the page
 * tables of every process that maps the file, and wait for each of their
 * processors, which takes longer than the write. And a plain load has no way to
 * notice a write that comes in between; ato_memcpy has one, and copies a clean
 * page without a lock. untorn_map, in untorn.h, gives plain loads and stores.
 *
 * Every write is atomic over any number of pages, and durable when it returns;
 * no reader sees it before. With ATO_PER_COMMIT it is durable when ato_msync
 * returns. One file mapped more than once, overlapping or at an offset, shares
 * one sidecar and one set of locks, so each mapping sees what is written through
 * the others at once.
 *
 * Mappings of other processes share all this too. One process has the file open,
 * and makes the copies of the others, through memory that they share; if it ends
 * or is killed, another one takes over, and no write that returned is lost. The
 * processes run as one user. A process that maps a file which another one has
 * open through untorn.h shares it only if that one said UNTORN_SHARED.
 *
 * The length: ato_ftruncate sets it, atomically and durably, whether the file is
 * mapped or not. ftruncate(2) works too where it is safe:
 * - Between the last ato_munmap and the next ato_mmap the file is a plain one,
 *   which any program may shrink, grow, read and write.
 * - While it is mapped, ftruncate(2) may grow it. The first copy that reaches
 *   beyond the old end, and the next ato_mmap, take the new length over.
 * - While it is mapped, ftruncate(2) must not shrink it: that takes committed
 *   bytes away from under the mapping. On a disk the next unmap notices it and
 *   fails with ESTALE.
 * - After a crash, map the file before ftruncate(2) shrinks it: a file shorter
 *   than its last commit is refused with ESTALE, for nothing tells who cut it.
 *
 * SQLite: the extension of untorn is a VFS of this kind, in which the database is
 * written through the engine that is under these functions. The application
 * changes its open call alone, no line of SQLite. The documentation has it as
 * "SQLite without a journal".
 *
 * Failures set errno; untorn_last_error, in untorn.h, has the whole text. All
 * functions may be called from many threads, but not from a signal handler, and
 * a child after fork must map its files again: it has none of its parent's open,
 * and each call on one of their addresses fails with EOWNERDEAD and changes
 * nothing. It may map files whatever calls its parent's threads were making at
 * the fork, except the parent's very first call: fork after one has returned.
 */
#ifndef UNTORN_ACUMEN_H
#define UNTORN_ACUMEN_H

#include <stddef.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ato_memcpy2: deploy what was written into the data file before returning, so
 * that the first read of it is a plain copy. */
#define ATO_EAGER 1

/* ato_mmap: writes to the file are durable together, when ato_msync or an unmap
 * commits them, and a crash leaves the last commit. A disk is then flushed once a
 * commit, and not once a copy. All mappings of a file are of one kind. */
#define ATO_PER_COMMIT 0x02000000

/* ato_unmap_mode: when its last mapping ends, everything is deployed and the file
 * is closed. It keeps its sidecar, which holds nothing then but has its space, so
 * the next mapping makes no new one. The default. */
#define ATO_FAST 0
/* ato_unmap_mode: when its last mapping ends, everything is deployed and the
 * sidecar removed; what is left is a plain file. */
#define ATO_SPATIAL 1

/* Maps `length` bytes of the regular file behind `fd`, from `offset`, and
 * recovers the file first after a crash.
 *
 * addr: NULL, or where the mapping is wanted; the kernel may place it elsewhere.
 * length: more than 0; the mapping may reach beyond the end of the file, where
 *   copies fail with EFAULT until the file has grown.
 * prot: PROT_READ, or PROT_READ | PROT_WRITE.
 * flags: MAP_SHARED or MAP_SHARED_VALIDATE, and ATO_PER_COMMIT if that is wanted;
 *   with MAP_FIXED_NOREPLACE the mapping is at addr or fails. Flags that ask for
 *   speed, such as MAP_POPULATE and MAP_SYNC, are accepted and have no effect.
 * fd: the descriptor may be closed after the call.
 * offset: a multiple of the page size.
 *
 * Returns the first address, or MAP_FAILED with errno:
 * EBADF: fd is not open.
 * ENODEV: fd is not a regular file.
 * ENOENT: the file was removed; its sidecar is found by path, so it needs one.
 * EACCES: fd is not open for reading, or PROT_WRITE and not for writing.
 * EINVAL: length 0, offset not on a page, MAP_PRIVATE or MAP_ANONYMOUS.
 * EOPNOTSUPP: PROT_EXEC, PROT_NONE or PROT_WRITE alone; MAP_FIXED, which would
 *   replace what is there, or another flag not named above; a sidecar of a newer
 *   version.
 * EEXIST: MAP_FIXED_NOREPLACE, and another mapping is at addr.
 * EBUSY: another process has the file open and does not share it, or this one has
 *   it open for reading only. Or the file is mapped, here or there, with
 *   ATO_PER_COMMIT and is now to be without, or the other way round.
 * EUCLEAN: the file was not closed cleanly and fd is read-only.
 * ESTALE: the sidecar is missing or does not belong to the file, or after a crash
 *   or while it was open another program changed the file.
 * EBADMSG: the sidecar is damaged.
 * ENOMEM, ENOSPC, EIO and others of the system. */
void *ato_mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset);

/* Ends the mapping that starts at `addr`, as a whole; `length` is the one given
 * to ato_mmap, up to the end of its last page. It waits for copies under way.
 * With the last mapping the file is closed, as ato_unmap_mode says.
 *
 * Returns 0, or -1 with errno:
 * EINVAL: no mapping starts at addr, or length is that of a part; nothing is
 *   changed then.
 * EBUSY: ATO_SPATIAL, and a handle of untorn.h or another process has the file
 *   open: the mapping is gone, the file is not settled.
 * ESTALE: another program changed the file while it was mapped.
 * EROFS: ATO_SPATIAL, and the file was mapped from a read-only descriptor: the
 *   mapping is gone, the file is not settled.
 * EIO and others of a flush: the mapping is gone; the next open recovers the
 *   file with every write that returned. */
int ato_munmap(void *addr, size_t length);

/* Copies `n` bytes from `src` to `dst`. The side that is mapped decides:
 * dst mapped: an atomic, durable write to the file.
 * src mapped: an atomic read.
 * both mapped: an atomic read, then an atomic, durable write.
 * neither: memcpy, except that the two may overlap.
 * Memory that is not mapped by ato_mmap must not reach into a mapping.
 *
 * Returns dst, or NULL with errno; a file that was to be written holds none of
 * the bytes then:
 * EFAULT: the range ends beyond the mapping or the file, or an address is
 *   NULL (with n 0 nothing is looked at).
 * EACCES: dst is mapped without PROT_WRITE.
 * ENOMEM: both are mapped, and there is no memory for the copy.
 * ENOSPC, EIO and others: as untorn_write. */
void *ato_memcpy(void *dst, const void *src, size_t n);

/* ato_memcpy with flags: 0 or ATO_EAGER.
 * Errors: those of ato_memcpy; EINVAL for an unknown flag. An error of deploying
 * comes after the write: the file may hold the bytes then. */
void *ato_memcpy2(void *dst, const void *src, size_t n, unsigned flags);

/* Commits the file mapped at `addr`: when it returns 0, all that was written to
 * the file before, by any thread and process and through any mapping, is durable.
 * Without ATO_PER_COMMIT it is so already.
 *
 * addr: any address of a mapping; it need not be on a page.
 * length: a part of the mapping, up to the end of its last page, or 0.
 * flags: as for msync. MS_SYNC and MS_ASYNC do the same, MS_INVALIDATE nothing.
 *
 * Returns 0, or -1 with errno:
 * EINVAL: MS_SYNC and MS_ASYNC together, or an unknown flag.
 * ENOMEM: the range is not mapped.
 * EIO and others of a flush: no write succeeds any more; map the file again to
 *   return to its last commit, which may be this one. */
int ato_msync(void *addr, size_t length, int flags);

/* ftruncate: sets the length of the file behind `fd`, atomically, and durably when
 * it returns; new bytes are zeros. With ATO_PER_COMMIT what was written since the
 * last commit is committed with it. The file need not be mapped; a mapping stays
 * as long as it is.
 *
 * Returns 0, or -1 with errno:
 * EBADF, ENODEV, ENOENT: as for ato_mmap.
 * EACCES: fd is not open for writing.
 * EINVAL: length is negative, or beyond what the file may grow to.
 * ENOSPC, EIO and others: as untorn_resize; those of ato_mmap if the file is not
 *   mapped. */
int ato_ftruncate(int fd, off_t length);

/* Frees the space of reflection pages that hold nothing, of the file mapped at
 * `addr`, any address of a mapping. The file stays mapped and may be used
 * meanwhile. Pages that are written again get new space. An unmap that ends the
 * last mapping with ATO_SPATIAL frees all of it.
 *
 * Returns the bytes freed, or -1 with errno:
 * EINVAL: nothing is mapped there.
 * EIO and others of the file system. */
ssize_t ato_reclaim(void *addr);

/* Sets what happens to the file mapped at `addr`, the start of a mapping, when
 * its last mapping ends: ATO_FAST or ATO_SPATIAL. The last setting for the file
 * counts, through whichever of its mappings it was made.
 *
 * Returns 0, or -1 with errno EINVAL: no mapping starts at addr, or mode is
 * neither. */
int ato_unmap_mode(void *addr, int mode);

#ifdef __cplusplus
}
#endif

#endif
