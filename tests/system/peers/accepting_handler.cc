// accepting_handler ADDRESS PORT COUNT: takes connections in a signal handler, on top of a malloc as likely as not.
// POSIX has accept() async-signal-safe: nothing that it calls may want malloc's lock.
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

int listener = -1;
volatile sig_atomic_t accepted = 0;

void on_alarm(int /*number*/) {
  const int saved = errno;
  if (accept4(listener, nullptr, nullptr, SOCK_NONBLOCK) >= 0) accepted = accepted + 1;
  errno = saved;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(atoi(argv[2])));
  inet_pton(AF_INET, argv[1], &address.sin_addr);
  listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 || listen(listener, 100) != 0) {
    perror("accepting_handler");
    return 1;
  }
  puts("ready");
  fflush(stdout);
  signal(SIGALRM, on_alarm);
  const itimerval often{{0, 200}, {0, 200}};
  setitimer(ITIMER_REAL, &often, nullptr);
  static void* all[100'000];
  while (accepted < atoi(argv[3])) {
    std::size_t size = 1100;
    for (void*& each : all) each = malloc(size++ % 2000 + 1100);
    for (void* each : all) free(each);
  }
  puts("complete");
  fflush(stdout);
  pause();
}
