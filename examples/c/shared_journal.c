/* Four processes keep a journal together: each appends entries with plain stores
 * and commits now and then, which commits the entries of all. In each round one of
 * them is killed and the others go on, then all are killed at once. What is in the
 * file then is judged.
 *
 *     shared_journal FILE ROUNDS
 */
#define _DEFAULT_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <untorn/shared.h>

#define PROCESSES 4
#define ENTRIES 8000
#define SKIPPED 3

/* One for each process: nobody else stores to it. */
struct journal {
    _Atomic uint64_t count;
    _Atomic uint64_t entries[ENTRIES];
};

#define LENGTH (PROCESSES * sizeof(struct journal))

/* What each process knows to be committed, in memory that outlives it. */
static _Atomic uint64_t *committed;

static int fail(const char *what)
{
    untorn_error error;
    untorn_last_error(&error);
    fprintf(stderr, "%s: %s\n", what, error.message);
    return 1;
}

/* Of the process that wrote it and its place; never 0. */
static uint64_t entry(int process, uint64_t number)
{
    return (number + 1) * PROCESSES + (uint64_t)process;
}

static int append(const char *path, int me)
{
    untorn_error error;
    struct journal *journals = untorn_share(path, NULL, NULL, &error);
    if (!journals && (error.code == -EPERM || error.code == -ENOSYS))
        return printf("skipped: %s\n", error.message), SKIPPED;
    if (!journals || untorn_share_grow(journals, LENGTH))
        return fail("untorn_share");
    struct journal *mine = &journals[me];
    uint64_t count = mine->count;
    for (;;) {
        for (int i = 0; i < 8 && count < ENTRIES; i++) {
            mine->entries[count] = entry(me, count);
            /* After the entry, so a cut with the count has the entry. */
            mine->count = ++count;
        }
        if (untorn_share_commit(journals, NULL))
            return fail("untorn_share_commit");
        committed[me] = count;
        if (count == ENTRIES)
            pause();
    }
}

/* Counts what the file has of no count, or not of its count, and what is missing. */
static int judge(const char *path, const uint64_t *known)
{
    size_t len = 0;
    int torn = 0, lost = 0;
    struct journal *journals = untorn_map(path, NULL, &len, NULL);
    if (!journals || len != LENGTH)
        return fail("untorn_map");
    for (int process = 0; process < PROCESSES; process++) {
        uint64_t count = journals[process].count;
        lost += count < known[process];
        for (uint64_t i = 0; i < ENTRIES; i++) {
            uint64_t found = journals[process].entries[i];
            /* The one behind the last may have been stored and not counted. */
            int may_be = i == count && found == 0;
            torn += !(may_be || found == (i <= count ? entry(process, i) : 0));
        }
    }
    if (untorn_unmap(journals))
        return fail("untorn_unmap");
    if (torn || lost)
        return fprintf(stderr, "%d torn, %d lost\n", torn, lost), 1;
    return 0;
}

/* In a process of its own: this one never has a part in the sharing. */
static pid_t start(int (*what)(const char *, int), const char *path, int number)
{
    fflush(NULL);
    pid_t process = fork();
    if (process == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* It goes when this one is interrupted. */
        int code = what(path, number);
        fflush(NULL);
        _exit(code);
    }
    return process;
}

/* Waits until a process has committed more than `before`, or all there is, or has ended. */
static int went_on(pid_t process, int number, uint64_t before)
{
    int status;
    while (committed[number] <= before && committed[number] < ENTRIES) {
        if (waitpid(process, &status, WNOHANG) != 0)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        usleep(1000);
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return fprintf(stderr, "usage: shared_journal FILE ROUNDS\n"), 64;
    const char *path = argv[1];
    int rounds = atoi(argv[2]);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0)
        return perror(path), 74;
    close(fd);
    committed = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (committed == MAP_FAILED)
        return perror("mmap"), 74;

    for (int round = 0; round < rounds; round++) {
        pid_t processes[PROCESSES];
        int code = 0;
        for (int i = 0; i < PROCESSES; i++)
            processes[i] = start(append, path, i);
        for (int i = 0; i < PROCESSES && !code; i++)
            code = went_on(processes[i], i, committed[i]);
        /* One at a time another one: now and then it is the one that serves. */
        int victim = round % PROCESSES;
        kill(processes[victim], SIGKILL);
        for (int i = 0; i < PROCESSES && !code; i++)
            if (i != victim)
                code = went_on(processes[i], i, committed[i]);
        uint64_t known[PROCESSES];
        for (int i = 0; i < PROCESSES; i++)
            known[i] = committed[i];
        for (int i = 0; i < PROCESSES; i++)
            kill(processes[i], SIGKILL);
        while (wait(NULL) > 0)
            ;
        if (code)
            return code == SKIPPED ? 0 : code;
        if (judge(path, known))
            return 1;
    }
    printf("%d rounds of %d processes: 0 torn, 0 lost\n", rounds, PROCESSES);
    return 0;
}
