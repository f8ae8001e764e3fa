# What reads, writes, copies and sorts. Nothing here says a time, so every byte of every file must be the same.
seq 1 9000 | sed 's/$/ the quick brown fox/' >a
sort -R --random-source=a a >b
sort -S 200k -T . --parallel=1 -o b b
sort -n -o b b
cmp a b
cp a c
cp --sparse=always a d
cp --reflink=auto --preserve=mode,timestamps a e
cp --reflink=never a f
cmp a c && cmp a d && cmp a e && cmp a f
cat a >>c
cat c a >g
dd if=a of=h bs=7 count=300 status=none
dd if=a of=h bs=1000 seek=3 skip=2 count=5 conv=notrunc,fsync status=none
dd if=a of=h bs=100 oflag=append,dsync conv=notrunc,fdatasync count=9 status=none
dd if=/dev/zero of=i bs=4096 count=4 seek=9 conv=sparse,excl status=none
dd if=a of=i bs=64k iflag=fullblock oflag=seek_bytes seek=5 count=3 conv=notrunc,swab status=none
dd if=a bs=3 skip=11 count=20 iflag=skip_bytes,nocache of=j conv=ucase,sync status=none
dd if=a of=k ibs=13 obs=4001 conv=block cbs=40 count=900 status=none
truncate -s 12345 k
truncate -s +1M k
truncate -s %4096 k
truncate -r a l
fallocate -l 20000 m
# A file system in memory cannot do that.
fallocate -o 4096 -l 4096 -z a 2>/dev/null || dd if=/dev/zero of=a bs=4096 seek=1 count=1 conv=notrunc status=none
fallocate -p -o 0 -l 5000 c
fallocate -d c
split -b 100000 -d g part.
cat part.* >n
cmp g n
csplit -s -f cs. a 100 '{3}'
tee o p <a >q
shuf --random-source=a -o r b
uniq -c b s
paste a b >t
join a b >u || true
comm a b >v || true
tac a >w
od -An -tx1 a >x
base64 a >y
base64 -d y >z
cmp a z
md5sum -- * >sums
md5sum -c --quiet sums
shred -n 0 -z -x o
shred -u p
ln a hard
mv hard harder
rm q
mkdir into
install -m 640 a into/a
sed -i -e 2d -e 's/fox/dog/' into/a
sed -i.bak 's/dog/cat/w written' into/a
patch -s b <<'P'
--- b
+++ b
@@ -1,3 +1,3 @@
-1 the quick brown fox
+1 the quick brown cat
 2 the quick brown fox
 3 the quick brown fox
P
printf '%s\n' 1d 's/quick/slow/' '$a' end . w q | ed -s b
awk '{ print > ("awk." NR % 3) } END { close("awk.0"); while ((getline line < "awk.0") > 0) n++; print n }' b
perl -i.orig -pe 's/brown/red/' awk.1
perl -e 'open F, "+<", "awk.2"; seek F, 10, 0; print F "perl"; truncate F, 5000; close F'
gzip -nk awk.1
gunzip -c awk.1.gz | cmp - awk.1
bzip2 -k awk.2
xz -k awk.2
bunzip2 -c awk.2.bz2 | cmp - awk.2
xz -t awk.2.xz
stat -c '%n %s %a' -- *
