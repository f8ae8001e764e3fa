#!/bin/sh
# Installs the packages in a minimal root directory and uses them as people do. `cargo xtask clean-root` starts it in
# namespaces of its own (mounts, network, processes), as root: clean_root.sh ROOT VERSION
#
# ROOT/untorn has the packages, the programs in C, C++ and Python, and in `source` the tests of the packages for Python
# and Go. ROOT/wheels has what Python's tests need. ROOT/opt/go is Go, if there is one.
set -eu
root=$1 version=$2

mkdir -p "$root/proc" "$root/dev/shm"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"

# No variable of the caller, no network.
inside() {
    chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C DEBIAN_FRONTEND=noninteractive \
        sh -ec "cd /untorn; $1"
}

says() {
    echo "-- $1"
    inside "$1"
}

# Those of an earlier run that did not come to its end.
inside 'dpkg --list "*untorn*" >/dev/null 2>&1 && dpkg --purge untorn libuntorn-dev libuntorn0 python3-untorn || true'

for absent in cargo rustc untorn; do
    if inside "command -v $absent" >/dev/null; then
        echo "$absent is installed: this is no clean root" >&2
        exit 1
    fi
done
find "$root/usr" "$root/etc" "$root/lib" | sort >"$root/before"

# The root has what they depend on, so nothing is fetched.
says 'apt-get install --yes --quiet=2 --no-install-recommends /untorn/*.deb'

says 'untorn --version'
says 'untorn doctor /untorn'
says 'untorn create data --len 1M; printf whole | untorn write data --offset 4093'
says '[ "$(untorn read data --offset 4093 --len 5)" = whole ]'
says 'ldconfig -p | grep libuntorn.so.0'
for page in 'untorn' 'untorn-mount' '3 untorn' '3 untorn_open'; do
    says "man -w $page"
done

# The programs know pkg-config alone.
says 'cc -std=c11 -Wall -Wextra -Werror use.c $(pkg-config --cflags --libs untorn) -o use_c'
says "./use_c of-c $version"
says 'c++ -std=c++17 -Wall -Wextra -Werror use.cpp $(pkg-config --cflags --libs untorn) -o use_cxx'
says "./use_cxx of-cxx $version"
# The static library needs the shared one no more.
says 'cc -std=c11 use.c -l:libuntorn.a $(pkg-config --libs --static untorn | sed "s/-luntorn//") -o use_static'
says "! ldd use_static | grep libuntorn"
says "./use_static of-static $version"

says "python3 use.py $version"

# The wheel, in an environment that does not see the package of Debian.
says 'python3 -m venv environment && environment/bin/pip install --quiet --no-index untorn-*.whl'
says "cd environment && bin/python ../use.py $version && bin/untorn doctor . >doctor && grep durability doctor"

# The tests of the package, and the example, on the wheel.
says 'python3 -m venv tested'
says 'tested/bin/pip install --quiet --no-index --find-links /wheels -r /wheels/requirements.txt untorn-*.whl'
says 'cd source/crates/untorn-python && /untorn/tested/bin/python -m pytest -q -p no:cacheprovider tests'
says 'cd source/examples/python && KILLS=3 ../../../tested/bin/python embeddings.py && test -s embeddings.png'

# The package for Go, by pkg-config alone. The user's variables that would say another place are not here.
if [ -x "$root/opt/go/bin/go" ]; then
    says 'cd source/go/untorn && GOTOOLCHAIN=local GOPROXY=off /opt/go/bin/go test -tags pkgconfig -count=1 ./...'
else
    echo '-- skipped: go test: there is no Go'
fi

# Units are there, and none is enabled.
for unit in untorn-recover.service untorn-scrub.service untorn-scrub.timer untorn-mount@.service; do
    test -f "$root/usr/lib/systemd/system/$unit"
done
grep -q '^ExecStart=/usr/lib/untorn/untorn-listed ' "$root/usr/lib/systemd/system/untorn-recover.service"
if find "$root/etc/systemd" -name '*untorn*' 2>/dev/null | grep .; then
    echo 'a unit of untorn is enabled' >&2
    exit 1
fi
echo /untorn/data >"$root/untorn/list"
says '/usr/lib/untorn/untorn-listed recover list'
for script in usr/share/bash-completion/completions/untorn usr/share/zsh/vendor-completions/_untorn \
    usr/share/fish/vendor_completions.d/untorn.fish; do
    test -s "$root/$script"
done

says 'apt-get purge --yes --quiet=2 untorn libuntorn0 libuntorn-dev python3-untorn'
find "$root/usr" "$root/etc" "$root/lib" | sort >"$root/after"
if diff "$root/before" "$root/after" | grep '^[<>].*untorn'; then
    echo 'the packages leave files behind' >&2
    exit 1
fi
echo 'clean root: every check passed'
