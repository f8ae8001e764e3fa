/* Asks the server of a run for an operation, by the first eight bytes of its request, and says how long the answer is,
   and the errno in it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

int main(int count, char **arguments) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (count != 4 || strlen(arguments[1]) >= sizeof address.sun_path) return 2;
    strcpy(address.sun_path, arguments[1]);
    int server = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(server, (struct sockaddr *)&address, sizeof address) != 0) {
        perror("connect");
        return 1;
    }
    unsigned request[12] = {strtoul(arguments[2], NULL, 10), strtoul(arguments[3], NULL, 10)};
    int answer[12] = {0};
    send(server, request, sizeof request, MSG_NOSIGNAL);
    long length = recv(server, answer, sizeof answer, 0);
    printf("%ld %d\n", length < 0 ? 0 : length, answer[0]);
    return 0;
}
