"""Work for the tests: programs that use a database by the VFS `untorn`. The first argument is the library."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time

LIBRARY = sys.argv[1]


def load():
    connection = sqlite3.connect(":memory:")
    connection.enable_load_extension(True)
    connection.load_extension(LIBRARY)
    connection.close()


def connect(path, parameters=""):
    return sqlite3.connect(f"file:{path}?vfs=untorn{parameters}", uri=True, timeout=60, isolation_level=None)


def say(*words):
    print(*words, flush=True)


def writer(path, own, parameters):
    """Moves money between accounts, and says each transfer that was committed."""
    connection = connect(path, parameters)
    chance = random.Random(int(own))
    number = 0
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
            one, other = chance.sample(range(100), 2)
            connection.execute("UPDATE account SET balance = balance - 7 WHERE id = ?", (one,))
            connection.execute("UPDATE account SET balance = balance + 7 WHERE id = ?", (other,))
            connection.execute("INSERT INTO done VALUES (?, ?)", (own, number))
            connection.execute("COMMIT")
        except sqlite3.OperationalError:
            # The process that served the others was killed.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            continue
        say(number)
        number += 1


def reader(path, parameters):
    """Sums the accounts again and again, in two statements of one transaction."""
    connection = connect(path, parameters)
    while True:
        try:
            connection.execute("BEGIN")
            sums = [connection.execute("SELECT sum(balance) FROM account").fetchone()[0] for _ in range(2)]
            connection.execute("COMMIT")
        except sqlite3.OperationalError:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            continue
        say("read" if sums == [100_000, 100_000] else f"torn: {sums}")


def bank(path, rounds, writers, readers, parameters):
    """Kills processes that write and read, and looks for what they were told."""
    connection = connect(path, parameters)
    connection.executescript(
        "CREATE TABLE account (id INTEGER PRIMARY KEY, balance); CREATE TABLE done (who, number, PRIMARY KEY (who, number));"
    )
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO account VALUES (?, 1000)", ((number,) for number in range(100)))
    connection.execute("COMMIT")
    connection.close()
    chance = random.Random(5)
    own = transfers = reads = 0
    for _ in range(int(rounds)):
        start = lambda *arguments: subprocess.Popen(
            [sys.executable, sys.argv[0], LIBRARY, *arguments, parameters], stdout=subprocess.PIPE
        )
        processes = {}
        for _ in range(int(writers)):
            own += 1
            processes[str(own)] = start("writer", path, str(own))
        seen = [start("reader", path) for _ in range(int(readers))]
        every = [*processes.values(), *seen]
        # Each has done something by then, however busy the machine is.
        first = {process: process.stdout.readline().decode() for process in every}
        time.sleep(chance.random() / 2)
        chance.shuffle(every)
        for process in every:
            process.send_signal(signal.SIGKILL)
            if chance.random() < 0.5:
                time.sleep(chance.random() / 10)
        lines_of = lambda process: (first[process] + process.communicate()[0].decode()).split("\n")[:-1]
        said = {who: lines_of(process) for who, process in processes.items()}
        for process in seen:
            lines = lines_of(process)
            assert all(line == "read" for line in lines), lines[-1]
            reads += len(lines)
        connection = connect(path, parameters)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("SELECT sum(balance) FROM account").fetchone() == (100_000,)
        for who, lines in said.items():
            last = int(lines[-1]) if lines else -1
            found = connection.execute("SELECT coalesce(max(number), -1) FROM done WHERE who = ?", (who,)).fetchone()[0]
            assert last <= found <= last + 1, f"writer {who} was told {last}, and the database has {found}"
            transfers += len(lines)
        connection.close()
    assert transfers and (reads or int(readers) == 0)
    say(f"{transfers} transfers, {reads} reads")


def statements(chance, count):
    """Random statements of a transaction, which mean the same in every database."""
    for _ in range(count):
        key, size = chance.randrange(200), chance.randrange(1, 5000)
        yield chance.choice(
            [
                ("INSERT OR REPLACE INTO t VALUES (?, ?, ?)", (key, chance.random(), "x" * size)),
                ("UPDATE t SET b = b + 1, c = c || 'y' WHERE a % 7 = ?", (key % 7,)),
                ("DELETE FROM t WHERE a = ?", (key,)),
                ("DELETE FROM t WHERE a > ?", (key,)),
                ("INSERT INTO u SELECT a, length(c) FROM t WHERE a < ?", (key,)),
                ("DELETE FROM u", ()),
                ("SAVEPOINT s", ()),
                ("ROLLBACK TO s", ()),
                ("RELEASE s", ()),
            ]
        )


def differential(path, mode, count, seed, parameters):
    """The same statements in a database of the VFS, by several connections in turn, and in one of a stock SQLite."""
    chance = random.Random(int(seed))
    stock = sqlite3.connect(":memory:", isolation_level=None)
    connections = [connect(path, parameters) for _ in range(3)]
    for connection in [*connections, stock]:
        connection.execute("PRAGMA cache_size = 5")
    for connection in connections:
        connection.execute(f"PRAGMA journal_mode = {mode}")
        # A checkpoint of few pages, which tells the other connections of them.
        connection.execute(f"PRAGMA synchronous = {chance.choice(['off', 'normal', 'full'])}")
        connection.execute("PRAGMA wal_autocheckpoint = 2")
    for each in (connections[0], stock):
        each.executescript("CREATE TABLE t (a INTEGER PRIMARY KEY, b, c); CREATE TABLE u (a, n); CREATE INDEX i ON u (n);")
    every = lambda each: [each.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in ("t", "u")]
    done = 0
    while done < int(count):
        connection = chance.choice(connections)
        some = list(statements(chance, chance.randrange(1, 12)))
        if mode == "off":
            # Without a journal SQLite cannot roll back, nor to a savepoint.
            some = [one for one in some if one[0][:2] not in ("SA", "RO", "RE")]
        done += len(some)
        said = []
        for each in (connection, stock):
            outcomes = []
            each.execute("BEGIN")
            for text, values in some:
                try:
                    outcomes.append(each.execute(text, values).rowcount)
                except sqlite3.OperationalError as error:
                    outcomes.append(str(error))
            said.append(outcomes)
        assert said[0] == said[1], said
        end = "COMMIT" if mode == "off" or chance.random() < 0.7 else "ROLLBACK"
        for each in (connection, stock):
            each.execute(end)
        if chance.random() < 0.05:
            chance.choice(connections).execute("VACUUM")
        assert every(chance.choice(connections)) == every(stock), f"after {done} statements, seed {seed}"
    assert connections[0].execute("PRAGMA integrity_check").fetchone() == ("ok",)
    for connection in connections:
        connection.close()
    assert not os.path.exists(path + "-journal"), os.listdir(os.path.dirname(path))
    plain = sqlite3.connect(path, isolation_level=None)
    assert plain.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert every(plain) == every(stock), "the plain file"
    say(done)


def checkpoint(path):
    """A checkpoint that a reader keeps from its end; another connection then reads its pages out of the database."""
    one, reader, other = (connect(path) for _ in range(3))
    one.executescript("PRAGMA journal_mode = wal; PRAGMA synchronous = off; CREATE TABLE t (a); INSERT INTO t VALUES (1);")
    one.execute("UPDATE t SET a = 2")
    reader.execute("BEGIN")
    assert reader.execute("SELECT a FROM t").fetchone() == (2,)
    one.execute("CREATE TABLE u (b)")
    one.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    say(*other.execute("SELECT a FROM t").fetchone(), *reader.execute("SELECT a FROM t").fetchone())


def pending(path):
    """A try to be alone that fails keeps no reader out afterwards."""
    one, other = (connect(path, "&snapshot=off") for _ in range(2))
    one.executescript("PRAGMA journal_mode = wal; CREATE TABLE t (a); INSERT INTO t VALUES (1);")
    other.execute("PRAGMA busy_timeout = 0").fetchall()
    other.execute("PRAGMA locking_mode = exclusive").fetchall()
    try:
        other.execute("PRAGMA journal_mode = delete").fetchall()
    except sqlite3.OperationalError as error:
        say(error)
    late = connect(path, "&snapshot=off")
    late.execute("PRAGMA busy_timeout = 0").fetchall()
    say(*late.execute("SELECT a FROM t").fetchone())


def counter(path, parameters):
    """Adds one at each line of its input, and says the sum once it is committed."""
    connection = connect(path, parameters)
    for _ in sys.stdin:
        connection.execute("UPDATE t SET a = a + 1")
        say(*connection.execute("SELECT a FROM t").fetchone())


def turns(path, rounds, parameters):
    """A connection that rests between its statements, while others commit: in its thread, its process, and others."""
    own, other = connect(path, parameters), connect(path, parameters)
    own.execute("CREATE TABLE t (a)")
    own.execute("INSERT INTO t VALUES (0)")
    read = lambda: own.execute("SELECT a FROM t").fetchone()[0]
    children = [
        subprocess.Popen(
            [sys.executable, sys.argv[0], LIBRARY, "counter", path, parameters],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    chance = random.Random(3)
    for number in range(1, int(rounds) + 1):
        who = chance.randrange(4)
        if who < 2:
            (own, other)[who].execute("UPDATE t SET a = a + 1")
        else:
            children[who - 2].stdin.write(b"\n")
            children[who - 2].stdin.flush()
            assert int(children[who - 2].stdout.readline()) == number
        assert read() == number and read() == number, f"{who} committed {number}, and {read()} is read"
    for child in children:
        child.stdin.close()
        child.wait()
    say(read())


def threads(path, count, rounds, parameters):
    """Connections in threads, each of which adds one again and again: every statement is a transaction."""
    connect(path, parameters).execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a)").execute("INSERT INTO t VALUES (0, 0)")
    failures = []

    def add(number):
        own = connect(path, parameters)
        try:
            for _ in range(int(rounds)):
                own.execute("UPDATE t SET a = a + 1 WHERE id = 0")
                assert own.execute("SELECT a FROM t").fetchone()[0] > 0
        except sqlite3.Error as error:
            failures.append(f"{number}: {error}")

    running = [threading.Thread(target=add, args=(number,)) for number in range(int(count))]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    say(connect(path, parameters).execute("SELECT a FROM t").fetchone()[0], *failures)


def hot(path, synchronous="full", vfs="unix"):
    """A SQLite that is killed amid a transaction of which pages and journal are written already."""
    connection = sqlite3.connect(f"file:{path}?vfs={vfs}", uri=True, isolation_level=None)
    connection.executescript(
        f"PRAGMA journal_mode = delete; PRAGMA synchronous = {synchronous}; CREATE TABLE t (a); BEGIN;"
    )
    connection.executemany("INSERT INTO t VALUES (?)", (("old" * 300,) for _ in range(500)))
    connection.execute("COMMIT")
    connection.execute("PRAGMA cache_size = 1")
    connection.execute("BEGIN")
    connection.execute("UPDATE t SET a = 'new'")
    assert os.path.getsize(path + ("-journal" if vfs == "unix" else "-journal/journal")) > 0
    os.kill(os.getpid(), signal.SIGKILL)


def copies(path, other):
    """Backups from and to databases of the VFS while another connection writes, and VACUUMs that change the page size."""
    source, writer = connect(path), connect(path)
    source.executescript("CREATE TABLE t (a, b); CREATE INDEX i ON t (b);")
    source.executemany("INSERT INTO t VALUES (?, ?)", ((number, "x" * 500) for number in range(300)))
    content = lambda connection: connection.execute("SELECT * FROM t ORDER BY a").fetchall()
    stock, own = sqlite3.connect(other), connect(other + ".own")
    for number, target in enumerate((stock, own)):
        wrote = []

        def write(status, remaining, total):
            if remaining and not wrote:
                writer.execute("INSERT INTO t VALUES (?, 'meanwhile')", (1000 + number,))
                wrote.append(remaining)

        source.backup(target, pages=5, progress=write)
        assert wrote and content(target) == content(source), f"backup {number}"
    own.backup(source)
    assert content(source) == content(stock) + [(1001, "meanwhile")]
    sizes = []
    for size, mode in ((512, "none"), (8192, "full"), (65536, "incremental"), (4096, "none")):
        source.execute(f"PRAGMA page_size = {size}")
        source.execute(f"PRAGMA auto_vacuum = {mode}")
        source.execute("VACUUM")
        sizes.append(source.execute("PRAGMA page_size").fetchone()[0])
        assert content(writer) == content(own) and source.execute("PRAGMA integrity_check").fetchone() == ("ok",), size
        source.execute("DELETE FROM t WHERE a % 3 = 1")
        own.execute("DELETE FROM t WHERE a % 3 = 1")
        source.execute("PRAGMA incremental_vacuum(3)").fetchall()
    source.execute(f"VACUUM INTO 'file:{other}.into?vfs=untorn'")
    into = connect(other + ".into")
    assert content(into) == content(own)
    for connection in (source, writer, own, into):
        connection.close()
    for plain in (path, other + ".own", other + ".into"):
        assert sqlite3.connect(plain).execute("PRAGMA integrity_check").fetchone() == ("ok",), plain
    say(*sizes)


def attached(path, other):
    """Commits pairs of rows in two databases, each pair in one transaction with a journal in a file."""
    connection = connect(path)
    connection.execute(f"ATTACH 'file:{other}?vfs=untorn' AS other")
    for schema in ("main", "other"):
        connection.execute(f"PRAGMA {schema}.journal_mode = delete")
        connection.execute(f"CREATE TABLE IF NOT EXISTS {schema}.t (a)")
    number = 0
    while True:
        connection.execute("BEGIN")
        connection.execute("INSERT INTO main.t VALUES (?)", (number,))
        connection.execute("INSERT INTO other.t VALUES (?)", (number,))
        connection.execute("COMMIT")
        say(number)
        number += 1


def sql_as(user, path, parameters, *texts):
    """The same as another user, with the library that root has loaded."""
    os.setgid(int(user))
    os.setuid(int(user))
    sql(path, parameters, *texts)


def beside(path):
    """Reads without write permission while another connection writes, and after a crash."""
    kept = os.environ.get("UNTORN_TEST_STAYS")
    if kept:
        connection = connect(path)
        for _ in sys.stdin:
            connection.execute("INSERT INTO t VALUES (1)")
            say(*connection.execute("SELECT count(*) FROM t").fetchone())
        os.kill(os.getpid(), signal.SIGKILL)
    writer = subprocess.Popen(
        [sys.executable, *sys.argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "UNTORN_TEST_STAYS": "1"}
    )
    committed = lambda: (writer.stdin.write(b"\n"), writer.stdin.flush(), int(writer.stdout.readline()))[2]
    first = committed()
    drop_permissions()
    reader = connect(path)
    read = lambda: reader.execute("SELECT count(*) FROM t").fetchone()[0]
    say(first, read())
    last = committed()
    writer.stdin.close()
    writer.wait()
    say(last, read())
    try:
        connect(path, "&immutable=1").execute("SELECT count(*) FROM t")
        say("immutable taken")
    except sqlite3.OperationalError:
        say("immutable refused")


def drop_permissions():
    """Takes root's right to write to any file away, CAP_DAC_OVERRIDE; it may read all still."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()
    if libc.capget(header, data):
        raise OSError(ctypes.get_errno(), "capget")
    for at in range(3):
        data[at] &= ~(1 << 1)
    if libc.capset(header, data):
        raise OSError(ctypes.get_errno(), "capset")


def large(path):
    """A transaction of more bytes than a process passes to the one that serves the file."""
    serving = connect(path)
    serving.execute("CREATE TABLE t (a)")
    if not os.fork():
        os.execv(sys.executable, [sys.executable, sys.argv[0], LIBRARY, "sql", path, "", "INSERT INTO t VALUES (zeroblob(150000000))",
            "SELECT count(*) FROM t", "INSERT INTO t VALUES (1)", "SELECT count(*) FROM t"])
    os.wait()


def inherited(path):
    """A child that was forked closes its parent's connection; another lives on. Both have the open files, too."""
    connection = connect(path)
    connection.execute("CREATE TABLE t (a)")
    child = os.fork()
    if not child:
        connection.close()
        os._exit(0)
    os.waitpid(child, 0)
    connection.execute("INSERT INTO t VALUES (1)")
    another = [sys.executable, sys.argv[0], LIBRARY, "sql", path, "", "INSERT INTO t VALUES (2)"]
    subprocess.run(another, check=True, timeout=60)
    try:
        sqlite3.connect(path).execute("SELECT * FROM t")
    except sqlite3.OperationalError:
        say("a stock SQLite is refused")
    child = os.fork()
    if not child:
        signal.pause()
    connection.close()
    again = connect(path)
    say(again.execute("SELECT count(*) FROM t").fetchone()[0])
    again.close()
    os.kill(child, signal.SIGKILL)
    os.wait()
    again = connect(path)
    again.close()
    say(sqlite3.connect(path).execute("SELECT count(*) FROM t").fetchone()[0])


def flipped(path, parameters):
    """Flips bits of a protected database again and again, in a page of the table each time, and reads all of it."""
    connection = connect(path, parameters + "&redundancy=on")
    connection.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b)")
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO t VALUES (?, ?)", ((number, f"{number:0300}") for number in range(2000)))
    connection.execute("COMMIT")
    connection.close()
    with open(path, "rb") as file:
        bytes = file.read()
    serving = connect(path, parameters)
    serving.execute("SELECT * FROM sqlite_schema").fetchall()
    chance = random.Random(7)
    rows = [(number, f"{number:0300}") for number in range(2000)]

    def check(read):
        right = 0
        for _ in range(20):
            place = chance.randrange(4096 * 5, len(bytes))
            # As a medium does it: no program has changed the file.
            times = os.stat(path)
            with open(path, "rb+") as file:
                file.seek(place)
                file.write(bytearray([bytes[place] ^ 1 << chance.randrange(8)]))
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            found = read()
            with open(path, "rb") as file:
                is_repaired = file.read(len(bytes)) == bytes
            right += found == rows and is_repaired
        return right

    def here():
        # A connection of its own has nothing in its cache.
        reader = connect(path, parameters)
        found = reader.execute("SELECT * FROM t").fetchall()
        reader.close()
        return found

    def there():
        command = [sys.executable, sys.argv[0], LIBRARY, "sql", path, parameters, "SELECT * FROM t"]
        said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split("\n")
        return [(int(number), text) for number, text in (line.split() for line in said if line)]

    say("here", check(here))
    say("there", check(there))
    serving.close()


def late_redundancy(path):
    connection = connect(path)
    another = [sys.executable, sys.argv[0], LIBRARY, "try_redundancy", path]
    # While it is empty, and later.
    subprocess.run(another, check=True, timeout=60)
    connection.execute("CREATE TABLE t (a)")
    subprocess.run(another, check=True, timeout=60)
    connection.close()
    # Both at once: one of them makes them.
    both = [subprocess.Popen(another, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for one in both:
        say(one.communicate(timeout=60)[0].strip())


def try_redundancy(path):
    try:
        connection = connect(path, "&redundancy=on")
        say(connection.execute("PRAGMA untorn_info").fetchone()[0].split()[-1])
        connection.close()
    except sqlite3.Error as error:
        say(error)


def sql(path, parameters, *texts):
    """Runs statements, and prints the rows and the errors."""
    connection = connect(path, parameters)
    for text in texts:
        try:
            for row in connection.execute(text):
                say(*row)
        except sqlite3.Error as error:
            say(f"error: {error}")
    if "--die" in texts:
        os.kill(os.getpid(), signal.SIGKILL)
    connection.close()


load()
globals()[sys.argv[2]](*sys.argv[3:])
