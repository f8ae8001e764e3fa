# Write-ahead logging by one process alone, without the memory that several share.
sqlite3 wal.db <<S
pragma locking_mode=exclusive;
pragma journal_mode=wal;
pragma synchronous=full;
create table t(a integer primary key, b blob);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 400) insert into t select i, zeroblob(i) from n;
update t set b = zeroblob(50) where a % 3 = 0;
pragma wal_checkpoint(truncate);
delete from t where a % 5 = 0;
select count(*), sum(length(b)) from t;
pragma integrity_check;
S
