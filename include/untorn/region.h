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
 * The regions are in a store: a file, named by the environment variable
 * UNTORN_REGION_STORE, which `untorn region` reads too. It is open while a region
 * of it is; one process has a store open at a time, unless the processes share one
 * of its regions: see REGION_SHARED.
 *
 * pmsync commits everything that changed in a region since the last one: pages
 * stored to, allocated, freed. After a crash at any instant the region is as a
 * pmsync left it, the last one that returned 0 or the one under way. What no
 * pmsync committed is discarded by a crash and by the last region_close. The
 * memory is the process's own: nothing of it reaches the store before a pmsync.
 *
 * A region has one range of addresses, reserved when it is opened: page n lies
 * 4096 * (n - m) bytes behind page m, whatever else is mapped. Touching a page
 * of it that is not mapped is a SIGSEGV. On Linux 6.15 and later mappings of
 * pages in any order do not count towards vm.max_map_count; before, each row of
 * them does.
 *
 * Failures set errno; untorn_last_error, in untorn.h, has the whole text.
 *
 * All functions may be called from many threads, but not from a signal handler.
 * Calls on one region take turns, calls on several do not; with REGION_SHARED
 * calls on one region do not either, so that threads allocate, free, map and unmap
 * during a pmsync. region_open, region_close and region_delete take turns with each
 * other, whatever the region. region_close waits for calls on its region that have
 * begun, and later ones fail with EBADF.
 *
 * In a child after fork no descriptor is open, and what it stores is its own. It
 * sees pages that were stored to since the last pmsync as they were at the fork;
 * what the parent does to others may show.
 */
#ifndef UNTORN_REGION_H
#define UNTORN_REGION_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A flag of region_open: other processes that open the region so have it at once.
 * Each sees the others' stores, and which pages they allocate and free. A pmsync by
 * any of them commits all that all of them did up to one instant, while their
 * threads go on storing; what it does not have stays, for the next one. A process
 * that is killed leaves what it stored and allocated to the others. One process has
 * the store open for all; when it ends another one takes its place.
 *
 * What differs from a region of one process:
 * - One region of a store is shared at a time, and the store is not open otherwise.
 * - Of a region the first 4 GiB can be in memory, at addresses that need not be the
 *   same in all processes. Pages that are not mapped can be touched; what is stored
 *   to a page that is not allocated is in no commit.
 * - pmsync is to be called with threads storing as they like. What is not committed
 *   is discarded when the last process closes the region. After a failed flush it
 *   fails in all processes, until all have closed the region. So it does when a
 *   process that does not share the region changed it in the moment between the
 *   death of the process that had the store open and the next one's opening it.
 * - free_ppage knows what its own process has mapped.
 * - SIGBUS is untorn's: a thread that stores must not block it, and a handler for it
 *   that is installed later has to call the one it replaces.
 * - A child after fork does not have the memory. The processes are one user's.
 * - It needs userfaultfd (Linux 5.19): see `untorn doctor`. */
#define REGION_SHARED 0x40000000

/* Opens a region, and recovers it first if it stands at a crash.
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
 * EEXIST: O_CREAT with O_EXCL, and there is one.
 * EBUSY: another process has the store open; or this one has the region open, and
 *   one of the two with REGION_SHARED; or another region of the store is shared.
 * EPERM, ENOSYS: REGION_SHARED, and userfaultfd is not to be had.
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
 * ENOENT: there is none.
 * EINVAL, EBADMSG, EIO and others: as region_open. */
int region_delete(const char *name);

/* Allocates a page: the lowest number that is free. It holds zeros, and is part
 * of the region from the next pmsync on.
 *
 * Returns its number, or -1 with errno:
 * EBADF: rd is not open.
 * EINVAL: the region has all its pages.
 * EIO: an earlier flush failed; close all regions of the store, and open this
 *   one anew. */
int64_t alloc_ppage(int rd);

/* Frees a page. It leaves the region at the next pmsync; neither its number nor
 * its space is used again before.
 *
 * Returns 0, or -1 with errno:
 * EBADF: rd is not open.
 * EBUSY: the page is mapped.
 * EINVAL: it is not allocated.
 * EIO: an earlier flush failed; close all regions of the store, and open this
 *   one anew. */
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
 * EINVAL: nbytes 0, a page that is not allocated, or MAP_PRIVATE.
 * EFAULT: beyond the pages that the region can have, or the 64 GiB of addresses
 *   that are reserved for it, or less where there is no room.
 * EEXIST: MAP_FIXED_NOREPLACE, and the pages are elsewhere.
 * EOPNOTSUPP: MAP_FIXED or another flag not named above.
 * ENOMEM, EIO and others of the system. */
void *pmmap(void *va, int rd, int64_t ppn, size_t nbytes, int flags);

/* Ends the mapping that starts at `va`; of several that do, the last one made.
 * What was stored through it is part of the next pmsync.
 *
 * Returns 0, or -1 with errno:
 * EINVAL: nothing is mapped at va.
 * EIO and others: it is still mapped. */
int pmunmap(void *va);

/* Commits a region: when it returns 0, every store to its pages since the last
 * pmsync is durable, and with them the pages allocated and freed. What it costs
 * grows with the pages that were stored to.
 *
 * No thread may store to the region meanwhile, unless it is shared: what it stores
 * may be lost, the commit may have part of it, or be taken back by a crash.
 *
 * Returns 0, or -1 with errno:
 * EBADF: rd is not open.
 * ENOSPC, EDQUOT: the store cannot grow. Nothing was committed and nothing that
 *   changed is lost; it may be tried again.
 * EIO: nothing was committed; or, after a failed flush, only opening the region
 *   anew, when all regions of the store have been closed, tells whether this
 *   commit is there: whole or not at all. */
int pmsync(int rd);

#ifdef __cplusplus
}
#endif

#endif
