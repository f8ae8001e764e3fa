/*
 * untorn/protect.h - self-healing: checksums and parity of a mapping that the
 * program made itself.
 *
 *     #include <untorn/protect.h>
 *     #include <sys/mman.h>
 *
 *     void *table = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
 *     int code = untorn_protect(table, length, NULL);
 *     ... store to it as ever ...
 *     code = untorn_redundancy_sync(table);   (if it is to be covered now)
 *     code = untorn_unprotect(table);         (before munmap)
 *
 * They lie in a file beside the mapped one, in the directory .untorn. A thread
 * brings them up to date behind the stores of the program. A page that a device
 * damaged is found by a scrub, and given back by a repair, if it was covered and is
 * the only one of its stripe; `untorn scrub` and `untorn repair` do it when no
 * process has the file protected.
 *
 * The rules:
 * - The mapping is shared, of a whole file, and passed from its first address on.
 *   It stays until untorn_unprotect has returned. The file has no engine.
 * - Stores of this process through this mapping are found by themselves. There
 *   must be no others while it is protected: not with write(2), not through another
 *   mapping, not by a forked child. They would be taken for damage.
 * - Stores are found from page tables, which a crash empties. After one, a page
 *   that differs from its checksum is reported and never repaired.
 * - A forked child has no part in it: UNTORN_EOWNERDEAD.
 * - It takes Linux 6.7 and a process that may use userfaultfd, and a file that is
 *   not on persistent memory; elsewhere UNTORN_EINVAL.
 *
 * Functions return 0 or a negative code, as those of untorn.h do, which says more
 * about codes. Threads may call them at once.
 */
#ifndef UNTORN_PROTECT_H
#define UNTORN_PROTECT_H

#include <untorn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* untorn_redundancy_options.layout: which pages share a parity page. */
#define UNTORN_STRIPES_CONSECUTIVE 1
#define UNTORN_STRIPES_SPREAD 2

/* untorn_redundancy_options.checksum: of a page. */
#define UNTORN_CHECKSUM_CRC32C 1
#define UNTORN_CHECKSUM_XXH3 2

/* untorn_redundancy_options.flags: no thread covers what was stored;
 * untorn_redundancy_sync and untorn_unprotect do. */
#define UNTORN_COVER_ON_DEMAND 1

/* What a scrub found: the second argument of on_damage. */
/* A page of the file: its offset and length in bytes. */
#define UNTORN_DAMAGE_PAGE 1
/* The same of a page of which it cannot be said whether it is damaged. */
#define UNTORN_DAMAGE_UNKNOWN 2
/* A parity page: the number of its stripe, and 0. */
#define UNTORN_DAMAGE_PARITY 3
/* A table of checksums: its offset in the file that they lie in, and 0. */
#define UNTORN_DAMAGE_TABLE 4

/* How to protect a mapping. Start from UNTORN_REDUNDANCY_OPTIONS_INIT; a field of
 * zero has its default, which for the first three is what the file is protected
 * with already, if it is. Later versions add fields at the end: a program that was
 * compiled with fewer leaves these at their defaults. */
typedef struct untorn_redundancy_options {
    /* sizeof(untorn_redundancy_options). */
    uint32_t size;
    /* Pages of 4096 bytes that share a parity page, up to 64. 0: 4. */
    uint32_t stripe;
    /* UNTORN_STRIPES_*. 0: consecutive. */
    uint32_t layout;
    /* UNTORN_CHECKSUM_*. 0: CRC-32C. */
    uint32_t checksum;
    /* UNTORN_COVER_ON_DEMAND, or 0. */
    uint32_t flags;
    /* Pages that are covered at a time. 0: 1024. */
    uint32_t batch;
    /* Milliseconds between two passes of the thread that covers. 0: 1000. */
    uint64_t period_ms;
    /* Milliseconds between two scrubs by a thread. 0: no thread scrubs. */
    uint64_t scrub_every_ms;
    /* Bytes that such a scrub reads in a second, at most. 0: as many as it can. */
    uint64_t scrub_rate;
    /* Is called with each damage that such a scrub comes upon, on its thread: with
     * `context`, UNTORN_DAMAGE_*, and the two numbers that are said there. It must
     * not call untorn_unprotect, which waits for that thread. NULL: nobody is. */
    void (*on_damage)(void *context, uint32_t what, uint64_t at, uint64_t length);
    /* What on_damage is called with. It stays until untorn_unprotect has returned, and
     * may be used by another thread than the caller's. */
    void *context;
} untorn_redundancy_options;

#define UNTORN_REDUNDANCY_OPTIONS_INIT { (uint32_t)sizeof(untorn_redundancy_options), 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL }

/* Protects the file that is mapped at `addr`. Keep the mapping until
 * untorn_unprotect: once it is unmapped or mapped over, every call on it fails, and
 * what was stored last counts as unknown.
 * opts: NULL for the defaults.
 * Errors: UNTORN_EINVAL for what is no shared mapping of a whole file, a file with
 * an engine, a region store, an option, and where stores cannot be tracked;
 * UNTORN_EBUSY if it is protected already; UNTORN_EBADMSG if its checksums are
 * damaged beyond use; UNTORN_ENOSPC, UNTORN_EIO and others of the system. */
int untorn_protect(void *addr, size_t len, const untorn_redundancy_options *opts);

/* Covers everything that was stored and ends the protection; the checksums and the
 * parity stay beside the file. It waits for other calls on the mapping. No thread may
 * store to it meanwhile.
 * Errors: UNTORN_EINVAL, UNTORN_EOWNERDEAD, UNTORN_EIO, UNTORN_EPOISONED. */
int untorn_unprotect(void *addr);

/* Covers everything that was stored before the call.
 * Errors: UNTORN_EINVAL, UNTORN_EOWNERDEAD, UNTORN_EIO, UNTORN_EPOISONED; also
 * those of the thread that covers. */
int untorn_redundancy_sync(void *addr);

/* Compares everything that is covered, as the device holds it; threads may store
 * meanwhile.
 * damaged: NULL, or where to put how many pages of the file are damaged.
 * Errors: UNTORN_EBADMSG if anything is damaged; those of untorn_redundancy_sync. */
int untorn_redundancy_scrub(void *addr, uint64_t *damaged);

/* Scrubs and repairs. If a page cannot be given back nothing is touched. No thread
 * may store to a damaged page meanwhile.
 * repaired: NULL, or where to put how many pages of the file were given back.
 * Errors: UNTORN_EBADMSG if pages are lost; those of untorn_redundancy_sync. */
int untorn_redundancy_repair(void *addr, uint64_t *repaired);

#ifdef __cplusplus
}
#endif

#endif
