/*
 * Money moves between accounts, and the process that moves it is killed with
 * SIGKILL, at any instruction, again and again. No money appears or vanishes:
 * every transfer is a transaction, both accounts change or neither.
 *
 * Usage: accounts FILE [KILLS]
 * Exits with 1 if a sum is ever wrong.
 */
#define _POSIX_C_SOURCE 200809L

#include <untorn.h>

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ACCOUNTS 256
#define START_BALANCE UINT64_C(1000)
/* Eight accounts to a page, so that most transfers change two pages. */
#define SPACING 512

static uint64_t place(unsigned account) {
    return (uint64_t)account * SPACING;
}

/* Says what went wrong in the last call and ends the process. */
static void give_up(const char *doing) {
    untorn_error error;
    untorn_last_error(&error);
    fprintf(stderr, "%s: %s\n", doing, error.message);
    exit(2);
}

static untorn_t *open_accounts(const char *path) {
    untorn_options options = UNTORN_OPTIONS_INIT;
    options.flags = UNTORN_CREATE;
    options.length = (uint64_t)ACCOUNTS * SPACING;
    untorn_t *file = untorn_open(path, &options, NULL);
    if (!file) give_up("open");
    return file;
}

/* Gives every account its first balance, all in one transaction: after a crash
 * in here the file has either no money or all of it. */
static void fund(untorn_t *file) {
    const uint64_t balance = START_BALANCE;
    untorn_tx *tx = untorn_begin(file);
    if (!tx) give_up("begin");
    for (unsigned account = 0; account < ACCOUNTS; account++) {
        if (untorn_tx_write(tx, place(account), &balance, sizeof balance)) give_up("write");
    }
    if (untorn_tx_commit(tx)) give_up("commit");
    if (untorn_sync(file)) give_up("sync");
}

static void transfer(untorn_t *file, unsigned from, unsigned to, uint64_t amount) {
    uint64_t less, more;
    if (from == to) return;
    if (untorn_read(file, place(from), &less, sizeof less)) give_up("read");
    if (untorn_read(file, place(to), &more, sizeof more)) give_up("read");
    if (less < amount) return;
    less -= amount;
    more += amount;
    untorn_tx *tx = untorn_begin(file);
    if (!tx) give_up("begin");
    if (untorn_tx_write(tx, place(from), &less, sizeof less)) give_up("write");
    if (untorn_tx_write(tx, place(to), &more, sizeof more)) give_up("write");
    if (untorn_tx_commit(tx)) give_up("commit");
}

/* Moves money until it is killed. A commit every few transfers makes them
 * durable together where a single write is not durable at once. */
static void transfer_for_ever(const char *path, unsigned seed) {
    untorn_t *file = open_accounts(path);
    srand(seed);
    for (unsigned count = 1;; count++) {
        transfer(file, (unsigned)rand() % ACCOUNTS, (unsigned)rand() % ACCOUNTS, (uint64_t)rand() % 100);
        if (count % 8 == 0 && untorn_sync(file)) give_up("sync");
    }
}

static uint64_t total(untorn_t *file) {
    uint64_t sum = 0, balance;
    for (unsigned account = 0; account < ACCOUNTS; account++) {
        if (untorn_read(file, place(account), &balance, sizeof balance)) give_up("read");
        sum += balance;
    }
    return sum;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: accounts FILE [KILLS]\n");
        return 64;
    }
    const char *path = argv[1];
    unsigned kills = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 20;

    untorn_t *file = open_accounts(path);
    if (total(file) == 0) fund(file);
    if (untorn_close(file)) give_up("close");

    unsigned wrong = 0;
    for (unsigned kill_number = 0; kill_number < kills; kill_number++) {
        /* The file is closed here: a handle must not cross a fork. */
        pid_t child = fork();
        if (child < 0) {
            perror("fork");
            return 2;
        }
        if (child == 0) transfer_for_ever(path, kill_number);
        struct timespec moment = {0, 2000000L + 500000L * (long)(kill_number % 20)};
        nanosleep(&moment, NULL);
        kill(child, SIGKILL);
        int status;
        waitpid(child, &status, 0);
        if (!WIFSIGNALED(status)) return 2;

        file = open_accounts(path);
        uint64_t sum = total(file);
        if (sum != ACCOUNTS * START_BALANCE) {
            printf("after kill %u: %" PRIu64 ", torn\n", kill_number + 1, sum);
            wrong++;
        }
        if (untorn_close(file)) give_up("close");
    }

    /* Leave a plain file behind. */
    file = open_accounts(path);
    if (untorn_settle(file)) give_up("settle");
    printf("%u kills, %u torn states, %" PRIu64 " in %d accounts\n", kills, wrong, ACCOUNTS * START_BALANCE, ACCOUNTS);
    return wrong ? 1 : 0;
}
