# Stressors of files, each a fixed number of rounds, each of which looks at what it wrote.
stress() {
    code=0
    stress-ng --temp-path . --verify --metrics-brief --seed 1 "$@" >"$ASIDE/$1" 2>&1 || code=$?
    echo "$1: $code $(grep -c 'fail:' "$ASIDE/$1")"
}
stress --hdd 1 --hdd-bytes 1m --hdd-ops 200
stress --hdd 1 --hdd-bytes 1m --hdd-ops 100 --hdd-opts sync,wr-rnd,rd-rnd,fsync,fdatasync,utimes,iovec
stress --iomix 1 --iomix-bytes 1m --iomix-ops 200
stress --seek 1 --seek-size 1m --seek-ops 300
stress --fallocate 1 --fallocate-bytes 1m --fallocate-ops 20
stress --rename 1 --rename-ops 200
stress --copy-file 1 --copy-file-bytes 128m --copy-file-ops 20
ls -A
