/* Shares memory with a child that another program is executed in. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **arguments) {
    int fd = count > 1 ? atoi(arguments[1]) : memfd_create("shared", 0), status;
    if (count == 1 && ftruncate(fd, 4096) != 0) return 1;
    char *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), number[8];
    if (at == MAP_FAILED) return 2;
    if (count > 1) {
        strcpy(at, "child");
        return write(fd, "C", 1) != 1;
    }
    strcpy(at, "parent");
    sprintf(number, "%d", fd);
    if (fork() == 0) execl(arguments[0], arguments[0], number, NULL);
    wait(&status);
    puts(at);
    return status != 0;
}
