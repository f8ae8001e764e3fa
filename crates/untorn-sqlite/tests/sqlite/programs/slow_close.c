/* Holds a process where it asks for the lock of one that closes a database last, if there is a file `hold`, until there
 * is none. It says so by a file `held`. For LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <unistd.h>

int fcntl(int file, int command, ...) {
    static int (*real)(int, int, ...);
    va_list arguments;
    va_start(arguments, command);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    if (!real) real = (int (*)(int, int, ...))dlsym(RTLD_NEXT, "fcntl");
    if (command == F_OFD_SETLK && ((struct flock *)argument)->l_type == F_WRLCK && access("hold", F_OK) == 0) {
        close(creat("held", 0600));
        while (access("hold", F_OK) == 0) usleep(1000);
    }
    return real(file, command, argument);
}
