#!/bin/sh
# Installs the Python package by pip from its sources and uses it, as an ordinary user who has Rust and no other tool of
# this repository: pip_install.sh PLACE SYSROOT USER VERSION
#
# PLACE has `checkout`, a clone; `sdist`, the source distribution; and `cargo`, what Cargo has fetched. As root,
# `cargo xtask nightly` starts this in a mount namespace of its own, and USER is whom to become. Otherwise USER is empty,
# and the caller is the ordinary user.
set -eu
place=$1 sysroot=$2 user=$3 version=$4

if [ -n "$user" ]; then
    # Directories above these may be closed to other users.
    mkdir -p "$place/rust"
    mount --bind "$sysroot" "$place/rust"
    mount --bind "$place" /mnt
    mount --bind "$sysroot" /mnt/rust
    mount -o remount,bind,ro /mnt/rust
    place=/mnt sysroot=/mnt/rust
fi

# No interpreter of the caller's home, which others may not enter; the variables of pip stay, for its proxies.
inside() {
    become=
    [ -z "$user" ] || become="setpriv --reuid=$user --regid=$user --clear-groups --inh-caps=-all --"
    $become /usr/bin/env -u RUSTUP_HOME -u RUSTUP_TOOLCHAIN -u PYTHONPATH -u VIRTUAL_ENV HOME="$place/home" \
        TMPDIR="$place/home" CARGO_HOME="$place/cargo" CARGO_TARGET_DIR="$place/built" \
        PATH="$sysroot/bin:/usr/local/bin:/usr/bin:/bin" sh -ec "cd '$place/home'; $1"
}

says() {
    echo "-- $1"
    inside "$1"
}

if [ -n "$user" ] && inside '[ "$(id -u)" = 0 ] || [ -w /usr ]'; then
    echo 'the rights of root are still there' >&2
    exit 1
fi
use="$place/checkout/xtask/programs/dist/use.py"
readme="$place/checkout/crates/untorn-python/README.md"
# The first example of the package's README, which needs numpy.
inside "sed -n '/^\`\`\`python\$/,/^\`\`\`\$/p' '$readme' | sed '1d; /^\`\`\`\$/,\$d' >example.py; grep -q untorn.memmap example.py"
for source in "$place"/sdist/untorn-*.tar.gz "$place/checkout/crates/untorn-python"; do
    says 'python3 -m venv --clear environment'
    says "environment/bin/pip install --quiet --disable-pip-version-check --retries 10 '$source' 'numpy>=1.21'"
    says "environment/bin/python '$use' $version"
    says 'rm -f weights.bin && environment/bin/python example.py && test $(stat -c %s weights.bin) = 2048000'
    # The tool comes with the wheel of `cargo xtask dist`, as docs/install.md says.
    says 'test ! -e environment/bin/untorn'
done
echo 'pip install: every check passed'
