/* Two processes that are forked before the first socket of either: one listens, the other connects to it, at an address
 * that both have. */
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "say.h"

static void serve(int tell) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = own_address()};
  socklen_t length = sizeof address;
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(listener, (struct sockaddr*)&address, sizeof address) != 0 || listen(listener, 5) != 0) _exit(1);
  getsockname(listener, (struct sockaddr*)&address, &length);
  (void)!write(tell, &address, sizeof address);
  int connection = accept(listener, NULL, NULL);
  char text[8];
  if (recv(connection, text, 8, MSG_WAITALL) != 8 || send(connection, "answer", 6, 0) != 6) _exit(2);
  recv(connection, text, 1, 0); /* its end */
  _exit(0);
}

static void ask(int hear) {
  struct sockaddr_in address;
  char text[8];
  if (read(hear, &address, sizeof address) != sizeof address) _exit(1);
  int connection = socket(AF_INET, SOCK_STREAM, 0);
  TRY(connect(connection, (struct sockaddr*)&address, sizeof address));
  TRY(send(connection, "question", 8, 0));
  TRY(recv(connection, text, 6, MSG_WAITALL));
  fflush(stdout);
  _exit(0);
}

int main(void) {
  alarm(20);
  int ends[2];
  if (pipe(ends) != 0) return 1;
  pid_t children[2];
  for (int i = 0; i < 2; i++) {
    children[i] = fork();
    if (children[i] != 0) continue;
    alarm(20);
    i == 0 ? serve(ends[1]) : ask(ends[0]);
  }
  for (int i = 0; i < 2; i++) {
    int status = 0;
    waitpid(children[i], &status, 0);
    say("status", status);
  }
  return 0;
}
