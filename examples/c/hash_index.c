/*
 * A hash index in a file, with plain loads and stores: which keys were seen, and
 * how often. When it gets full it doubles, and every entry moves. The process
 * that counts is killed with SIGKILL, at any instruction, again and again; what
 * it was about to do, moving all entries included, is never there by half. The
 * index is always that of the last commit.
 *
 * Usage: hash_index FILE [KILLS]
 * Run it again with the same FILE, and it goes on counting there.
 * Exits with 1 if the index is ever torn or a commit lost.
 */
#define _DEFAULT_SOURCE

#include <untorn.h>

#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FIRST_SLOTS UINT64_C(256)
#define KEYS UINT64_C(65536)
/* Events that are committed together. */
#define BATCH 64

/* A free slot has the key 0. */
struct entry {
    uint64_t key;
    uint64_t count;
};

/* The file, from its first byte. Its address is another one each time, so it
 * would keep places in it as numbers, never as pointers. */
struct index {
    /* A power of two; 0 in a new file. */
    uint64_t slots;
    uint64_t keys;
    uint64_t events;
    uint64_t unused;
    struct entry entries[];
};

/* Says what went wrong in the last call and ends the process. */
static void give_up(const char *doing) {
    untorn_error error;
    untorn_last_error(&error);
    fprintf(stderr, "%s: %s\n", doing, error.message);
    exit(2);
}

static uint64_t mixed(uint64_t number) {
    number = (number ^ number >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    number = (number ^ number >> 27) * UINT64_C(0x94d049bb133111eb);
    return number ^ number >> 31;
}

/* The key of the event with this number: 1 to KEYS. It is the same in every run,
 * so that what the index must hold is known. */
static uint64_t key_of(uint64_t event) {
    return mixed(event + 1) % KEYS + 1;
}

static uint64_t bytes_for(uint64_t slots) {
    return sizeof(struct index) + slots * sizeof(struct entry);
}

static struct index *map_index(const char *path) {
    untorn_options options = UNTORN_OPTIONS_INIT;
    options.flags = UNTORN_CREATE;
    options.length = bytes_for(FIRST_SLOTS);
    struct index *index = untorn_map(path, &options, NULL, NULL);
    if (!index) give_up("map");
    if (!index->slots) {
        index->slots = FIRST_SLOTS;
        if (untorn_map_commit(index)) give_up("commit");
    }
    return index;
}

/* The entry of a key, or the free one where it belongs. */
static struct entry *find(struct index *index, uint64_t key) {
    uint64_t slot = mixed(key) & (index->slots - 1);
    while (index->entries[slot].key && index->entries[slot].key != key) slot = (slot + 1) & (index->slots - 1);
    return &index->entries[slot];
}

/* Twice the slots, and every entry in its new place. The file grows where it is,
 * so that pointers into it stay good. */
static void grow(struct index *index) {
    uint64_t slots = index->slots;
    struct entry *entries = malloc(slots * sizeof *entries);
    if (!entries || untorn_map_resize(index, bytes_for(2 * slots))) give_up("grow");
    memcpy(entries, index->entries, slots * sizeof *entries);
    memset(index->entries, 0, slots * sizeof *entries);
    index->slots = 2 * slots;
    for (uint64_t slot = 0; slot < slots; slot++) {
        if (entries[slot].key) *find(index, entries[slot].key) = entries[slot];
    }
    free(entries);
}

static void count(struct index *index, uint64_t key) {
    if (4 * index->keys >= 3 * index->slots) grow(index);
    struct entry *entry = find(index, key);
    if (!entry->key) {
        entry->key = key;
        index->keys++;
    }
    entry->count++;
    index->events++;
}

/* Counts until it is killed, and tells after each commit how many events are
 * durable. */
static void count_for_ever(const char *path, _Atomic uint64_t *committed) {
    struct index *index = map_index(path);
    for (;;) {
        do count(index, key_of(index->events));
        while (index->events % BATCH);
        if (untorn_map_commit(index)) give_up("commit");
        atomic_store(committed, index->events);
    }
}

/* Whether the index is that of a commit, in every entry. */
static int is_whole(struct index *index) {
    static uint64_t expected[KEYS + 1];
    uint64_t slots = index->slots, keys = 0;
    if (untorn_map_len(index) != bytes_for(slots) || slots & (slots - 1) || index->events % BATCH) return 0;
    memset(expected, 0, sizeof expected);
    for (uint64_t event = 0; event < index->events; event++) expected[key_of(event)]++;
    for (uint64_t slot = 0; slot < slots; slot++) {
        const struct entry *entry = &index->entries[slot];
        if (!entry->key) continue;
        if (entry->key > KEYS || entry->count != expected[entry->key] || find(index, entry->key) != entry) return 0;
        expected[entry->key] = 0;
        keys++;
    }
    /* Every key that was seen was found, so nothing is left of what is expected. */
    for (uint64_t key = 1; key <= KEYS; key++) {
        if (expected[key]) return 0;
    }
    return keys == index->keys;
}

/* Waits until the child has committed something, and then a moment longer. */
static void let_it_count(pid_t child, _Atomic uint64_t *committed, long moment) {
    struct timespec a_little = {0, 100000}, longer = {0, moment};
    while (!atomic_load(committed)) {
        if (waitpid(child, NULL, WNOHANG)) {
            fprintf(stderr, "the process that counts has ended by itself\n");
            exit(2);
        }
        nanosleep(&a_little, NULL);
    }
    nanosleep(&longer, NULL);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: hash_index FILE [KILLS]\n");
        return 64;
    }
    const char *path = argv[1];
    unsigned kills = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 20;
    /* Memory that the child shares with this process, and that outlives it. */
    _Atomic uint64_t *committed =
        mmap(NULL, sizeof *committed, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (committed == MAP_FAILED) {
        perror("mmap");
        return 2;
    }

    unsigned torn = 0, lost = 0;
    for (unsigned kill_number = 0; kill_number < kills; kill_number++) {
        /* The index is not mapped here: a map must not cross a fork. */
        atomic_store(committed, 0);
        pid_t child = fork();
        if (child < 0) {
            perror("fork");
            return 2;
        }
        if (child == 0) count_for_ever(path, committed);
        let_it_count(child, committed, 250000L * (long)(kill_number % 20));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);

        struct index *index = map_index(path);
        if (!is_whole(index)) {
            printf("after kill %u: torn\n", kill_number + 1);
            torn++;
        } else if (index->events < atomic_load(committed)) {
            printf("after kill %u: %" PRIu64 " events of %" PRIu64 " committed\n", kill_number + 1, index->events,
                   atomic_load(committed));
            lost++;
        }
        if (untorn_unmap(index)) give_up("unmap");
    }

    struct index *index = map_index(path);
    torn += !is_whole(index);
    printf("%u kills, %u torn states, %u lost commits; ", kills, torn, lost);
    printf("%" PRIu64 " keys in %" PRIu64 " slots after %" PRIu64 " events\n",
           index->keys, index->slots, index->events);
    /* Leave a plain file behind. */
    if (untorn_map_settle(index)) give_up("settle");
    return torn || lost ? 1 : 0;
}
