# A repository with history, packed, checked, cloned and bundled.
export GIT_AUTHOR_DATE='1000000000 +0000' GIT_COMMITTER_DATE='1000000000 +0000' GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
git -c init.defaultBranch=main init -q one
cd one
git config user.email a@b
git config user.name n
git config core.fsync all
git config core.fsyncMethod batch
git config gc.writeCommitGraph true
for i in 1 2 3 4; do
    mkdir -p d$i
    seq 1 ${i}000 >d$i/f
    seq $i 7 9000 >g
    git add .
    git commit -qm "number $i"
done
git checkout -q -b side HEAD~2
seq 5 >h
git add h
git commit -qm side
git merge -q -m merged main
git tag -a -m tagged v1
git repack -qad --threads=1
git gc -q --aggressive --prune=now
git multi-pack-index write
git fsck --strict --full
git log --format='%H %s' --all
git count-objects -v | grep -v size
cd ..
git clone -q --no-local one two
git clone -q --bare one three.git
git -C two fsck --strict
git -C one bundle create -q ../bundle --all
git clone -q bundle four
git -C four log --format=%H -1
rm -r one/.git/logs two/.git/logs two/.git/index one/.git/index four/.git/index # times and inodes of this run
