/*
 * untorn/region.h - the interface of the Region System paper (Table II): named
 * regions of 4 KiB pages, in any order, mapped as plain memory and committed as
 * a whole.
 *
 * Its Listing 1, in these names:
 *
 *     #include <untorn/region.h>
 *     #include <fcntl.h>
 *     #include <sys/mman.h>
 *
 *     int rd = region_open("__region_1", O_CREAT);
 *     int64_t ppage_no = alloc_ppage(rd);
 *     char *log = pmmap(NULL, rd, ppage_no, 4096, MAP_SHARED);
 *     if (log == MAP_FAILED) ...
 *     strcpy(log, "plain stores");
 *     if (pmsync(rd)) ...          the page and what is on it, or neither
 *     pmunmap(log);
 *     region_close(rd);
 *
 * The regions are in a store: a file whose path is in the environment variable
 * UNTORN_REGION_STORE, which `untorn region` reads too. The store is open while
 * a region of it is open. One process has a store open at a time, unless the
 * processes share one of its regions: see REGION_SHARED.
 *
 * pmsync commits all changes of a region since the last pmsync: pages stored
 * to, allocated, freed. After a crash at any instant the region is at the last
 * pmsync that returned 0, or at the one that was running. A crash and the last
 * region_close discard uncommitted changes. The memory is private to the
 * process: nothing of it reaches the store before a pmsync.
 *
 * A region has one address range, reserved when it is opened: page n is always
 * 4096 * (n - m) bytes after page m. Touching a page of it that is not mapped
 * is a SIGSEGV. On Linux 6.15 and later, mapped pages do not count towards
 * vm.max_map_count; before, each run of consecutive mapped pages counts as one.
 *
 * Failures set errno; untorn_last_error, in untorn.h, has the whole text.
 *
 * Many threads may call all functions, but not from a signal handler. Calls on
 * one region take turns; calls on different regions do not. With REGION_SHARED
 * calls on one region do not take turns either, so threads allocate, free, map
 * and unmap during a pmsync. region_open, region_close and region_delete take
 * turns with each other, whatever the region. region_close waits for running
 * calls on its region, and later calls fail with EBADF.
 *
 * In a child after fork no descriptor is open, and what it stores is its own. It
 * sees pages that were stored to since the last pmsync as they were at the fork.
 * In others it may see anything that the parent commits, to any region.
 */
#ifndef UNTORN_REGION_H
#define UNTORN_REGION_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A flag of region_open: share the region with other processes that open it
 * with this flag. Each process sees the others' stores, and which pages they
 * allocate and free. A pmsync by any process commits the changes of all
 * processes up to one instant, while their threads go on storing; later changes
 * are in the next pmsync. A killed process leaves its stores and allocations to
 * the others. One process has the store open for all; when it ends, another one
 * takes over.
 *
 * Differences from a region of one process:
 * - Processes share one region of a store at a time, and no process can open
 *   the store in another way.
 * - Only the first 4 GiB of a region can be in memory. The addresses may differ
 *   between processes. A program can touch pages that are not mapped; stores to
 *   a page that is not allocated are in no commit.
 * - Threads may store during pmsync. Uncommitted changes are discarded when the
 *   last process closes the region. After a failed flush pmsync fails in all
 *   processes, until all have closed the region. The same happens if a process
 *   that does not share the region changed it between the death of the process
 *   that had the store open and the next one's takeover.
 * - free_ppage knows only the mappings of its own process.
 * - A thread that stores must not block SIGBUS. A SIGBUS handler that is
 *   installed later must call the one it replaces.
 * - A forked child does not have the memory. The processes must run as one
 *   user.
 * - It needs userfaultfd (Linux 5.19): see `untorn doctor`. */
#define REGION_SHARED 0x40000000

/* Opens a region, and recovers it first after a crash.
 *
 * name: 1 to 255 bytes of UTF-8 without control characters.
 * flags: O_CREAT: make the region, and the store, if there is none; with O_EXCL:
 *   fail if there is one. REGION_SHARED: together with other processes; not with
 *   O_EXCL. Access modes and O_CLOEXEC are accepted and have no effect: an open
 *   region can be read and written.
 *
 * Returns a descriptor, which is no file descriptor, or -1 with errno; a region
 * opened twice has two descriptors and one state:
 * EINVAL: a name no region can have, an unknown flag, UNTORN_REGION_STORE is not
 *   set, or the store has as many regions as it was made for (1024).
 * ENOENT: no such region, or no store, and no O_CREAT.
 * EEXIST: O_CREAT with O_EXCL, and the region exists.
 * EBUSY: another process has the store open; or this one has the region open, and
 *   one of the two with REGION_SHARED; or another region of the store is shared.
 * EPERM, ENOSYS: REGION_SHARED, and userfaultfd is not available.
 * EBADMSG: the store or the region is damaged.
 * EOPNOTSUPP: a store of a newer version, or pages of memory are not 4 KiB.
 * ENOMEM, ENOSPC, EIO and others of the system. */
int region_open(const char *name, int flags);

/* Closes a descriptor. With the last one of a region, what is not committed is
 * discarded.
 *
 * Returns 0, or -1 with errno:
 * EBADF: rd is not open.
 * EBUSY: it is the last one, and pages of the region are mapped.
 * EIO and others: the store was closed all the same; every commit is as durable
 *   as it was. */
int region_close(int rd);

/* Deletes a region and all its pages, durably.
 *
 * Returns 0, or -1 with errno:
 * EBUSY: the region is open, or another process has the store open.
 * ENOENT: no such region.
 * EINVAL, EBADMSG, EIO and others: as region_open. */
int region_delete(const char *name);

/* Allocates a page: the lowest number that is free. It holds zeros, and is part
 * of the region from the next pmsync on.
 *
 * Returns its number, or -1 with errno:
 * EBADF: rd is not open.
 * EINVAL: the region has no free page.
 * EIO: an earlier flush failed; close all regions of the store, then open this
 *   one again. */
int64_t alloc_ppage(int rd);

/* Frees a page. It leaves the region at the next pmsync; neither its number nor
 * its space is reused before.
 *
 * Returns 0, or -1 with errno:
 * EBADF: rd is not open.
 * EBUSY: the page is mapped.
 * EINVAL: it is not allocated.
 * EIO: an earlier flush failed; close all regions of the store, then open this
 *   one again. */
int free_ppage(int rd, int64_t ppn);

/* Maps the pages that `nbytes` bytes from page `ppn` on lie in, all of which must
 * be allocated, for loads and stores.
 *
 * va: NULL; or with MAP_FIXED_NOREPLACE where the mapping is to be.
 * flags: MAP_SHARED or MAP_SHARED_VALIDATE. Flags that ask for speed, such as
 *   MAP_POPULATE and MAP_SYNC, are accepted and have no effect.
 *
 * Pages may be mapped more than once: they are at the same address, and stay
 * there until as many calls of pmunmap.
 *
 * Returns the address, or MAP_FAILED with errno:
 * EBADF: rd is not open.
 * EINVAL: nbytes is 0, a page that is not allocated, or MAP_PRIVATE.
 * EFAULT: beyond the pages that the region can have, or the 64 GiB of addresses
 *   that are reserved for it, or less where there is no room.
 * EEXIST: MAP_FIXED_NOREPLACE, and the pages are elsewhere.
 * EOPNOTSUPP: MAP_FIXED or another flag not named above.
 * ENOMEM, EIO and others of the system. */
void *pmmap(void *va, int rd, int64_t ppn, size_t nbytes, int flags);

/* Ends the mapping that starts at `va`; of several that do, the last one made.
 * Stores made through it are part of the next pmsync.
 *
 * Returns 0, or -1 with errno:
 * EINVAL: nothing is mapped at va.
 * EIO and others: it is still mapped. */
int pmunmap(void *va);

/* Commits a region. When it returns 0, every store to its pages since the last
 * pmsync is durable, together with the pages allocated and freed. The cost grows
 * with the number of stored pages.
 *
 * No thread may store to the region meanwhile, unless it is shared: the store may
 * be lost, the commit may have a part of it, or recovery may drop the commit.
 *
 * Returns 0, or -1 with errno:
 * EBADF: rd is not open.
 * ENOSPC, EDQUOT: the store cannot grow. Nothing was committed and no change is
 *   lost; the call may be repeated.
 * EIO: nothing was committed. After a failed flush, only closing all regions of
 *   the store and opening this one again tells whether this commit is durable:
 *   all of it or nothing. */
int pmsync(int rd);

#ifdef __cplusplus
}
#endif

#endif
