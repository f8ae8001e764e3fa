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
 * The checksums and parity are in a file beside the mapped one, in the
 * directory .untorn. A thread brings them up to date behind the stores of the
 * program. A scrub finds a page that a device damaged. A repair rebuilds it, if
 * it was covered and is the only damaged page of its stripe. `untorn scrub`,
 * `untorn repair` and untorn_repair do the same when no process protects the
 * file.
 *
 * The rules:
 * - The mapping must be a shared mapping of a whole file, passed by its first
 *   address. It must stay until untorn_unprotect has returned. The file must
 *   have no engine.
 * - untorn finds the stores that this process makes through this mapping. There
 *   must be no others while it is protected: not with write(2), not through
 *   another mapping, not by a forked child. A scrub would report them as
 *   damage.
 * - untorn finds stores through page tables, which a crash empties. After a
 *   crash, a page that does not match its checksum is reported and never
 *   repaired.
 * - The file must keep its length. If it changes, calls fail with UNTORN_EINVAL,
 *   and later ones with UNTORN_EPOISONED. To make it longer: untorn_unprotect,
 *   ftruncate(2), remove the redundancy (`untorn unprotect`), untorn_protect.
 * - A forked child cannot use the protection: UNTORN_EOWNERDEAD.
 * - It needs Linux 6.7, a process that may use userfaultfd, and a file that is
 *   not on persistent memory; otherwise UNTORN_EINVAL.
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

/* untorn_redundancy_options.flags: start no thread that covers stores;
 * untorn_redundancy_sync and untorn_unprotect cover them. */
#define UNTORN_COVER_ON_DEMAND 1

/* The second argument of untorn_repair: also take back pages that other programs
 * changed. */
#define UNTORN_REPAIR_FORCE 1

/* The kind of damage: the second argument of on_damage. */
/* A page of the file: its offset and length in bytes. */
#define UNTORN_DAMAGE_PAGE 1
/* The same for a page that may or may not be damaged. */
#define UNTORN_DAMAGE_UNKNOWN 2
/* A parity page: the number of its stripe, and 0. */
#define UNTORN_DAMAGE_PARITY 3
/* A table of checksums: its offset in the redundancy file, and 0. */
#define UNTORN_DAMAGE_TABLE 4

/* How to protect a mapping. Start from UNTORN_REDUNDANCY_OPTIONS_INIT; a
 * field of zero has its default. For the first three fields the default is
 * what the file is already protected with, if it is. Later versions add
 * fields at the end; a program compiled with fewer fields leaves those at
 * their defaults. */
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
    /* Pages that one batch covers. 0: 1024. */
    uint32_t batch;
    /* Milliseconds between two passes of the covering thread. 0: 1000. */
    uint64_t period_ms;
    /* Milliseconds between two scrubs by a thread. 0: no thread scrubs. */
    uint64_t scrub_every_ms;
    /* Maximum bytes per second that such a scrub reads. 0: no limit. */
    uint64_t scrub_rate;
    /* A function to call for each damage found by such a scrub, by the
     * covering thread, or by a call that covers. Its arguments are
     * `context`, UNTORN_DAMAGE_*, and the two numbers described there.
     * Without a scrub thread, the program learns only of damage beside pages
     * that it stores to; such damage is repaired at once, or reported once.
     * untorn_redundancy_scrub and untorn_redundancy_repair return their
     * findings. The library calls the function on its own thread. The
     * function must not call untorn_unprotect, which waits for that thread
     * until everything is reported. Damage ends nothing by itself: a program
     * that would rather abort can do so here. NULL: no function is called. */
    void (*on_damage)(void *context, uint32_t what, uint64_t at, uint64_t length);
    /* The first argument of on_damage. It must stay valid until
     * untorn_unprotect has returned, and another thread may use it. */
    void *context;
    /* A cap on the number of uncovered pages: if more are uncovered, the
     * thread covers them at once, and period_ms is only the longest time
     * between two passes. The cap is soft: untorn looks for stores more
     * often the sooner the program would reach the cap, and at least every
     * 100 ms, so what is stored until then and until the pages are covered
     * exceeds it. untorn_coverage.peak_uncovered tells how many pages there
     * were. 0: the cap that `untorn protect --max-uncovered` has set for the
     * file, or none. */
    uint64_t max_uncovered;
} untorn_redundancy_options;

#define UNTORN_REDUNDANCY_OPTIONS_INIT { (uint32_t)sizeof(untorn_redundancy_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* How much of a mapping is covered. Start from UNTORN_COVERAGE_INIT. Later
 * versions add fields at the end; a program compiled with fewer fields does
 * not get those. */
typedef struct untorn_coverage {
    /* sizeof(untorn_coverage). */
    uint32_t size;
    /* 1 while a scrub runs, else 0. */
    uint32_t is_scrubbed;
    /* Pages of the file, 4096 bytes each. */
    uint64_t pages;
    /* Pages that were stored to since they were last covered. */
    uint64_t uncovered;
    /* Stripes of pages that share a parity page. */
    uint64_t stripes;
    /* Stripes with an uncovered page: if another page of such a stripe is
     * damaged, it cannot be repaired. */
    uint64_t vulnerable_stripes;
    /* Pages that did not match their checksums when the file was protected.
     * untorn cannot tell whether they are damaged, and computed their
     * checksums anew. */
    uint64_t unknown;
    /* Damaged pages that could not be repaired when they were found. */
    uint64_t lost;
    /* An upper bound of the milliseconds for which the oldest uncovered page
     * has been uncovered; 0 if there is none. */
    uint64_t oldest_uncovered_ms;
    /* Pages that the running scrub has checked. */
    uint64_t looked;
    /* Whole scrubs since the file was first protected. */
    uint64_t scrubs;
    /* The end of the last whole scrub, in seconds since 1970; 0 if there was
     * none. */
    uint64_t last_scrub;
    /* Pages repaired since the file was first protected. */
    uint64_t repaired;
    /* The current period in milliseconds; 0 if the file is covered on
     * demand. */
    uint64_t period_ms;
    /* The current cap on uncovered pages; UINT64_MAX if there is none. */
    uint64_t max_uncovered;
    /* The most pages that were seen uncovered at one time. Between two looks
     * at the page tables there may have been more. */
    uint64_t peak_uncovered;
} untorn_coverage;

#define UNTORN_COVERAGE_INIT { (uint32_t)sizeof(untorn_coverage), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Protects the file that is mapped at `addr`. Keep the mapping until
 * untorn_unprotect: once it is unmapped or mapped over, every call on it fails,
 * and the last stores count as unknown.
 * opts: NULL for the defaults.
 * Errors: UNTORN_EINVAL if it is not a shared mapping of a whole file, for a
 * file with an engine, a region store, an invalid option, and if stores
 * cannot be tracked; UNTORN_EBUSY if it is already protected; UNTORN_EBADMSG
 * if its redundancy file is damaged beyond use; UNTORN_ENOSPC, UNTORN_EIO
 * and others of the system. */
int untorn_protect(void *addr, size_t len, const untorn_redundancy_options *opts);

/* Covers all stores and ends the protection; the checksums and the parity stay
 * beside the file. It waits for other calls on the mapping. No thread may store
 * to the mapping meanwhile.
 * Errors: UNTORN_EINVAL, UNTORN_EOWNERDEAD, UNTORN_EIO, UNTORN_EPOISONED. */
int untorn_unprotect(void *addr);

/* Covers all stores made before the call.
 * Errors: UNTORN_EINVAL, UNTORN_EOWNERDEAD, UNTORN_EIO, UNTORN_EPOISONED;
 * also those of the covering thread. */
int untorn_redundancy_sync(void *addr);

/* Covers all stores made before the call, in everything that this process
 * protects: its protected mappings, and its files with redundancy. Call it when
 * the power fails and a battery lasts a moment. It covers several files at once,
 * and the failure of one does not keep it from covering the others. It must not
 * be called by a signal handler; see untorn_redundancy_cover_on_signal.
 * pages: NULL, or where to store the number of pages that were not covered before.
 * Errors: those of untorn_redundancy_sync, for the first file that failed. */
int untorn_redundancy_cover_all(uint64_t *pages);

/* Starts a thread that calls untorn_redundancy_cover_all each time the process
 * gets a signal, such as SIGPWR when the power fails. It installs no handler. All
 * threads must block the signal, so that it stays pending until this thread takes
 * it. Block it in main() before the first other thread starts:
 *
 *     sigset_t set;
 *     sigemptyset(&set);
 *     sigaddset(&set, SIGPWR);
 *     pthread_sigmask(SIG_BLOCK, &set, NULL);
 *     int code = untorn_redundancy_cover_on_signal(SIGPWR, NULL, NULL);
 *
 * A program that has a thread for signals already needs none of this: that thread
 * calls sigwait(3), or reads a signalfd(2), and then untorn_redundancy_cover_all.
 *
 * signal: the signal instead of the one of an earlier call; 0 ends the thread and
 * waits for it.
 * covered: NULL, or a function that the thread calls after each time, with
 * `context`, the number of pages, and the code of untorn_redundancy_cover_all. It
 * must not call untorn_redundancy_cover_on_signal.
 * Errors: UNTORN_EINVAL for a signal that cannot be blocked, or that a thread does
 * not block; UNTORN_EIO and others of the system. */
int untorn_redundancy_cover_on_signal(int signal, void (*covered)(void *context, uint64_t pages, int code),
                                      void *context);

/* Gives the file another length, in bytes, durably. Covered pages stay covered,
 * and the added ones are covered zeros. The mapping must reach as far: map the
 * file with the most bytes that it will have, and pass all of them to
 * untorn_protect. Pages behind the file's end must not be touched.
 * Errors: UNTORN_EINVAL for a mapping that is shorter, and for 0; those of
 * untorn_redundancy_sync. An error before the file itself is changed, such as a
 * full disk, leaves it protected as before. */
int untorn_redundancy_set_len(void *addr, uint64_t len);

/* Sets another period, also for a mapping that is covered on demand. The next
 * pass comes this long after the last one ended.
 * Errors: UNTORN_EINVAL for 0; those of untorn_redundancy_sync. */
int untorn_redundancy_set_period(void *addr, uint64_t period_ms);

/* Sets another cap on uncovered pages; see
 * untorn_redundancy_options.max_uncovered. With 0 a pass follows each store that
 * is found; UINT64_MAX takes the cap away.
 * Errors: those of untorn_redundancy_sync. */
int untorn_redundancy_set_max_uncovered(void *addr, uint64_t pages);

/* Returns how much is covered now.
 * coverage: the struct to fill; its size must be set.
 * Errors: those of untorn_redundancy_sync. */
int untorn_redundancy_coverage(void *addr, untorn_coverage *coverage);

/* Compares all covered pages, as the device holds them, with their checksums;
 * threads may store meanwhile.
 * damaged: NULL, or where to store the number of damaged pages of the file.
 * Errors: UNTORN_EBADMSG if anything is damaged; those of
 * untorn_redundancy_sync. */
int untorn_redundancy_scrub(void *addr, uint64_t *damaged);

/* Scrubs and repairs. If a page cannot be repaired, it changes nothing. No
 * thread may store to a damaged page meanwhile.
 * repaired: NULL, or where to store the number of repaired pages of the file.
 * Errors: UNTORN_EBADMSG if pages are lost, if pages were left as they are
 * because untorn cannot tell whether they are damaged, or if parts of the
 * redundancy are still damaged; untorn_last_error says which. Those of
 * untorn_redundancy_sync. */
int untorn_redundancy_repair(void *addr, uint64_t *repaired);

/* Scrubs and repairs a protected file that no process has open, as `untorn
 * repair` does: a plain file, or one with an engine. If a page cannot be
 * repaired, it changes nothing. A file with an engine that was not closed is
 * recovered first.
 *
 * flags: 0: pages that were modified outside untorn are left as they are.
 * UNTORN_REPAIR_FORCE, for a file without an engine: such a page also gets the
 * bytes that it was last covered with, and its new bytes are lost. Copy the file
 * first if they may be needed. Parity must vouch for each of these pages: it is
 * the only page of its stripe that differs, and its stripe is covered. If parity
 * cannot do so for one of them, the call changes nothing.
 * repaired: NULL, or where to store the number of pages that got their bytes
 * back.
 * Errors: UNTORN_EBADMSG as for untorn_redundancy_repair, and for a forced
 * repair that parity refuses; untorn_last_error says which pages. UNTORN_ENOENT
 * for a file that is not protected; UNTORN_EBUSY while a process protects it or
 * has it open; UNTORN_EINVAL for other flags, and for a forced repair of a file
 * with an engine; UNTORN_EIO and others of the system. */
int untorn_repair(const char *path, uint32_t flags, uint64_t *repaired);

#ifdef __cplusplus
}
#endif

#endif
