# Trees packed, unpacked, copied and brought up to date.
mkdir -p tree/a/b tree/c
for i in $(seq 6); do seq $((i * 500)) >tree/a/b/$i; done
head -c 300000 /dev/zero >tree/c/zeros
truncate -s 500K tree/c/sparse
echo end | dd of=tree/c/sparse bs=100 seek=3000 conv=notrunc status=none
ln tree/a/b/3 tree/c/hard
ln -s ../a/b/4 tree/c/soft
find tree -exec touch -hd @1000000 {} +
tar --sort=name --owner=0 --group=0 --numeric-owner -cf one.tar tree
tar --sort=name --owner=0 --group=0 --numeric-owner -czSf two.tgz tree
seq 99 >tree/a/b/99
touch -d @2000000 tree/a/b/99
tar --owner=0 --group=0 --numeric-owner -rf one.tar tree/a/b/99
tar -tf one.tar
mkdir out1 out2
tar -xf one.tar -C out1
tar -xzSf two.tgz -C out2
diff -r tree out1/tree
rm out1/tree/a/b/99
diff -r out1/tree out2/tree
tar -df one.tar
rsync -a --inplace tree/ rsynced/
seq 77 >>tree/a/b/5
sed -i 9d tree/a/b/6
rsync -a --checksum --no-whole-file --delete tree/ rsynced/
rsync -a --append tree/c/ rsynced2/
rsync -aW --fsync --preallocate tree/c/ rsynced3/
diff -r tree rsynced
diff -r --no-dereference tree/c rsynced3
(cd tree && find . -type f | sort | cpio -o -H newc --quiet --reproducible -R 0:0 >../three.cpio)
mkdir out3
(cd out3 && cpio -idm --quiet <../three.cpio)
(cd tree && TZ=UTC zip -qrX -D ../four.zip a c/zeros)
unzip -q four.zip -d out4
diff -r tree/a out4/a
unzip -tq four.zip
cp -a tree copied
diff -r tree copied
find . -type f -exec stat -c '%n %s %Y' {} + | grep ' 1000000$\| 2000000$' | sort
rm two.tgz three.cpio four.zip # with times and inode numbers of this run
