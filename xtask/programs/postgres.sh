# A PostgreSQL server with pgbench: killed with all its processes in the middle, started again, and its books balanced.
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
mkdir db "$ASIDE/socket"
as=
if [ "$(id -u)" = 0 ]; then # It refuses to run as root.
    chown postgres db "$ASIDE/socket"
    as="setpriv --reuid=postgres --regid=postgres --clear-groups"
fi
server() {
    # Its own process group, for the kill. (Locks of its shared memory are bound to the data directory.)
    setsid $as "$bin/postgres" -D db -k "$ASIDE/socket" -c listen_addresses= -c shared_buffers=16MB \
        -c max_wal_size=64MB -c checkpoint_timeout=30s >>"$ASIDE/server" 2>&1 &
    pid=$!
    i=0
    until psql -h "$ASIDE/socket" -U bank -qAtc 'select 1' postgres >/dev/null 2>&1; do
        i=$((i + 1))
        [ $i -lt 600 ] || { echo "the server does not answer"; exit 1; }
        sleep 0.1
    done
}
ask() {
    psql -h "$ASIDE/socket" -U bank -qAtc "$1" postgres
}
books() {
    ask "select (select sum(abalance) from pgbench_accounts) = (select coalesce(sum(delta), 0) from pgbench_history),
        (select sum(tbalance) from pgbench_tellers) = (select coalesce(sum(delta), 0) from pgbench_history),
        (select sum(bbalance) from pgbench_branches) = (select coalesce(sum(delta), 0) from pgbench_history),
        (select count(*) from pgbench_accounts)"
}
$as "$bin/initdb" -D db -U bank -A trust -E UTF8 --locale=C >"$ASIDE/initdb" 2>&1
server
pgbench -h "$ASIDE/socket" -U bank -i -s 1 -q postgres >"$ASIDE/fill" 2>&1
pgbench -h "$ASIDE/socket" -U bank -c 4 -j 2 -t 50 postgres >"$ASIDE/bench" 2>&1 && echo "200 transactions"
books
ask "select count(*) from pgbench_history"
pgbench -h "$ASIDE/socket" -U bank -n -c 4 -j 2 -T 60 postgres >"$ASIDE/killed" 2>&1 &
clients=$!
sleep 2
kill -s KILL -- "-$pid"
{ wait $clients || true; } 2>/dev/null
{ wait $pid || true; } 2>/dev/null
rm -f db/postmaster.pid
server
books
[ "$(ask 'select count(*) from pgbench_history')" -ge 200 ] && echo "nothing acknowledged is missing"
ask "create table after as select generate_series(1, 1000) n" && ask "select sum(n) from after"
kill -INT $pid
{ wait $pid || true; } 2>/dev/null
"$bin/pg_controldata" -D db | grep 'cluster state'
