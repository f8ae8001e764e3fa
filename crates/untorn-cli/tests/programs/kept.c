/* Reads standard input by a pointer that a library has kept. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern FILE *kept;

int main(void) {
    char line[64] = {0}, word[64] = {0}, *grown = NULL;
    size_t room = 0;
    int number = 0;
    int first = fgetc(kept);
    int again = ungetc(first, kept);
    printf("%d %d\n", first, again);
    char *got = fgets(line, sizeof line, kept);
    printf("%s", got ? got : "nothing\n");
    memset(line, 0, sizeof line);
    size_t count = fread(line, 1, 4, kept);
    printf("%zu %s\n", count, line);
    ssize_t len = getline(&grown, &room, kept);
    printf("%zd %s", len, grown ? grown : "nothing\n");
    len = getdelim(&grown, &room, ';', kept);
    printf("%zd %s\n", len, grown ? grown : "nothing");
    int matched = fscanf(kept, "%d %63s", &number, word);
    printf("%d %d %s\n", matched, number, word);
    first = getc(kept), again = getc_unlocked(kept);
    printf("%d %d\n", first, again);
    long told = ftell(kept);
    printf("%ld %ld\n", told, (long)ftello(kept));
    while (getc_unlocked(kept) != EOF) number++;
    printf("%d %d %d\n", number, feof(kept) != 0, ferror(kept) != 0);
    rewind(kept);
    again = feof(kept) != 0, first = fgetc(kept), number = fseek(kept, -2, SEEK_END);
    printf("%d %d %d\n", again, first, number);
    printf("%d %d\n", fgetc(kept), fileno(kept));
    return 0;
}
