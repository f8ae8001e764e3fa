/* A library that keeps a pointer to a standard stream when it is loaded. */
#include <stdio.h>

FILE *kept;

__attribute__((constructor)) static void keep(void) { kept = stdin; }
