# Engines that ask the kernel past the C library. Nobody may be served old bytes.
for engine in libaio io_uring posixaio; do
    code=0
    fio --name=$engine --filename=$engine.data --ioengine=$engine --iodepth=4 --rw=randwrite --size=512k --bs=4k \
        --verify=crc32c --verify_fatal=1 --fsync=64 --randseed=42 >"$ASIDE/$engine" 2>&1 || code=$?
    if grep -qi 'function not implemented\|operation not supported' "$ASIDE/$engine"; then code='told no'; fi
    echo "$engine: $code"
done
