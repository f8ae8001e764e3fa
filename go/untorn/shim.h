/* The calls of the Go package. The library keeps the text of a failure for each thread, and a goroutine may be on
 * another thread at its next call, so each call here brings the text with it. */
#ifndef UNTORN_GO_SHIM_H
#define UNTORN_GO_SHIM_H

#include <stdlib.h>
#include <string.h>
#include <untorn.h>

/* The outcome of a call: 0 or a code, and the text of a failure, to be freed, or NULL if there is no memory for it. */
typedef struct outcome {
    int code;
    char *text;
} outcome;

/* A call that opens something: NULL means that it failed. */
typedef struct opened {
    void *handle;
    size_t len;
    outcome outcome;
} opened;

static inline outcome outcome_of(int code) {
    outcome outcome = {code, NULL};
    untorn_error error;
    if (code != 0 && untorn_last_error(&error) == 0 && error.code == code) outcome.text = strdup(error.message);
    return outcome;
}

static inline opened opened_as(void *handle, size_t len, const untorn_error *error) {
    opened opened = {handle, len, {0, NULL}};
    if (handle == NULL) {
        opened.outcome.code = error->code;
        opened.outcome.text = strdup(error->message);
    }
    return opened;
}

static inline opened open_file(const char *path, untorn_options options) {
    untorn_error error;
    options.size = sizeof options;
    return opened_as(untorn_open(path, &options, &error), 0, &error);
}

static inline opened open_map(const char *path, untorn_options options) {
    untorn_error error;
    size_t len = 0;
    options.size = sizeof options;
    void *map = untorn_map(path, &options, &len, &error);
    return opened_as(map, len, &error);
}

static inline opened open_snapshot(const char *path) {
    untorn_error error;
    return opened_as(untorn_snapshot_open(path, &error), 0, &error);
}

static inline opened snapshot_of_file(untorn_t *file) {
    untorn_error error;
    return opened_as(untorn_snapshot(file, &error), 0, &error);
}

static inline opened snapshot_of_map(void *map) {
    untorn_error error;
    return opened_as(untorn_map_snapshot(map, &error), 0, &error);
}

static inline outcome file_read(untorn_t *file, uint64_t off, uint8_t *dst, size_t n) {
    return outcome_of(untorn_read(file, off, dst, n));
}

static inline outcome file_write(untorn_t *file, uint64_t off, const uint8_t *src, size_t n) {
    return outcome_of(untorn_write(file, off, src, n));
}

static inline outcome file_sync(untorn_t *file) {
    return outcome_of(untorn_sync(file));
}

static inline outcome file_resize(untorn_t *file, uint64_t len) {
    return outcome_of(untorn_resize(file, len));
}

static inline outcome file_close(untorn_t *file) {
    return outcome_of(untorn_close(file));
}

/* The number and the time of the last commit. */
typedef struct last_commit {
    uint64_t number;
    uint64_t time_ns;
    outcome outcome;
} last_commit;

static inline last_commit file_last_commit(untorn_t *file) {
    last_commit last = {0, 0, {0, NULL}};
    last.outcome = outcome_of(untorn_last_commit(file, &last.number, &last.time_ns));
    return last;
}

static inline opened tx_begin(untorn_t *file) {
    opened opened = {untorn_begin(file), 0, {0, NULL}};
    untorn_error error;
    if (opened.handle == NULL && untorn_last_error(&error) == 0) {
        opened.outcome.code = error.code;
        opened.outcome.text = strdup(error.message);
    }
    return opened;
}

static inline outcome tx_write(untorn_tx *tx, uint64_t off, const uint8_t *src, size_t n) {
    return outcome_of(untorn_tx_write(tx, off, src, n));
}

static inline outcome tx_commit(untorn_tx *tx) {
    return outcome_of(untorn_tx_commit(tx));
}

static inline outcome snapshot_read(untorn_snapshot_t *snapshot, uint64_t off, uint8_t *dst, size_t n) {
    return outcome_of(untorn_snapshot_read(snapshot, off, dst, n));
}

static inline outcome snapshot_close(untorn_snapshot_t *snapshot) {
    return outcome_of(untorn_snapshot_close(snapshot));
}

static inline outcome map_commit(void *map) {
    return outcome_of(untorn_map_commit(map));
}

static inline outcome map_commit_beside_stores(void *map) {
    return outcome_of(untorn_map_commit_beside_stores(map));
}

static inline outcome map_rollback(void *map) {
    return outcome_of(untorn_map_rollback(map));
}

static inline outcome map_resize(void *map, uint64_t len) {
    return outcome_of(untorn_map_resize(map, len));
}

static inline outcome map_end(void *map) {
    return outcome_of(untorn_unmap(map));
}

#endif
