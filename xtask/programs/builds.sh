# A compiler, an archiver, a linker, make, and cargo.
mkdir c && cd c
cat >a.h <<'C'
int square(int);
C
cat >a.c <<'C'
#include "a.h"
int square(int n) { return n * n; }
C
cat >main.c <<'C'
#include <stdio.h>
#include "a.h"
int main(void) { printf("%d\n", square(12)); return 0; }
C
printf 'CFLAGS = -O2 -g0\nmain: main.o liba.a\n\tcc -o $@ main.o liba.a\nliba.a: a.o\n\tar rcsD $@ a.o\n*.o: a.h\nlibb.so: a.c\n\tcc -shared -fPIC -o $@ a.c\n' >Makefile
make -s CC=cc main libb.so
./main
strip main
./main
objcopy --only-section=.text a.o text.o
nm liba.a | sed 's/^0* *//'
touch a.h
make -s CC=cc main
cd ..
mkdir -p r/src
printf '[package]\nname = "r"\nversion = "0.1.0"\nedition = "2021"\n[workspace]\n' >r/Cargo.toml
printf 'pub fn square(n: i32) -> i32 { n * n }\n' >r/src/lib.rs
printf 'fn main() { println!("{}", r::square(12)) }\n' >r/src/main.rs
cargo build --quiet --offline --manifest-path r/Cargo.toml --target-dir t 2>"$ASIDE/cargo" || echo "cargo failed"
./t/debug/r || echo "nothing was built"
printf 'pub fn square(n: i32) -> i32 { n * n * n }\n' >r/src/lib.rs
touch -d @1999999999 r/src/lib.rs
cargo build --quiet --offline --manifest-path r/Cargo.toml --target-dir t 2>"$ASIDE/cargo" || echo "cargo failed again"
./t/debug/r || echo "nothing was built"
rm -r t # with times of this run
