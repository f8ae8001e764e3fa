# RocksDB's own benchmark, which flushes, compacts and reads back, and its tool, which checks all.
bench() {
    code=0
    db_bench --num=1000 --value_size=300 --seed=1 --threads=1 --compression_type=none --write_buffer_size=65536 \
        --target_file_size_base=40000 --max_background_jobs=2 "$@" >"$ASIDE/$1" 2>&1 || code=$?
    echo "$1 $2: $code"
}
bench --db=db --benchmarks=fillseq,readseq,readrandom
bench --db=db --benchmarks=overwrite,readrandom,deleteseq,readwhilewriting,seekrandom --use_existing_db=1 --reads=500 --use_fsync=1
bench --db=db --benchmarks=compact,readreverse --use_existing_db=1
bench --db=synced --benchmarks=fillsync,readseq --num=100
ldb --db=db checkconsistency
ldb --db=db put key value
ldb --db=db get key
ldb --db=db compact
ldb --db=db checkconsistency
ldb --db=db scan --from=key --to=kez
for file in db/*.sst; do sst_dump --file=$file --command=verify >"$ASIDE/verify" 2>&1 || echo "$file is damaged"; done
