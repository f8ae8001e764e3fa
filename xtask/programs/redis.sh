# A Redis server that syncs its log before each answer: killed, started again, and asked for what it had acknowledged.
server() {
    redis-server --port 0 --unixsocket "$ASIDE/redis" --dir . --appendonly yes --appendfsync always --save '' \
        --auto-aof-rewrite-min-size 64kb --daemonize no >>"$ASIDE/server" 2>&1 &
    pid=$!
    i=0
    until [ "$(ask ping 2>/dev/null)" = PONG ]; do
        i=$((i + 1))
        [ $i -lt 300 ] || { echo "the server does not answer"; exit 1; }
        sleep 0.1
    done
}
ask() {
    redis-cli -s "$ASIDE/redis" "$@"
}
server
i=0
while [ $i -lt 300 ]; do
    i=$((i + 1))
    printf 'set key:%d %0200d\nincr acknowledged\n' $i $i
done | ask | tail -n 1
ask bgrewriteaof >"$ASIDE/rewrite"
while ask info persistence | grep -q 'aof_rewrite_in_progress:1'; do sleep 0.1; done
(while ask incr counted; do :; done >"$ASIDE/counted" 2>/dev/null) &
counter=$!
sleep 1
kill -KILL $pid
{ wait $counter || true; } 2>/dev/null
{ wait $pid || true; } 2>/dev/null
server
ask get acknowledged
ask dbsize | grep -q '^30[0-9]$' && echo "all keys"
[ "$(ask get counted)" -ge "$(grep -c '^[0-9]' "$ASIDE/counted")" ] && echo "nothing acknowledged is missing"
ask shutdown nosave >/dev/null 2>&1 || true
{ wait $pid || true; } 2>/dev/null
redis-check-aof appendonlydir/*.manifest | tail -n 1
