# LMDB, which maps its file shared.
ended() {
    if grep -q 'Operation not supported' "$ASIDE/load.err"; then
        echo "$1: told no"
    else
        echo "$1: $(md5sum <"$ASIDE/$1")"
    fi
}
mkdir db
mdb_load -n db/data >"$ASIDE/load" 2>"$ASIDE/load.err" <<'D' || true
VERSION=3
format=print
type=btree
mapsize=1048576
maxreaders=126
HEADER=END
 one
 1
 two
 2
DATA=END
D
ended load
mdb_dump -n -p db/data >"$ASIDE/dump" 2>"$ASIDE/dump.err" || true
ended dump
mdb_stat -n db/data >"$ASIDE/stat" 2>"$ASIDE/stat.err" || true
ended stat
