/* Looks at a managed file through one window of addresses, a page at a time. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096
#define PAGES 16
#define ROUNDS 1000

int main(void) {
    int fd = open("f.managed", O_RDWR | O_CREAT, 0644);
    if (fd < 0 || ftruncate(fd, PAGES * PAGE) != 0) return 1;
    char *window = mmap(NULL, 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int round = 0; round < ROUNDS; round++) {
        /* Now and then two pages, so that the next one is in the place of a part of it. */
        int pages = round % 7 == 0 ? 2 : 1;
        off_t offset = round % (PAGES - 1) * PAGE;
        char *at = mmap(window, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, offset);
        if (at != window) {
            perror("mmap");
            return 2;
        }
        at[round % 8 * 8] = (char)(round + 1);
        at[pages * PAGE - 1] = (char)round;
    }
    printf("%d mappings, synced %d\n", ROUNDS, fsync(fd));
    return 0;
}
