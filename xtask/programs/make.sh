# Eight compilers at a time below one make, then an archive, a link and a second build of what changed.
i=0
while [ $i -lt 40 ]; do
    printf '#include "all.h"\nint f%d(int n) { return n + %d + START; }\n' $i $i >f$i.c
    i=$((i + 1))
done
{ echo '#define START 1'; i=0; while [ $i -lt 40 ]; do echo "int f$i(int);"; i=$((i + 1)); done; } >all.h
{
    printf '#include <stdio.h>\n#include "all.h"\nint main(void) { int n = 0;\n'
    i=0; while [ $i -lt 40 ]; do echo "n = f$i(n);"; i=$((i + 1)); done
    printf 'printf("%%d\\n", n); return 0; }\n'
} >main.c
cat >Makefile <<'M'
OBJECTS = $(patsubst %,f%.o,$(shell seq 0 39))
CFLAGS = -g0 -O1
main: main.o liball.a
	$(CC) -o $@ main.o liball.a
liball.a: $(OBJECTS)
	rm -f $@ && ar rcsD $@ $(OBJECTS)
main.o $(OBJECTS): all.h
M
make -s -j8 CC=gcc
./main
sed -i 's/START 1/START 2/' all.h
make -s -j8 CC=gcc -W all.h
./main
make -q -j8 CC=gcc && echo "all is made"
