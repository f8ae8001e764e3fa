/* Linked statically: nobody sees what it does to a descriptor that it is handed, if it is. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **arguments) {
    /* As a shell is called that ends itself. */
    if (count == 3 && strcmp(arguments[1], "-c") == 0) raise(SIGKILL);
    if (count > 1) write(atoi(arguments[count - 1]), "taken", 5);
    return 0;
}
