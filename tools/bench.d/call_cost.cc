// call_cost: what a call on a kernel descriptor costs more under the preload than without.
//
//   LD_PRELOAD=build/libbypass.so call_cost [ROUNDS]      prints one line of JSON a call
//
// Each call is made in short batches, by turns through the name (the interposer's, under the preload) and
// through libc's own address, so that both see the same machine; the medians of the batches are compared.
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int kBatch = 400;

template <typename Body>
double batch(Body body) {
  auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kBatch; i++) body();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / kBatch;
}

double median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

void* libc_address(const char* name) {
  static void* const libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  return dlsym(libc, name);
}

// `call` takes the function: once the one under the name, once libc's. `what` is printed.
template <typename Function, typename Call>
void compare_as(const char* what, const char* name, Function* named, int rounds, Call call) {
  auto* own = reinterpret_cast<Function*>(libc_address(name));
  Function* volatile through_name = named;  // both by an address in memory, as the PLT does
  Function* volatile through_libc = own;
  std::vector<double> ours, theirs;
  for (int i = 0; i < rounds; i++) {
    theirs.push_back(batch([&] { call(through_libc); }));
    ours.push_back(batch([&] { call(through_name); }));
  }
  double a = median(ours), b = median(theirs);
  std::printf("{\"call\": \"%s\", \"libc_ns\": %.1f, \"ns\": %.1f, \"extra_ns\": %.1f, \"interposed\": %s}\n", what, b,
              a, a - b, named == own ? "false" : "true");
}

template <typename Function, typename Call>
void compare(const char* name, Function* named, int rounds, Call call) {
  compare_as(name, name, named, rounds, call);
}

// One end of a byte's way there and back over two pipes: it sleeps in the wait, with nothing but its pipe in the set.
struct PipeEnd {
  int in, out, set = epoll_create1(0);

  PipeEnd(int in_fd, int out_fd) : in(in_fd), out(out_fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    epoll_ctl(set, EPOLL_CTL_ADD, in, &event);
  }
  template <typename Wait>
  void receive(Wait wait) const {
    char byte;
    epoll_event event;
    if (wait(set, &event, 1, -1) != 1 || ::read(in, &byte, 1) != 1) std::exit(1);
  }
  void send() const {
    if (::write(out, "x", 1) != 1) std::exit(1);
  }
};

// Both ends wait by the same one of the two functions at a time.
void compare_round_trips(int rounds) {
  int there[2], back[2];
  if (pipe(there) != 0 || pipe(back) != 0) std::exit(1);
  const pid_t child = fork();
  const PipeEnd end = child == 0 ? PipeEnd(there[0], back[1]) : PipeEnd(back[0], there[1]);
  if (child != 0) {
    compare_as("epoll_wait, round trip", "epoll_wait", &epoll_wait, rounds, [&](auto wait) {
      end.send();
      end.receive(wait);
    });
    waitpid(child, nullptr, 0);
    return;
  }
  auto* const own = reinterpret_cast<decltype(&epoll_wait)>(libc_address("epoll_wait"));
  for (int i = 0; i < 2 * rounds * kBatch; i++) {
    end.receive(i / kBatch % 2 == 0 ? own : &epoll_wait);
    end.send();
  }
  _exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 2000;
  const int zero = open("/dev/zero", O_RDWR), epoll = epoll_create1(0);
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return 1;
  char byte = 0;
  pollfd set[2] = {{ends[0], POLLIN, 0}, {zero, POLLIN, 0}};
  epoll_event event{};
  compare("read", &read, rounds, [&](auto f) { f(zero, &byte, 1); });
  compare("write", &write, rounds, [&](auto f) { f(zero, &byte, 1); });
  compare("recv", &recv, rounds, [&](auto f) { f(ends[0], &byte, 1, MSG_DONTWAIT); });
  compare("poll", &poll, rounds, [&](auto f) { f(set, 2, 0); });
  compare("epoll_wait", &epoll_wait, rounds, [&](auto f) { f(epoll, &event, 1, 0); });
  // A set with the kernel's descriptors alone, in a call that may sleep.
  const int full = epoll_create1(0);
  event.events = EPOLLIN;
  if (epoll_ctl(full, EPOLL_CTL_ADD, eventfd(1, 0), &event) != 0) return 1;
  compare_as("epoll_wait, may sleep", "epoll_wait", &epoll_wait, rounds, [&](auto f) { f(full, &event, 1, -1); });
  compare_round_trips(rounds / 10);
  compare("fcntl", &fcntl, rounds, [&](auto f) { f(ends[0], F_GETFL, 0); });
  compare("close", &close, rounds, [&](auto f) { f(-1); });
  compare("syscall", &syscall, rounds, [&](auto f) { f(SYS_getpid, 0, 0, 0); });
}
