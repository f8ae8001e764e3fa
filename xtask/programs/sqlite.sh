# The command and Python's module, with each kind of journal.
for mode in delete truncate persist memory off; do
    # Without a journal nothing can be taken back.
    back='begin; delete from t where a % 2; rollback; savepoint s; update t set b = null; rollback to s; release s;'
    [ $mode != off ] || back=
    sqlite3 $mode.db <<S
pragma journal_mode=$mode;
pragma synchronous=full;
create table t(a integer primary key, b blob);
begin;
with recursive n(i) as (select 1 union all select i + 1 from n where i < 400) insert into t select i, zeroblob(i) from n;
commit;
update t set b = zeroblob(50) where a % 3 = 0;
$back
delete from t where a % 5 = 0;
create index u on t(b);
select count(*), sum(length(b)) from t;
vacuum;
pragma integrity_check;
S
    sqlite3 $mode.db .dump | md5sum
done
sqlite3 delete.db ".backup backup.db" "vacuum into 'into.db'" "attach 'truncate.db' as o; create table o.z as select * from t; select count(*) from o.z"
sqlite3 backup.db 'pragma integrity_check' 'select count(*) from t'
sqlite3 into.db 'pragma integrity_check' 'select count(*) from t'
cat >s.py <<'P'
import sqlite3, threading
for mode in ["delete", "truncate"]:
    path = f"py-{mode}.db"
    c = sqlite3.connect(path, isolation_level=None)
    print(c.execute(f"pragma journal_mode={mode}").fetchone())
    c.execute("create table t(a, b)")
    for i in range(10):
        with c:
            c.execute("begin")
            c.executemany("insert into t values(?, ?)", [(i, j) for j in range(20)])
    def add(n):
        d = sqlite3.connect(path, timeout=60, isolation_level=None)
        for i in range(3):
            d.execute("insert into t values(?, ?)", (n, i))
        d.close()
    threads = [threading.Thread(target=add, args=(1000 + n,)) for n in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    print(c.execute("select count(*), sum(a), sum(b) from t").fetchone(), c.execute("pragma integrity_check").fetchone())
    to = sqlite3.connect(f"py-{mode}-backup.db")
    c.backup(to, pages=3)
    print(to.execute("select count(*) from t").fetchone())
P
python3 s.py
