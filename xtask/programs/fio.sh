# Blocks of 64 bytes to 4 KiB at unaligned places, by each of fio's synchronous engines and in split sizes. fio reads all of it back,
# after the writing or amid it, and compares it with the checksum that it wrote into each block.
{
    printf '%s\n' '[global]' stonewall size=256k bs_unaligned=1 verify_fatal=1 do_verify=1 randseed=42
    for engine in sync psync vsync pvsync pvsync2; do
        for pattern in write randwrite randrw; do
            printf '%s\n' "[$engine-$pattern]" filename=$engine.$pattern ioengine=$engine rw=$pattern bsrange=64-4096 \
                verify=crc32c fsync=64
        done
    done
    printf '%s\n' '[split]' numjobs=2 size=512k ioengine=psync rw=randwrite bssplit=64/30:512/30:1k/10:4k/30 verify=md5 \
        verify_backlog=32 fdatasync=50
    printf '%s\n' '[dsync]' ioengine=psync rw=randwrite bsrange=64-4096 verify=crc32c sync=dsync
} >"$ASIDE/jobs"
code=0
fio "$ASIDE/jobs" >"$ASIDE/fio" 2>&1 || code=$?
echo "$code"
sed -n 's/^\([a-z0-9-]*\): (groupid.*err=\(.*\): pid.*/\1: \2/p' "$ASIDE/fio"
wc -c -- *
