# A program without shared libraries and one of another C library, which no preloaded library could follow.
cat >"$ASIDE/words.c" <<'C'
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int argc, char **argv) {
    char name[64];
    for (int i = 0; i < 50; i++) {
        snprintf(name, sizeof name, "%s-%d", argv[1], i);
        FILE *stream = fopen(name, "w+");
        fprintf(stream, "line %d\n", i);
        fseek(stream, 3, SEEK_CUR);
        fprintf(stream, "after the gap\n");
        fflush(stream);
        fsync(fileno(stream));
        fclose(stream);
    }
    snprintf(name, sizeof name, "%s-map", argv[1]);
    int file = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    ftruncate(file, 3 << 20);
    char *map = mmap(NULL, 3 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    for (int page = 0; page < 768; page += 3) memset(map + page * 4096, 'a' + page % 26, 100);
    msync(map + 4096, 4096, MS_SYNC);
    pwrite(file, "written", 7, 8192);
    printf("%.7s %c\n", map + 8192, map[3 * 4096]);
    munmap(map, 3 << 20);
    rename(name, argv[2]);
    struct stat facts;
    fstat(file, &facts);
    printf("%ld bytes, %d name\n", (long)facts.st_size, (int)facts.st_nlink);
    return argc != 3;
}
C
for compiler in "cc" "musl-gcc" "musl-gcc -static"; do
    case $compiler in cc) compiler="cc -static" ;; esac
    $compiler -O1 -w -o "$ASIDE/words" "$ASIDE/words.c"
    name=$(echo "$compiler" | tr -d ' -')
    "$ASIDE/words" "$name" "renamed-$name"
    sh -c "\"\$ASIDE/words\" child-$name renamed-child-$name"
done
sha256sum *
