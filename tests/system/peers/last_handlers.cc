// last_handlers ADDRESS PORT CHILDREN: a listener whose children end, each in another way, while a handler of theirs
// closes it, at some moment of the end. Says "ready" after the last one and serves one connection.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

constexpr int kStepUs = 20, kSteps = 100;  // of the moments at which the handler comes

int listener = -1;

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

void close_listener(int) {
  close(listener);
}

[[noreturn]] void end(int i) {
  signal(SIGALRM, close_listener);
  const itimerval once{{}, {0, 1 + i / 3 % kSteps * kStepUs}};
  setitimer(ITIMER_REAL, &once, nullptr);
  if (i % 3 == 0) _exit(0);
  if (i % 3 == 1) execl("/bin/true", "true", nullptr);
  std::exit(0);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) return 2;
  listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(std::atoi(arguments[2])));
  if (inet_pton(AF_INET, arguments[1], &address.sin_addr) != 1) fail(arguments[1]);
  if (bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fail("bind");
  if (listen(listener, 16) != 0) fail("listen");
  for (int i = 0; i < std::atoi(arguments[3]); i++) {
    const pid_t child = fork();
    if (child == 0) end(i);
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) fail("a child");
    const bool by_alarm = WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;  // of the one that runs true(1)
    if (!by_alarm && (!WIFEXITED(status) || WEXITSTATUS(status) != 0)) {
      std::printf("child %d ended with %#x\n", i, static_cast<unsigned>(status));
      return 1;
    }
  }
  std::puts("ready");
  std::fflush(stdout);
  const int connection = accept(listener, nullptr, nullptr);
  if (connection < 0) fail("accept");
  if (write(connection, "served", 6) != 6) fail("write");
  close(connection);
  return 0;
}
