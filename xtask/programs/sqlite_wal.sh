# Write-ahead logging, for which several processes share memory through a mapped file.
sqlite3 wal.db >"$ASIDE/said" 2>&1 <<S || true
pragma journal_mode=wal;
pragma synchronous=full;
pragma mmap_size=268435456;
create table t(a integer primary key, b blob);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 400) insert into t select i, zeroblob(i) from n;
update t set b = zeroblob(50) where a % 3 = 0;
pragma wal_checkpoint(truncate);
delete from t where a % 5 = 0;
select count(*), sum(length(b)) from t;
pragma integrity_check;
S
echo "wal: $(cat "$ASIDE/said") $(sqlite3 wal.db .dump | md5sum)" | tr '\n' ' '
echo
