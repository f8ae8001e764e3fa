#!/bin/sh
# Runs the README's two commands in a minimal root directory. `cargo xtask bare` starts it in namespaces of its own (mounts,
# network, processes), as root: bare.sh ROOT SYSROOT USER
set -eu
root=$1 sysroot=$2 user=$3

mkdir -p "$root/opt/rust" "$root/proc" "$root/dev/shm"
mount --bind "$sysroot" "$root/opt/rust"
mount -o remount,bind,ro "$root/opt/rust"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"

# No variable of the caller, no network, and no program but those of the minimal root and of the toolchain.
inside() {
    chroot --userspec="$user" "$root" /usr/bin/env -i HOME=/untorn/home PATH=/opt/rust/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        CARGO_HOME=/untorn/home/.cargo CARGO_NET_OFFLINE=true LANG=C sh -ec "cd /untorn/project; $1"
}

for absent in qemu-system-x86_64 sqlite3 fio python3 git perl; do
    if inside "command -v $absent" >/dev/null; then
        # perl is essential to Debian, and of no use to the tests.
        [ "$absent" = perl ] || { echo "$absent is installed: this is no bare machine" >&2; exit 1; }
    fi
done

inside 'cargo run --release -- demo'
inside 'cargo test --workspace'
