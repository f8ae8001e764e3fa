/*
 * untorn/nvmmio.h - the interface of the Libnvmmio paper: files mapped to
 * addresses, written by memcpy, and committed by msync, all or nothing.
 *
 * A program written against mmap, memcpy and msync changes to it name by name:
 *
 *     #include <untorn/nvmmio.h>
 *     #include <fcntl.h>
 *     #include <sys/mman.h>
 *
 *     int fd = open("ledger", O_RDWR);
 *     char *ledger = nvmmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
 *     if (ledger == MAP_FAILED) ...
 *     if (!nvmemcpy(ledger, "from", 4)) ...
 *     if (!nvmemcpy(ledger + 4096, "to", 2)) ...
 *     if (nvmsync(ledger, 8192, MS_SYNC)) ...     both of them, or neither
 *     nvmunmap(ledger, 8192);
 *
 * A write is seen by every reader at once and whole. It is durable together with
 * all others since the last commit when nvmsync returns 0; after a crash the
 * file is as the last commit left it, the bytes and the length. The cost of a
 * commit does not depend on how much was written. The engine is hybrid-log, with
 * its defaults: redo or undo by what the program did lately. nvmlog sets others;
 * so does untorn.h, whose settings the mappings share that are made while it has
 * the file open.
 *
 * The addresses are names, not memory. Only the functions here may use them: a
 * plain load or store through one, or a system call given one, faults (SIGSEGV,
 * EFAULT). It must: the newest bytes may be in the log, and a load from the data
 * file would return stale ones without a word. The functions find the file by
 * address in an ordered table that is replaced as a whole, so they take no lock;
 * each thread remembers where it found its last address. Addresses of acumen.h
 * may be given to nvmemcpy and the others too, which do with them what they do
 * with their own.
 *
 * Mappings of other processes share the file, its log and its commits. One process
 * has the file open, and makes the copies of the others, through memory that they
 * share. If it ends, another one takes over. If it is killed, that one takes over
 * at the last commit; what was written since is lost, by whichever process, and
 * each of them is told so, once it calls: EIO, until it maps the file again. The
 * processes run as one user. A process that maps a file which another one has open
 * through untorn.h shares it only if that one said UNTORN_SHARED.
 *
 * The length: nvftruncate sets it, as a change that the next commit commits.
 * ftruncate(2) works too where it is safe: on a file that nobody has mapped, and to
 * grow one that is. The first copy that reaches beyond the old end, and the next
 * nvmmap, take the new length over. To shrink a file that is mapped takes committed
 * bytes away from under the mapping: on a disk the next commit notices it and fails
 * with ESTALE. After a crash, map the file before ftruncate(2) shrinks it: a file
 * shorter than its last commit is refused with ESTALE, for nothing tells who cut it.
 *
 * Failures set errno; untorn_last_error, in untorn.h, has the whole text. All
 * functions may be called from many threads, but not from a signal handler, and
 * a child after fork must map its files again: it has none of its parent's open,
 * and each call on one of their addresses fails with EOWNERDEAD and changes
 * nothing. It may map files whatever calls its parent's threads were making at
 * the fork, except the parent's very first call: fork after one has returned.
 */
#ifndef UNTORN_NVMMIO_H
#define UNTORN_NVMMIO_H

#include <stddef.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The paper's flag of open: this file is to be written atomically (§3). It has
 * the value of the paper's artifact, which no flag of Linux has. It is for a
 * program's own open function, which tells by it the files to map with nvmmap
 * from those to map with mmap. Mask it off before open(2): the kernel ignores
 * it, openat2(2) refuses it, and neither remembers it with the descriptor.
 * nvmmap does not ask for it; whatever it maps is atomic. */
#define O_ATOMIC 01000000000

/* nvmlog: the policy. Redo logs the new bytes, and copies them home after the
 * commit; undo logs the old bytes, and writes the new ones home at once. HYBRID
 * takes, for each epoch, the one that suits the share of writes in the last. */
#define NVM_LOG_HYBRID 0
#define NVM_LOG_UNDO 1
#define NVM_LOG_REDO 2

/* Sets how the files are logged that this process maps from now on; a file that is
 * mapped stays as it is.
 *
 * policy: NVM_LOG_HYBRID, NVM_LOG_UNDO or NVM_LOG_REDO. A disk has redo whatever
 *   HYBRID says, and UNDO is refused when a file on one is mapped.
 * size: the most bytes of a file's log, or 0 for the default, 64 GiB. All that is
 *   written between two commits must fit.
 *
 * Processes that map a file have the settings of the first. Returns 0, or -1 with
 * errno EINVAL: policy is none of these. */
int nvmlog(int policy, size_t size);

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
 * A file mapped more than once, overlapping or at an offset, has one state: each
 * mapping sees what is written through the others at once, and one commit
 * commits it all.
 *
 * Returns the first address, or MAP_FAILED with errno:
 * EBADF: fd is not open.
 * ENODEV: fd is not a regular file.
 * ENOENT: the file was removed; its sidecar is found by path, so it needs one.
 * EACCES: fd is not open for reading, or PROT_WRITE and not for writing.
 * EINVAL: length 0, offset not on a page, MAP_PRIVATE or MAP_ANONYMOUS; settings
 *   of nvmlog that the file cannot have. Or another engine keeps bytes of the file
 *   in its sidecar, as a crash of a program with ato_mmap leaves them: `untorn
 *   settle` settles the file.
 * EOPNOTSUPP: PROT_EXEC, PROT_NONE or PROT_WRITE alone; MAP_FIXED, which would
 *   replace what is there, or another flag not named above; a sidecar of a newer
 *   version.
 * EEXIST: MAP_FIXED_NOREPLACE, and another mapping is at addr.
 * EBUSY: another process has the file open and does not share it, or with other
 *   settings; or one has it open, this process too, for reading only, under
 *   another engine, or with per-write durability, through untorn.h or ato_mmap.
 * EUCLEAN: the file was not closed cleanly and fd is read-only.
 * ESTALE: the sidecar is missing or does not belong to the file, or after a crash
 *   or while it was open another program changed the file.
 * EBADMSG: the sidecar is damaged.
 * ENOMEM, ENOSPC, EIO and others of the system. */
void *nvmmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset);

/* Commits the file, whatever else is mapped of it, and ends the mapping that
 * starts at `addr`, as a whole; `length` is the one given to nvmmap, up to the
 * end of its last page. It waits for copies under way. As after munmap nothing
 * written is lost; a process that ends without it, or crashes, leaves the last
 * commit. With its last mapping, unless untorn.h has it open, the file is
 * closed: it is a plain file then, which holds all committed bytes.
 *
 * Returns 0, or -1 with errno:
 * EINVAL: no mapping starts at addr, or length is that of a part; nothing is
 *   changed then.
 * EIO and others of a flush: the mapping is gone; the next open recovers the
 *   last commit, which may be this one. */
int nvmunmap(void *addr, size_t length);

/* Copies `n` bytes from `src` to `dst`. The side that is mapped decides:
 * dst mapped: an atomic write to the file, which joins the open epoch.
 * src mapped: an atomic read.
 * both mapped: an atomic read, then an atomic write.
 * neither: memcpy, except that the two may overlap.
 * Memory that is not mapped by nvmmap must not reach into a mapping.
 *
 * Returns dst, or NULL with errno; a file that was to be written holds none of
 * the bytes then:
 * EFAULT: the range ends beyond the mapping or the file, or an address is
 *   NULL (with n 0 nothing is looked at).
 * EACCES: dst is mapped without PROT_WRITE.
 * ENOMEM: both are mapped, and there is no memory for the copy.
 * EINVAL: the log has no room for all that would be written since the last
 * commit: nvmsync makes room.
 * ENOSPC, EIO and others: as untorn_write. */
void *nvmemcpy(void *dst, const void *src, size_t n);

/* Commits the open epoch of the file mapped at `addr`: when it returns 0, all
 * that was written to the file before, by any thread and through any mapping, is
 * durable. It is the whole file whatever the range names, for the writes since
 * the last commit belong together.
 *
 * addr: any address of a mapping; it need not be on a page.
 * length: a part of the mapping, up to the end of its last page, or 0.
 * flags: as for msync. MS_SYNC and MS_ASYNC do the same, and MS_INVALIDATE
 *   nothing: mappings agree at all times.
 *
 * Returns 0, or -1 with errno:
 * EINVAL: MS_SYNC and MS_ASYNC together, or an unknown flag.
 * ENOMEM: the range is not mapped.
 * EIO and others of a flush: no write succeeds any more; map the file again to
 *   return to its last commit, which may be this one. */
int nvmsync(void *addr, size_t length, int flags);

/* ftruncate: sets the length of the file behind `fd`; new bytes are zeros. Every
 * reader sees it at once, and it is durable together with what was written since
 * the last commit when nvmsync returns 0. The file need not be mapped: then the call
 * commits by itself. A mapping stays as long as it is.
 *
 * Returns 0, or -1 with errno:
 * EBADF, ENODEV, ENOENT: as for nvmmap.
 * EACCES: fd is not open for writing.
 * EINVAL: length is negative, or beyond what the file may grow to.
 * ENOSPC, EIO and others: as untorn_resize; those of nvmmap if the file is not
 *   mapped. */
int nvftruncate(int fd, off_t length);

/* Sets `n` bytes from `dst` on to `c`: if dst is mapped, by an atomic write that
 * joins the open epoch, else as memset does.
 *
 * Returns dst, or NULL with the errno of nvmemcpy; ENOMEM: there is no memory to
 * write from. */
void *nvmemset(void *dst, int c, size_t n);

/* Compares `n` bytes as memcmp does. Each side that is mapped is read
 * atomically, one after the other.
 *
 * Returns a number below, equal to or above 0. A failure is not 0 either, but
 * INT_MIN, which is no other result, with the errno of nvmemcpy. */
int nvmemcmp(const void *a, const void *b, size_t n);

/* Compares strings as strcmp does. Each one that is mapped is read atomically,
 * however long it is, one after the other.
 *
 * Returns a number below, equal to or above 0. A failure is not 0 either, but
 * INT_MIN, which is no other result, with the errno of nvmemcpy; EFAULT: a
 * string has no NUL byte within the mapping and the file. */
int nvstrcmp(const char *a, const char *b);

#ifdef __cplusplus
}
#endif

#endif
