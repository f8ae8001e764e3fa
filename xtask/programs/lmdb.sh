# LMDB, which maps its file shared.
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
echo "load: $(md5sum <"$ASIDE/load") $(cat "$ASIDE/load.err")"
mdb_dump -n -p db/data >"$ASIDE/dump" 2>"$ASIDE/dump.err" || true
echo "dump: $(md5sum <"$ASIDE/dump") $(cat "$ASIDE/dump.err")"
mdb_stat -n db/data >"$ASIDE/stat" 2>"$ASIDE/stat.err" || true
echo "stat: $(md5sum <"$ASIDE/stat") $(cat "$ASIDE/stat.err")"
