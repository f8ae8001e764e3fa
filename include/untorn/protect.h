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

/* What was found: the second argument of on_damage. */
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
    /* Is called with each damage that such a scrub comes upon, or the thread that
     * covers, or a call that covers: with `context`, UNTORN_DAMAGE_*, and the two
     * numbers that are said there. Without a scrub of its own the program hears only
     * of damage beside pages that it stores to, which is repaired there and then, or
     * is told of once. What untorn_redundancy_scrub and untorn_redundancy_repair find
     * they return. It is called on a thread of its own and must not call
     * untorn_unprotect, which waits for that thread until all is told. Damage ends
     * nothing by itself: a program that would rather abort does it here. NULL: nobody
     * is called. */
    void (*on_damage)(void *context, uint32_t what, uint64_t at, uint64_t length);
    /* What on_damage is called with. It stays until untorn_unprotect has returned, and
     * may be used by another thread than the caller's. */
    void *context;
} untorn_redundancy_options;

#define UNTORN_REDUNDANCY_OPTIONS_INIT { (uint32_t)sizeof(untorn_redundancy_options), 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL }

/* How much of a mapping is covered. Start from UNTORN_COVERAGE_INIT. Later versions
 * add fields at the end, of which a program that was compiled with fewer hears
 * nothing. */
typedef struct untorn_coverage {
    /* sizeof(untorn_coverage). */
    uint32_t size;
    /* 1 while a scrub is under way, else 0. */
    uint32_t is_scrubbed;
    /* Pages of the file, of 4096 bytes. */
    uint64_t pages;
    /* Of these, how many were stored to since they were last covered. */
    uint64_t uncovered;
    /* Stripes of pages that share a parity page. */
    uint64_t stripes;
    /* Of these, how many have an uncovered page: if another page of one is damaged,
     * it cannot be repaired. */
    uint64_t vulnerable_stripes;
    /* Pages that differed from their checksums when the file was protected: whether
     * they are damaged cannot be said. They are covered as they are. */
    uint64_t unknown;
    /* Damaged pages that could not be given back when they were come upon. */
    uint64_t lost;
    /* Milliseconds that the oldest uncovered page has been so, at most; 0 if there is
     * none. */
    uint64_t oldest_uncovered_ms;
    /* Pages that the scrub under way has looked at. */
    uint64_t looked;
    /* Whole scrubs since the file was protected first. */
    uint64_t scrubs;
    /* When the last of them ended, in seconds since 1970; 0 if there was none. */
    uint64_t last_scrub;
    /* Pages that were repaired since then. */
    uint64_t repaired;
} untorn_coverage;

#define UNTORN_COVERAGE_INIT { (uint32_t)sizeof(untorn_coverage), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

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

/* What is covered now.
 * coverage: where to put it; its size is set.
 * Errors: those of untorn_redundancy_sync. */
int untorn_redundancy_coverage(void *addr, untorn_coverage *coverage);

/* Compares everything that is covered, as the device holds it; threads may store
 * meanwhile.
 * damaged: NULL, or where to put how many pages of the file are damaged.
 * Errors: UNTORN_EBADMSG if anything is damaged; those of untorn_redundancy_sync. */
int untorn_redundancy_scrub(void *addr, uint64_t *damaged);

/* Scrubs and repairs. If a page cannot be given back nothing is touched. No thread
 * may store to a damaged page meanwhile.
 * repaired: NULL, or where to put how many pages of the file were given back.
 * Errors: UNTORN_EBADMSG if pages are lost, or left as they are because it cannot be
 * said whether they are damaged, or if parts of the redundancy are damaged yet;
 * untorn_last_error says which. Those of untorn_redundancy_sync. */
int untorn_redundancy_repair(void *addr, uint64_t *repaired);

#ifdef __cplusplus
}
#endif

#endif
