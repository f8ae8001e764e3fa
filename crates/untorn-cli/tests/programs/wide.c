/* Wide characters on files, or on standard streams, as its argument says; tells what it finds. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#ifdef KEPT
extern FILE *kept;
#else
#define kept stdin
#endif

#ifdef OLD
/* By the names that the C library's headers no longer choose. */
extern int old_fwscanf(FILE *, const wchar_t *, ...) __asm__("fwscanf");
extern int old_wscanf(const wchar_t *, ...) __asm__("wscanf");
extern int old_vfwscanf(FILE *, const wchar_t *, va_list) __asm__("vfwscanf");
extern int old_vwscanf(const wchar_t *, va_list) __asm__("vwscanf");
#define fwscanf old_fwscanf
#define wscanf old_wscanf
#define vfwscanf old_vfwscanf
#define vwscanf old_vwscanf
#endif

static FILE *told;

#define TELL(...) (fprintf(told, "%d: ", __LINE__), fprintf(told, __VA_ARGS__), fputc('\n', told))

/* What is called is called in this order. */
#define TELL_EACH(...) do { \
    long each[] = {__VA_ARGS__}; \
    for (unsigned i = 0; i < sizeof each / sizeof *each; i++) TELL("%ld", each[i]); \
} while (0)

static void state(FILE *file, const char *what) {
    int e = errno;
    fprintf(told, "%s: at %ld, end %d, failed %d, errno %d\n",
            what, ftell(file), feof(file) != 0, ferror(file) != 0, e);
    errno = 0;
}

static FILE *holding(const char *bytes, size_t count) {
    FILE *file = fopen("in.managed", "w");
    fwrite(bytes, 1, count, file);
    fclose(file);
    errno = 0;
    return fopen("in.managed", "r");
}
#define HOLDING(text) holding(text, sizeof text - 1)

static void letters(FILE *file) {
    wint_t letter;
    for (int i = 0; i < 12 && (letter = fgetwc(file)) != WEOF; i++)
        fprintf(told, "%x@%ld ", (unsigned)letter, ftell(file));
    state(file, "letters");
}

static int formed(FILE *file, const wchar_t *format, ...) {
    va_list list;
    va_start(list, format);
    int count = vfwprintf(file, format, list);
    va_end(list);
    return count;
}

static int formed_out(const wchar_t *format, ...) {
    va_list list;
    va_start(list, format);
    int count = vwprintf(format, list);
    va_end(list);
    return count;
}

static int matched(FILE *file, const wchar_t *format, ...) {
    va_list list;
    va_start(list, format);
    int count = vfwscanf(file, format, list);
    va_end(list);
    return count;
}

static int matched_in(const wchar_t *format, ...) {
    va_list list;
    va_start(list, format);
    int count = vwscanf(format, list);
    va_end(list);
    return count;
}

static void show(const char *name) {
    char bytes[4096];
    FILE *file = fopen(name, "r");
    size_t count = fread(bytes, 1, sizeof bytes, file);
    fwrite(bytes, 1, count, told);
    TELL("%zu bytes", count);
    fclose(file);
}

static void reading(void) {
    FILE *file = HOLDING("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\nz");
    TELL_EACH(fwide(file, 0), fwide(file, 1) > 0, fwide(file, -1) > 0);
    letters(file);
    TELL("%d", fgetwc(file) == WEOF);
    rewind(file);
    TELL("%x", (unsigned)getwc(file));
    state(file, "rewound");
    TELL("%d", fseek(file, 3, SEEK_SET));
    letters(file);
    TELL_EACH(fseek(file, -2, SEEK_END), (int)fgetwc_unlocked(file));
    fclose(file);

    file = HOLDING("ab\xff\xfe" "c");
    letters(file);
    TELL("%d", getwc_unlocked(file) == WEOF);
    state(file, "again");
    clearerr(file);
    TELL_EACH(fseek(file, 4, SEEK_SET), fgetwc(file) == 'c');
    fclose(file);
    file = HOLDING("\xc3");
    letters(file);
    fclose(file);
    file = HOLDING("a\xc3");
    letters(file);
    fclose(file);
    file = HOLDING("");
    letters(file);
    fclose(file);
    file = HOLDING("bytes");
    TELL("%d", fgetc(file));
    TELL_EACH(fwide(file, 0) < 0, fwide(file, 1) < 0);
    TELL("%d", fgetwc(file) == WEOF);
    fclose(file);

    /* Put back. */
    file = HOLDING("\xc3\xa9t\xc3\xa9 x");
    wint_t first = fgetwc(file), second = fgetwc(file);
    TELL("%x %x", (unsigned)first, (unsigned)second);
    TELL("%d", ungetwc(second, file) == second);
    TELL("%x", (unsigned)fgetwc(file));
    TELL("%d", ungetwc(L'\x20ac', file) == L'\x20ac');
    TELL_EACH(fgetwc(file), fgetwc(file));
    while (fgetwc(file) != WEOF) {}
    TELL_EACH(feof(file) != 0, ungetwc(L'!', file) == L'!', feof(file) != 0);
    TELL_EACH(ungetwc(WEOF, file) == WEOF, fgetwc(file) == L'!', fgetwc(file) == WEOF);
    fclose(file);

    /* Lines. */
    wchar_t line[8];
    file = HOLDING("one\n\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9 long\nlast");
    while (fgetws(line, 8, file)) TELL("<%ls>", line);
    state(file, "lines");
    rewind(file);
    volatile int some = 5;
    while (fgetws_unlocked(line, some, file)) TELL("<%ls>", line);
    rewind(file);
    some = 20;
    TELL("%d", fgetws(line, some, file) == line);
    TELL("%ls", line);
    rewind(file);
    line[0] = 'x';
    TELL_EACH(fgetws(line, 1, file) == line, (int)line[0]);
    fclose(file);
    file = HOLDING("ab\nc\xff" "d\n");
    TELL("%d", fgetws(line, 8, file) == line);
    TELL("%d", fgetws(line, 8, file) == line);
    state(file, "no line");
    fclose(file);

    /* More than is read at a time, and characters that two reads share. */
    file = fopen("long.managed", "w");
    for (int i = 0; i < 30000; i++) fputs(i % 7 == 0 ? "x" : "\xe2\x82\xac", file);
    fclose(file);
    file = fopen("long.managed", "r");
    unsigned sum = 0, count = 0;
    for (wint_t letter; (letter = fgetwc(file)) != WEOF; count++) sum = sum * 31 + letter;
    TELL("%u %u", sum, count);
    state(file, "long");
    fclose(file);
}

static void writing(void) {
    int place = -1;
    FILE *file = fopen("out.managed", "w");
    TELL_EACH(fwide(file, 0), fwide(file, 1) > 0);
    TELL_EACH(fputwc(L'\xe9', file), putwc(L'a', file));
    TELL("%d", fputws(L"\x20ac uro\n", file) >= 0);
    TELL_EACH(fputwc_unlocked(L'u', file), putwc_unlocked(L'\n', file));
    TELL("%d", fputws_unlocked(L"unlocked\n", file) >= 0);
    TELL("%d", fputws(L"", file) >= 0);
    TELL_EACH(fwprintf(file, L"%d %5.2f %ls|%-6s|%lc %s%n\n",
                       42, 3.14159, L"\xe9t\xe9", "ab", L'\x20ac', "\xc3\xa9", &place), place);
    TELL("%d", formed(file, L"%1$d %2$g %3$d %4$d %5$d %6$d %7$d %8$f\n", 1, 2.5, 3, 4, 5, 6, 7, 8.5));
    TELL("at %ld", ftell(file));
    TELL("%d", fseek(file, 0, SEEK_SET));
    TELL("%x", (unsigned)fputwc(L'E', file));
    TELL("%d", fclose(file));
    show("out.managed");

    /* What is no character: told then, or when it is written. */
    file = fopen("out.managed", "w");
    setvbuf(file, NULL, _IONBF, 0);
    TELL("%d", fputws(L"ab", file) >= 0);
    TELL("%d", fputwc(0xd800, file) == WEOF);
    TELL_EACH(errno == EILSEQ, ferror(file) != 0);
    fclose(file);
    show("out.managed");
    file = fopen("out.managed", "r");
    errno = 0;
    TELL_EACH(fputwc(L'a', file) == WEOF, errno);
    fclose(file);
    file = fopen("out.managed", "a+");
    TELL("%d", fputws(L"\xe9nd\n", file) >= 0);
    TELL_EACH(fseek(file, 1, SEEK_SET), fgetwc(file));
    TELL("%d", fseek(file, 0, SEEK_CUR));
    TELL_EACH(fputws(L"more\n", file) >= 0, fclose(file));
    show("out.managed");
    /* Long ones. */
    file = fopen("out.managed", "w");
    for (int i = 0; i < 50; i++) fwprintf(file, L"%*d\x20ac%ls\n", i * 11, i, L"\xe9\xe9");
    wchar_t *big = malloc(20001 * sizeof *big);
    wmemset(big, L'\x20ac', 20000);
    big[20000] = 0;
    TELL_EACH(fputws(big, file) >= 0, fwprintf(file, L"%ls", big));
    TELL("%d", fclose(file));
}

static void scanning(void) {
    int a = -1, b = -1, count = -1;
    double number = -1;
    wchar_t word[32] = L"?";
    char bytes[64] = "?";
    FILE *file = HOLDING("12 \xc3\xa9t\xc3\xa9 0x1f,7.5e1;\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac% rest 99");
    TELL("%d", fwscanf(file, L"%d %ls %i", &a, word, &b));
    TELL("%d %ls %d", a, word, b);
    state(file, "scanned");
    TELL("%d", fwscanf(file, L",%lf", &number));
    TELL("%f", number);
    TELL("%d", matched(file, L";%2l[^%d]%n", word, &count));
    TELL("%ls", word);
    TELL("%d", count);
    TELL("%d", fwscanf(file, L"%1s%%", bytes));
    TELL("%s", bytes);
    TELL("%x", (unsigned)fgetwc(file));
    TELL("%d", fwscanf(file, L"no"));
    state(file, "no match");
    TELL("%d", fwscanf(file, L"%2$3s%1$ls", word, bytes));
    TELL("%ls %s", word, bytes);
    TELL("%d", matched(file, L"%*d"));
    state(file, "to the end");
    TELL_EACH(fwscanf(file, L"%d", &a), a);
    state(file, "at the end");
    fclose(file);

    file = HOLDING("abc 5");
    TELL("%d", fwscanf(file, L"%3s", bytes));
    TELL("%s", bytes);
    TELL("%d", fwscanf(file, L" "));
    state(file, "before the last");
    TELL("%d", fwscanf(file, L"%1d", &a));
    state(file, "just so many");
    fclose(file);
    for (int i = 0; i < 9; i++) {
        static const wchar_t *const formats[] = {
            L"%d", L"%4d", L"1 2", L"1 2 ", L"%d%d%d", L"%1d %1d%*c", L"%[1 2]", L"%3[1 2]", L"%*d 23",
        };
        file = HOLDING("1 2");
        a = b = -1;
        TELL("%d", fwscanf(file, formats[i], i < 6 ? (void *)&a : bytes, &b, &count));
        TELL("%d %d", a, b);
        state(file, "short");
        fclose(file);
    }
    file = HOLDING("7 in\xff");
    TELL_EACH(fwscanf(file, L"%d", &a), a);
    state(file, "before what is none");
    TELL("%d", fwscanf(file, L" in%d", &a));
    state(file, "what is none");
    fclose(file);
    char *made = NULL;
    wchar_t *wide = NULL;
    file = HOLDING("made \xc3\xa9");
    TELL("%d", fwscanf(file, L"%ms %mls", &made, &wide));
    TELL("%s %ls", made, wide);
    free(made), free(wide);
    fclose(file);

    file = fopen("long.managed", "w");
    for (int i = 0; i < 3000; i++) fprintf(file, "%*d \xe2\x82\xac%d\n", i % 90 + 1, i, i);
    fclose(file);
    file = fopen("long.managed", "r");
    unsigned sum = 0, rounds = 0;
    while ((a = fwscanf(file, L"%d %lc%d", &b, word, &count)) == 3) sum = sum * 31 + b * 7 + count + word[0], rounds++;
    TELL("%d %u %u", a, sum, rounds);
    state(file, "long");
    fclose(file);
}

static void named(void) {
    /* A character set by its name, whatever the locale. */
    setlocale(LC_ALL, "C");
    FILE *file = HOLDING("a\xc3\xa9\xe2\x82\xac");
    fclose(file);
    file = fopen("in.managed", "r,ccs=UTF-8");
    TELL("%d", fwide(file, 0) > 0);
    letters(file);
    fclose(file);
    file = fopen("in.managed", "r,ccs=ISO-8859-1");
    letters(file);
    fclose(file);
    file = fopen("latin.managed", "w,ccs=ISO-8859-1");
    TELL_EACH(fputws(L"\xe9\xe8\n", file) >= 0, fclose(file));
    file = fopen("plain", "w,ccs=UTF-8");
    TELL_EACH(fputws(L"\xe9\x20ac\n", file) >= 0, fclose(file));
    errno = 0;
    TELL("%d", fopen("in.managed", "r,ccs=NO-SUCH-SET") == NULL);
    TELL("%d", errno);
    /* What the locale does not have. */
    file = fopen("ascii.managed", "w");
    TELL_EACH(fputws(L"\xe9\x201cx\x201d\n", file) >= 0, fclose(file));
    file = fopen("in.managed", "r");
    letters(file);
    fclose(file);
}

static void standard(void) {
    wchar_t line[32];
    int number = 0;
    wint_t letter = fgetwc(kept);
    TELL_EACH(letter, ungetwc(letter, kept) == letter);
    TELL("%x", (unsigned)getwc(kept));
    TELL("%x", (unsigned)getwchar());
    TELL("%x", (unsigned)getwchar_unlocked());
    TELL("%d", fgetws(line, 32, kept) == line);
    TELL("%ls", line);
    TELL("%d", fwscanf(kept, L"%d %31ls", &number, line));
    TELL("%d %ls", number, line);
    TELL("%d", wscanf(L"%d", &number));
    TELL_EACH(number, matched_in(L" %31ls", line));
    TELL("%ls", line);
    TELL("%d", fwide(kept, 0) > 0);
    while (getwchar() != WEOF) number++;
    TELL("%d", number);
    state(kept, "standard input");
    TELL("%d", fwide(stdout, 0));
    TELL("%d", wprintf(L"%d %ls %f\n", 7, L"\xe9t\xe9", 2.5));
    TELL("%d", formed_out(L"%s %d %d %d %d %d %d\n", "list", 1, 2, 3, 4, 5, 6));
    TELL_EACH(putwchar(L'\x20ac'), putwchar_unlocked(L'\n'));
    TELL("%d", fputws(L"string \xe9\n", stdout) >= 0);
    TELL_EACH(fwide(stdout, 0) > 0, fwide(stdout, -1) > 0);
    TELL("%d", fwprintf(stderr, L"to standard error \x20ac %d\n", 1));
    /* What waits goes to what the descriptor is made. */
    int fd = open("later.managed", O_CREAT | O_RDWR, 0600);
    fflush(stdout);
    fputws(L"waited \x20ac\n", stdout);
    dup2(fd, 1);
    TELL("%d", wprintf(L"then %ls\n", L"\xe9"));
}

int main(int count, char **arguments) {
    setlocale(LC_ALL, "C.UTF-8");
    if (!strcmp(arguments[1], "standard")) {
        told = fopen("told", "w");
        standard();
        fclose(told);
        return 0;
    }
    told = stdout;
    setvbuf(told, NULL, _IOLBF, 0);
    reading();
    writing();
    scanning();
    named();
    return 0;
}
