/* A program as others write one, against an installed untorn: the header, the shared library, its version. */
#include <untorn.h>
#include <untorn/acumen.h>
#include <untorn/libpmem.h>
#include <untorn/nvmmio.h>
#include <untorn/protect.h>
#include <untorn/region.h>
#include <untorn/shared.h>

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    untorn_options options = UNTORN_OPTIONS_INIT;
    untorn_error why;
    char back[6] = "";
    if (argc != 3) return 64;
    if (strcmp(untorn_version(), argv[2]) != 0) {
        fprintf(stderr, "the library is of version %s, not %s\n", untorn_version(), argv[2]);
        return 1;
    }
    options.flags = UNTORN_CREATE;
    options.length = 1 << 20;
    untorn_t *file = untorn_open(argv[1], &options, &why);
    if (!file) {
        fprintf(stderr, "%s\n", why.message);
        return 1;
    }
    int code = untorn_write(file, 4093, "whole", 6);
    if (!code) code = untorn_sync(file);
    if (!code) code = untorn_read(file, 4093, back, 6);
    int closed = untorn_close(file);
    if (code || closed || strcmp(back, "whole") != 0) {
        untorn_last_error(&why);
        fprintf(stderr, "%s\n", why.message);
        return 1;
    }
    printf("untorn %s\n", untorn_version());
    return 0;
}
