/*
 * untorn/libpmem.h - the functions of libpmem, with atomic commits: after a
 * crash at any instant, a mapping holds the state of its last persist.
 *
 * The Region System paper's LIBPMEM-REGION. A program written for libpmem needs
 * another header and another library, and no other change:
 *
 *     #include <untorn/libpmem.h>               in the place of <libpmem.h>
 *     cc program.c -luntorn                     in the place of -lpmem
 *
 * `cc -I PREFIX/include/untorn` also finds this header as <libpmem.h>. It
 * declares untorn_pmem_persist and so on, and defines each name of libpmem as a
 * macro for it, and a process may have both libraries.
 *
 *     int is_pmem;
 *     size_t len;
 *     char *log = pmem_map_file("log", 1 << 20, PMEM_FILE_CREATE, 0666, &len, &is_pmem);
 *     if (!log) fprintf(stderr, "%s\n", pmem_errormsg());
 *     strcpy(log, "plain stores");
 *     if (is_pmem) pmem_persist(log, 13);
 *     else if (pmem_msync(log, 13)) ...
 *     pmem_unmap(log, len);
 *
 * A path names one of two things:
 * - A file, on any medium: an ordinary disk too. After pmem_unmap it is a plain
 *   file. Until then it has a sidecar in .untorn beside it.
 * - STORE/REGION, where STORE is the file of a region store: a region of it,
 *   which `untorn region` and region_open see too. PMEM_FILE_CREATE creates the
 *   region, and `untorn region create` the store.
 *
 * Stronger than in libpmem:
 * - A persist is a commit. It makes *every* store to the mapping durable that
 *   ended before the call, not only the range: all of them together, or after a
 *   crash none since the persist before. No store becomes durable earlier, so a
 *   program may leave the memory inconsistent between two persists.
 * - No flush is needed for a store to be part of the next persist.
 *
 * Differences:
 * - is_pmem is 0, so that a program which follows libpmem's manual calls
 *   pmem_msync, which can report a failure. Each function works in both cases.
 *   Set PMEM_IS_PMEM_FORCE=1 in the environment for a program that insists on 1.
 * - pmem_persist, pmem_drain and the copies that persist return no error. If one
 *   fails, it sets errno, and the mapping commits nothing any more: pmem_msync,
 *   pmem_deep_persist, pmem_deep_drain and pmem_unmap of it fail. The file stays
 *   at its last commit.
 * - pmem_unmap commits, and takes a whole mapping. A process that ends without
 *   it keeps its last persist.
 * - Threads may store while another one persists. Their stores are in the commit
 *   whole, in part or not at all, and whole in the next one. A thread's update is
 *   atomic only if no other thread persists in the middle of it.
 * - One process maps a file or a region at a time. A forked child has a copy of
 *   what its parent stored, and cannot persist.
 * - A persist costs a flush of the device, and a copy of each page stored to.
 *   Every page that was ever stored to stays in memory until pmem_unmap.
 *
 * Failures set errno; pmem_errormsg has the whole text. All functions may be
 * called by many threads, but not from a signal handler.
 */
#ifndef UNTORN_LIBPMEM_H
#define UNTORN_LIBPMEM_H

#include <stddef.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of libpmem whose functions these are. */
#define PMEM_MAJOR_VERSION 1
#define PMEM_MINOR_VERSION 1

/* Flags of pmem_map_file: create the file or region if there is none. */
#define PMEM_FILE_CREATE 1
/* With PMEM_FILE_CREATE: fail if there is one. */
#define PMEM_FILE_EXCL 2
/* With PMEM_FILE_CREATE: allocate no space for a new file. */
#define PMEM_FILE_SPARSE 4
/* A file without a name: refused, for no commit of it could survive. */
#define PMEM_FILE_TMPFILE 8

/* Flags of pmem_memcpy, pmem_memmove and pmem_memset: do not persist; only note
 * that the next pmem_drain of this thread does. */
#define PMEM_F_MEM_NODRAIN 1
/* How to store. Accepted, and of no effect: a commit finds every store. */
#define PMEM_F_MEM_NONTEMPORAL 2
#define PMEM_F_MEM_TEMPORAL 4
#define PMEM_F_MEM_WC 8
#define PMEM_F_MEM_WB 16
/* Neither persist nor note anything. */
#define PMEM_F_MEM_NOFLUSH 32
#define PMEM_F_MEM_VALID_FLAGS 63

/* Maps a whole file or region for loads and stores, and recovers it first after
 * a crash. One that is already mapped by this function is mapped at the same
 * address once more.
 *
 * len: without PMEM_FILE_CREATE 0. With it the length, to which the file or
 *   region is extended or cut. A region has whole pages of 4096 bytes.
 * flags: PMEM_FILE_*. Unless PMEM_FILE_SPARSE is passed, the space of a new file
 *   is allocated. The log of a file and the pages of a region are allocated at a
 *   persist, which may fail with ENOSPC.
 * mode: of a new file. It has no effect on a region.
 * mapped_len: NULL, or where to store the length.
 * is_pmem: NULL, or where to store what untorn_pmem_is_pmem says.
 *
 * Returns the address, or NULL with errno:
 * EINVAL: a length of 0 with PMEM_FILE_CREATE or another one without; an unknown
 *   flag; an empty file or region; a region that lacks one of its first pages.
 * ENOENT, EEXIST: without PMEM_FILE_CREATE, or with PMEM_FILE_EXCL.
 * EBUSY: another process has the file or store open, or this one has it open in
 *   another way; or it is mapped, with another length.
 * EOPNOTSUPP: PMEM_FILE_TMPFILE.
 * ENOSPC, EIO, EBADMSG and others: as for untorn_map and region_open. */
void *untorn_pmem_map_file(const char *path, size_t len, int flags, mode_t mode, size_t *mapped_len, int *is_pmem);

/* Commits, and ends a mapping. A mapping that was made several times is only
 * committed until the last one ends. No thread may store to it meanwhile.
 *
 * addr, len: as untorn_pmem_map_file returned and stored them.
 * Returns 0, or -1 with errno:
 * EINVAL: no mapping starts at addr, or it has another length.
 * ENOSPC, EIO and others: the mapping has ended, and the file or region is at its
 *   last commit. */
int untorn_pmem_unmap(void *addr, size_t len);

/* Commits the mapping that a range lies in.
 *
 * Returns 0, or -1 with errno:
 * EINVAL: the range does not lie in one mapping.
 * ENOSPC, EDQUOT: nothing was committed and no store is lost; the call may be
 *   repeated.
 * EIO: an earlier call that returns no error has failed, or a flush has; map the
 *   file again to learn which commit it holds: all of it or nothing. */
int untorn_pmem_msync(const void *addr, size_t len);

/* The same. */
int untorn_pmem_deep_persist(const void *addr, size_t len);
int untorn_pmem_deep_drain(const void *addr, size_t len);

/* untorn_pmem_flush and untorn_pmem_drain. */
void untorn_pmem_persist(const void *addr, size_t len);

/* Notes that the next untorn_pmem_drain of this thread commits the mapping that a
 * range lies in. It takes a few dozen nanoseconds. */
void untorn_pmem_flush(const void *addr, size_t len);
void untorn_pmem_deep_flush(const void *addr, size_t len);

/* Commits each mapping that this thread noted since its last call. */
void untorn_pmem_drain(void);

/* Copies or fills bytes, and persists them unless a flag says otherwise. The
 * ranges of untorn_pmem_memcpy may overlap too. Unknown flags are ignored, as in
 * libpmem.
 * Each returns its first argument. */
void *untorn_pmem_memcpy(void *to, const void *from, size_t len, unsigned flags);
void *untorn_pmem_memmove(void *to, const void *from, size_t len, unsigned flags);
void *untorn_pmem_memset(void *to, int byte, size_t len, unsigned flags);

/* The same without flags. */
void *untorn_pmem_memcpy_persist(void *to, const void *from, size_t len);
void *untorn_pmem_memmove_persist(void *to, const void *from, size_t len);
void *untorn_pmem_memset_persist(void *to, int byte, size_t len);

/* The same with PMEM_F_MEM_NODRAIN. */
void *untorn_pmem_memcpy_nodrain(void *to, const void *from, size_t len);
void *untorn_pmem_memmove_nodrain(void *to, const void *from, size_t len);
void *untorn_pmem_memset_nodrain(void *to, int byte, size_t len);

/* 1 if the range lies in one mapping and PMEM_IS_PMEM_FORCE is 1, else 0. */
int untorn_pmem_is_pmem(const void *addr, size_t len);

/* 0: a store that was not persisted is in no commit, whatever the processor
 * flushes by itself. */
int untorn_pmem_has_auto_flush(void);

/* 0, as in libpmem. */
int untorn_pmem_has_hw_drain(void);

/* NULL if these functions serve programs for this version of libpmem, or the
 * reason. */
const char *untorn_pmem_check_version(unsigned major, unsigned minor);

/* The text of this thread's last failure. It is valid until the next one. */
const char *untorn_pmem_errormsg(void);

/* The names of libpmem. */
#define pmem_map_file untorn_pmem_map_file
#define pmem_unmap untorn_pmem_unmap
#define pmem_msync untorn_pmem_msync
#define pmem_deep_persist untorn_pmem_deep_persist
#define pmem_deep_drain untorn_pmem_deep_drain
#define pmem_deep_flush untorn_pmem_deep_flush
#define pmem_persist untorn_pmem_persist
#define pmem_flush untorn_pmem_flush
#define pmem_drain untorn_pmem_drain
#define pmem_memcpy untorn_pmem_memcpy
#define pmem_memmove untorn_pmem_memmove
#define pmem_memset untorn_pmem_memset
#define pmem_memcpy_persist untorn_pmem_memcpy_persist
#define pmem_memmove_persist untorn_pmem_memmove_persist
#define pmem_memset_persist untorn_pmem_memset_persist
#define pmem_memcpy_nodrain untorn_pmem_memcpy_nodrain
#define pmem_memmove_nodrain untorn_pmem_memmove_nodrain
#define pmem_memset_nodrain untorn_pmem_memset_nodrain
#define pmem_is_pmem untorn_pmem_is_pmem
#define pmem_has_auto_flush untorn_pmem_has_auto_flush
#define pmem_has_hw_drain untorn_pmem_has_hw_drain
#define pmem_check_version untorn_pmem_check_version
#define pmem_errormsg untorn_pmem_errormsg

#ifdef __cplusplus
}
#endif

#endif
