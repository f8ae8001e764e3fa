/* What xFileControl answers, beside the documentation of SQLite, and which VFS a program gets by default.
 *
 * controls LIBRARY codes DIR    says each answer that is not as it is documented, and "done"
 * controls LIBRARY default DIR  says the VFS that opens a database by its path alone
 */
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int wrong(const char *what, long got)
{
    printf("%s: %ld\n", what, got);
    return 0;
}

#define EXPECT(is_so, got) ((is_so) || wrong(#is_so, (long)(got)))

static sqlite3 *open_by(const char *name)
{
    sqlite3 *db;
    if (sqlite3_open_v2(name, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_URI, NULL)) {
        fprintf(stderr, "%s: %s\n", name, sqlite3_errmsg(db));
        exit(74);
    }
    return db;
}

static void run(sqlite3 *db, const char *sql)
{
    char *message = NULL;
    if (sqlite3_exec(db, sql, NULL, NULL, &message)) {
        fprintf(stderr, "%s: %s\n", sql, message);
        exit(74);
    }
}

static void name_of(sqlite3 *db, char into[64])
{
    char *name = NULL;
    int code = sqlite3_file_control(db, "main", SQLITE_FCNTL_VFSNAME, &name);
    snprintf(into, 64, "%s", code == SQLITE_OK && name ? name : "none");
    sqlite3_free(name);
}

static void codes(const char *dir)
{
    char name[1000], path[1000], moved[1000], other[1000], wal[1000], vfs[64];
    snprintf(path, sizeof path, "%s/app.db", dir);
    snprintf(moved, sizeof moved, "%s/moved.db", dir);
    snprintf(other, sizeof other, "%s/other.db", dir);
    snprintf(wal, sizeof wal, "%s/app.db-wal", dir);
    snprintf(name, sizeof name, "file:%s?vfs=untorn", path);
    sqlite3 *db = open_by(name), *stock = open_by(other);
    run(db, "CREATE TABLE t (a)");
    run(stock, "CREATE TABLE t (a)");

    name_of(db, vfs);
    EXPECT(!strcmp(vfs, "untorn"), 0);

    /* Hints, which a VFS may ignore; the database is as long as before. */
    sqlite3_int64 size = 50 << 20;
    int code = sqlite3_file_control(db, "main", SQLITE_FCNTL_SIZE_HINT, &size);
    EXPECT(code == SQLITE_OK, code);
    int chunk = 1 << 20;
    code = sqlite3_file_control(db, "main", SQLITE_FCNTL_CHUNK_SIZE, &chunk);
    EXPECT(code == SQLITE_OK, code);
    sqlite3_file *file = NULL;
    sqlite3_file_control(db, "main", SQLITE_FCNTL_FILE_POINTER, &file);
    EXPECT(file->pMethods->xFileSize(file, &size) == SQLITE_OK && size == 8192, size);

    /* -1 asks. */
    int flag = -1;
    code = sqlite3_file_control(db, "main", SQLITE_FCNTL_POWERSAFE_OVERWRITE, &flag);
    EXPECT(code == SQLITE_OK && flag == 1, flag);
    EXPECT(file->pMethods->xDeviceCharacteristics(file) & SQLITE_IOCAP_POWERSAFE_OVERWRITE, 0);

    /* As the build of SQLite has it: without SQLITE_ENABLE_SETLK_TIMEOUT no VFS knows it. */
    int timeout = 100, stocks = 100;
    int told = sqlite3_file_control(stock, "main", SQLITE_FCNTL_LOCK_TIMEOUT, &stocks);
    code = sqlite3_file_control(db, "main", SQLITE_FCNTL_LOCK_TIMEOUT, &timeout);
    EXPECT(code == told && timeout == stocks, code);

    flag = 9;
    code = sqlite3_file_control(db, "main", SQLITE_FCNTL_LOCKSTATE, &flag);
    EXPECT(code == SQLITE_OK && flag == 0, flag);
    run(db, "BEGIN IMMEDIATE");
    sqlite3_file_control(db, "main", SQLITE_FCNTL_LOCKSTATE, &flag);
    EXPECT(flag == 2, flag);
    run(db, "ROLLBACK");

    char *temporary = NULL;
    code = sqlite3_file_control(db, "main", SQLITE_FCNTL_TEMPFILENAME, &temporary);
    EXPECT(code == SQLITE_OK && temporary && strstr(temporary, "/etilqs_"), code);
    sqlite3_free(temporary);
    flag = 9;
    code = sqlite3_file_control(db, "main", SQLITE_FCNTL_LAST_ERRNO, &flag);
    EXPECT(code == SQLITE_OK && flag != 9, code);

    /* With it the log stays beside the database when the last connection closes. */
    for (int persists = 0; persists < 2; persists++) {
        flag = persists;
        code = sqlite3_file_control(db, "main", SQLITE_FCNTL_PERSIST_WAL, &flag);
        EXPECT(code == SQLITE_OK && flag == persists, flag);
        flag = -1;
        sqlite3_file_control(db, "main", SQLITE_FCNTL_PERSIST_WAL, &flag);
        EXPECT(flag == persists, flag);
        run(db, "PRAGMA journal_mode = wal; INSERT INTO t VALUES (1)");
        sqlite3_close(db);
        EXPECT((access(wal, F_OK) == 0) == persists, persists);
        db = open_by(name);
    }
    run(db, "PRAGMA journal_mode = memory");

    code = sqlite3_file_control(db, "main", SQLITE_FCNTL_HAS_MOVED, &flag);
    EXPECT(code == SQLITE_OK && flag == 0, flag);
    rename(path, moved);
    code = sqlite3_file_control(db, "main", SQLITE_FCNTL_HAS_MOVED, &flag);
    EXPECT(code == SQLITE_OK && flag == 1, flag);
    rename(moved, path);

    /* An unknown one. */
    code = sqlite3_file_control(db, "main", 1234567, &flag);
    EXPECT(code == SQLITE_NOTFOUND, code);
    sqlite3_close(db);
    sqlite3_close(stock);
    puts("done");
}

int main(int count, char **arguments)
{
    if (count != 4)
        return 64;
    char *message = NULL, path[1000], name[64];
    sqlite3 *db;
    if (sqlite3_open(":memory:", &db) || sqlite3_enable_load_extension(db, 1)
        || sqlite3_load_extension(db, arguments[1], NULL, &message)) {
        fprintf(stderr, "%s\n", message ? message : sqlite3_errmsg(db));
        return 74;
    }
    sqlite3_close(db);
    if (!strcmp(arguments[2], "codes")) {
        codes(arguments[3]);
        return 0;
    }
    snprintf(path, sizeof path, "%s/default.db", arguments[3]);
    db = open_by(path);
    name_of(db, name);
    puts(name);
    sqlite3_close(db);
    return 0;
}
