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
#include <sys/socket.h>
#include <sys/syscall.h>
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

// `call` takes the function: once the one under the name, once libc's.
template <typename Function, typename Call>
void compare(const char* name, Function* named, int rounds, Call call) {
  auto* own = reinterpret_cast<Function*>(libc_address(name));
  Function* volatile through_name = named;  // both by an address in memory, as the PLT does
  Function* volatile through_libc = own;
  std::vector<double> ours, theirs;
  for (int i = 0; i < rounds; i++) {
    theirs.push_back(batch([&] { call(through_libc); }));
    ours.push_back(batch([&] { call(through_name); }));
  }
  double a = median(ours), b = median(theirs);
  std::printf("{\"call\": \"%s\", \"libc_ns\": %.1f, \"ns\": %.1f, \"extra_ns\": %.1f, \"interposed\": %s}\n", name, b,
              a, a - b, named == own ? "false" : "true");
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
  compare("fcntl", &fcntl, rounds, [&](auto f) { f(ends[0], F_GETFL, 0); });
  compare("close", &close, rounds, [&](auto f) { f(-1); });
  compare("syscall", &syscall, rounds, [&](auto f) { f(SYS_getpid, 0, 0, 0); });
}
