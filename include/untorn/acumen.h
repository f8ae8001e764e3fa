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
 * Every write is atomic over any number of pages, and durable when it returns;
 * no reader sees it before. One file mapped more than once, overlapping or at
 * an offset, shares one sidecar and one set of locks, so each mapping sees what
 * is written through the others at once.
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

/* ato_unmap_mode: when its last mapping ends, the file is closed and keeps its
 * sidecar; the next mapping starts from it. The default. */
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
 * flags: MAP_SHARED or MAP_SHARED_VALIDATE; with MAP_FIXED_NOREPLACE the mapping
 *   is at addr or fails. Flags that ask for speed, such as MAP_POPULATE and
 *   MAP_SYNC, are accepted and have no effect.
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
 * EBUSY: another process has the file open, or this one has it open for reading
 *   only, or with per-commit durability through untorn.h.
 * EUCLEAN: the file was not closed cleanly and fd is read-only.
 * ESTALE: the sidecar is missing or does not belong to the file, or another
 *   program changed the file.
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
 * EBUSY: ATO_SPATIAL, and a handle of untorn.h has the file open: the mapping is
 *   gone, the file is not settled.
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
