// netbench: the plain socket program that the benchmark runs on the kernel's sockets and on libbypass's alike.
//
//   netbench pingpong  server|client ADDRESS PORT [--size N] [--count N] [--spin] [--mark] [--cpu N]
//   netbench stream    server|client ADDRESS PORT [--size N] [--seconds S] [--cpu N]
//   netbench connect   server|client ADDRESS PORT [--count N] [--cpu N]
//   netbench idle      server|client ADDRESS PORT [--count N]      opens N connections and waits for end of input
//   netbench many      server|client ADDRESS PORT [--count N] [--size N] [--seconds S]     likewise N connections; the
//                      client then asks on each in turn, 64 at a time, once it has been sent a line
//
// A server prints "ready" when it listens and serves one client; a client prints one line of JSON. It knows
// nothing of libbypass. An ADDRESS that is a path is a Unix socket's.
// `--spin`: non-blocking sockets, polled without pause, as a tuned kernel program does.
// `--stay`: what has been measured, both ends keep their connections until the end of their input, to be looked at.
// Round trips are told without what reading the clock costs.
// `--fork`: a ping-pong server answers from a forked child.
// `--mark`: asks for the files /netbench-begin and /netbench-end before and after the measured round trips (for a
// tracer to see), with clocks left alone in between; a server then serves exactly --count of them.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

struct Arguments {
  std::string mode, role, address;
  int port = 0;
  std::size_t size = 64;
  long count = 100000;
  double seconds = 2;
  bool spin = false, mark = false, fork = false, stay = false;
  int cpu = -1;
};

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "netbench: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

void usage() {
  std::fputs(
      "usage: netbench pingpong|stream|connect|idle|many server|client ADDRESS PORT [--size N] [--count N] "
      "[--seconds S] [--spin] [--mark] [--fork] [--stay] [--cpu N]\n",
      stderr);
  std::exit(2);
}

bool take_flag(Arguments& a, std::string_view option) {
  const struct {
    std::string_view name;
    bool& value;
  } flags[] = {{"--spin", a.spin}, {"--mark", a.mark}, {"--fork", a.fork}, {"--stay", a.stay}};
  for (const auto& flag : flags) {
    if (flag.name != option) continue;
    flag.value = true;
    return true;
  }
  return false;
}

Arguments parse(int argc, char** argv) {
  if (argc < 5) usage();
  Arguments a{argv[1], argv[2], argv[3], std::atoi(argv[4])};
  for (int i = 5; i < argc; i++) {
    const std::string_view option = argv[i];
    if (take_flag(a, option)) continue;
    if (i + 1 >= argc) usage();
    const char* value = argv[++i];
    if (option == "--size")
      a.size = std::strtoul(value, nullptr, 10);
    else if (option == "--count")
      a.count = std::atol(value);
    else if (option == "--seconds")
      a.seconds = std::atof(value);
    else if (option == "--cpu")
      a.cpu = std::atoi(value);
    else
      usage();
  }
  return a;
}

void pin(int cpu) {
  if (cpu < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) fail("sched_setaffinity");
}

// Where the server is: of the internet, or a Unix socket's path.
struct Name {
  union {
    sockaddr any;
    sockaddr_in in;
    sockaddr_un un;
  };
  socklen_t size;
};

Name name_of(const Arguments& a) {
  Name name{};
  if (a.address.starts_with('/')) {
    name.un.sun_family = AF_UNIX;
    if (a.address.size() >= sizeof name.un.sun_path) errno = ENAMETOOLONG, fail(a.address.c_str());
    a.address.copy(name.un.sun_path, a.address.size());
    name.size = sizeof name.un;
    return name;
  }
  name.in.sin_family = AF_INET;
  name.in.sin_port = htons(static_cast<std::uint16_t>(a.port));
  if (inet_pton(AF_INET, a.address.c_str(), &name.in.sin_addr) != 1) errno = EINVAL, fail(a.address.c_str());
  name.size = sizeof name.in;
  return name;
}

void tune(int fd, bool spin) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (spin && fcntl(fd, F_SETFL, O_NONBLOCK) != 0) fail("fcntl");
}

void say(const char* word) {
  std::puts(word);
  std::fflush(stdout);
}

// False: the input has ended.
bool read_input() {
  char byte = 0;
  return read(0, &byte, 1) > 0;
}

void wait_for_end_of_input() {
  while (read_input()) {
  }
}

int listen_at(const Arguments& a) {
  const Name name = name_of(a);
  const int fd = ::socket(name.any.sa_family, SOCK_STREAM, 0);
  const int one = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (fd < 0 || bind(fd, &name.any, name.size) != 0 || ::listen(fd, 128) != 0) fail("listen");
  say("ready");
  return fd;
}

int connect_to(const Arguments& a) {
  const Name name = name_of(a);
  const int fd = ::socket(name.any.sa_family, SOCK_STREAM, 0);
  if (fd < 0 || connect(fd, &name.any, name.size) != 0) fail("connect");
  return fd;
}

// Until there is a connection, also at a listener that spins.
int accept_one(int listener) {
  for (;;) {
    const int fd = accept(listener, nullptr, nullptr);
    if (fd >= 0) return fd;
    if (errno != EAGAIN && errno != EINTR) fail("accept");
  }
}

// What has arrived, blocking or spinning; 0: the peer has closed.
ssize_t read_some(int fd, char* buffer, std::size_t size) {
  ssize_t n;
  do n = read(fd, buffer, size);
  while (n < 0 && (errno == EAGAIN || errno == EINTR));
  return n;
}

// Whole messages, blocking or spinning. False: the peer has closed.
bool read_all(int fd, char* buffer, std::size_t size) {
  for (std::size_t have = 0; have < size;) {
    const ssize_t n = read(fd, buffer + have, size - have);
    if (n > 0)
      have += static_cast<std::size_t>(n);
    else if (n == 0)
      return false;
    else if (errno != EAGAIN && errno != EINTR)
      return errno == ECONNRESET ? false : (fail("read"), false);
  }
  return true;
}

bool write_all(int fd, const char* buffer, std::size_t size) {
  for (std::size_t done = 0; done < size;) {
    const ssize_t n = write(fd, buffer + done, size - done);
    if (n > 0)
      done += static_cast<std::size_t>(n);
    else if (errno == EPIPE || errno == ECONNRESET)
      return false;
    else if (errno != EAGAIN && errno != EINTR)
      fail("write");
  }
  return true;
}

double nanoseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

/// The child goes on with the connection; its parent, which has brought it up, only waits for it.
void serve_in_child(int fd) {
  const pid_t child = fork();
  if (child < 0) fail("fork");
  if (child == 0) return;
  close(fd);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  std::exit(0);
}

void pingpong_server(const Arguments& a) {
  const int fd = accept_one(listen_at(a));
  tune(fd, a.spin);
  if (a.fork) serve_in_child(fd);
  std::vector<char> buffer(a.size);
  const auto echo = [&] { return read_all(fd, buffer.data(), a.size) && write_all(fd, buffer.data(), a.size); };
  if (a.mark) {
    for (int i = 0; i < 100; i++) echo();
    access("/netbench-begin", F_OK);
    for (long i = 0; i < a.count && echo(); i++) {
    }
    access("/netbench-end", F_OK);
  }
  while (echo()) {
  }
}

void marked_client(const Arguments& a, int fd) {
  std::vector<char> buffer(a.size, 'x');
  const auto ask = [&] {
    if (!write_all(fd, buffer.data(), a.size) || !read_all(fd, buffer.data(), a.size)) fail("the peer went away");
  };
  for (int i = 0; i < 100; i++) ask();
  access("/netbench-begin", F_OK);
  for (long i = 0; i < a.count; i++) ask();
  access("/netbench-end", F_OK);
  std::printf("{\"count\": %ld}\n", a.count);
}

// What a reading of the clock adds to a time that is measured with it.
double reading_costs() {
  std::vector<double> times(1001);
  for (double& time : times) time = nanoseconds_since(Clock::now());
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void pingpong_client(const Arguments& a) {
  const double reading = reading_costs();
  const int fd = connect_to(a);
  tune(fd, a.spin);
  if (a.mark) return marked_client(a, fd);
  std::vector<char> buffer(a.size, 'x');
  std::vector<double> times;
  times.reserve(static_cast<std::size_t>(a.count));
  const long warm_up = std::min(a.count / 10, 10000L);
  for (long i = -warm_up; i < a.count; i++) {
    const auto start = Clock::now();
    if (!write_all(fd, buffer.data(), a.size) || !read_all(fd, buffer.data(), a.size)) fail("the peer went away");
    if (i >= 0) times.push_back(nanoseconds_since(start) - reading);
  }
  std::sort(times.begin(), times.end());
  const auto at = [&](double q) { return times[static_cast<std::size_t>(q * static_cast<double>(times.size() - 1))]; };
  std::printf("{\"p50_ns\": %.0f, \"p99_ns\": %.0f, \"p999_ns\": %.0f, \"min_ns\": %.0f, \"bytes\": %.0f}\n", at(.5),
              at(.99), at(.999), times.front(), 2.0 * static_cast<double>(a.size * times.size()));
}

void stream_server(const Arguments& a) {
  const int fd = accept_one(listen_at(a));
  if (a.spin) tune(fd, true);
  std::vector<char> buffer(a.size);
  while (read_some(fd, buffer.data(), buffer.size()) > 0) {
  }
  shutdown(fd, SHUT_WR);
}

void stream_client(const Arguments& a) {
  const int fd = connect_to(a);
  if (a.spin) tune(fd, true);
  std::vector<char> buffer(a.size, 'x');
  const std::size_t writes = std::max<std::size_t>(1, (std::size_t{64} << 10) / a.size);  // for one look at the clock
  const auto start = Clock::now();
  double bytes = 0;
  while (nanoseconds_since(start) < a.seconds * 1e9) {
    for (std::size_t i = 0; i < writes; i++)
      if (!write_all(fd, buffer.data(), a.size)) fail("the peer went away");
    bytes += static_cast<double>(writes * a.size);
  }
  shutdown(fd, SHUT_WR);
  char last = 0;
  while (read_some(fd, &last, 1) > 0) {  // the server ends its side when it has everything
  }
  std::printf("{\"gbit_per_s\": %.3f, \"bytes\": %.0f}\n", bytes * 8 / nanoseconds_since(start), bytes);
}

void connect_server(const Arguments& a) {
  const int listener = listen_at(a);
  if (a.spin) tune(listener, true);
  for (long i = 0; i < a.count; i++) {
    const int fd = accept_one(listener);
    if (a.spin) tune(fd, true);
    char byte = 0;
    if (read_some(fd, &byte, 1) == 1) (void)!write(fd, &byte, 1);
    close(fd);
  }
}

void connect_client(const Arguments& a) {
  const auto start = Clock::now();
  for (long i = 0; i < a.count; i++) {
    const int fd = connect_to(a);
    if (a.spin) tune(fd, true);
    char byte = 'x';
    if (write(fd, &byte, 1) != 1 || read_some(fd, &byte, 1) != 1) fail("transaction");
    close(fd);
  }
  std::printf("{\"connections_per_s\": %.0f}\n", static_cast<double>(a.count) * 1e9 / nanoseconds_since(start));
}

std::vector<int> accept_all(const Arguments& a) {
  const int listener = listen_at(a);
  std::vector<int> all;
  for (long i = 0; i < a.count; i++) all.push_back(accept_one(listener));
  say("connected");
  return all;
}

std::vector<int> connect_all(const Arguments& a) {
  std::vector<int> all;
  for (long i = 0; i < a.count; i++) all.push_back(connect_to(a));
  say("connected");
  return all;
}

void idle_server(const Arguments& a) {
  accept_all(a);
  wait_for_end_of_input();
}

void idle_client(const Arguments& a) {
  connect_all(a);
  wait_for_end_of_input();
}

// Answers on every connection until one ends.
void many_server(const Arguments& a) {
  const int set = epoll_create1(0);
  for (const int fd : accept_all(a)) {
    tune(fd, a.spin);
    epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
    if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) != 0) fail("epoll_ctl");
  }
  std::vector<char> buffer(a.size);
  for (;;) {
    epoll_event events[128];
    const int n = epoll_wait(set, events, 128, -1);
    if (n < 0 && errno != EINTR) fail("epoll_wait");
    for (int i = 0; i < n; i++) {
      const int fd = events[i].data.fd;
      if (!read_all(fd, buffer.data(), a.size) || !write_all(fd, buffer.data(), a.size)) return;
    }
  }
}

double ask_in_turn(const Arguments& a, const std::vector<int>& all) {
  const std::size_t window = std::min<std::size_t>(all.size(), 64);
  std::vector<char> buffer(a.size, 'x');
  const auto start = Clock::now();
  std::size_t next = 0;
  double messages = 0;
  while (nanoseconds_since(start) < a.seconds * 1e9) {
    for (std::size_t i = 0; i < window; i++)
      if (!write_all(all[(next + i) % all.size()], buffer.data(), a.size)) fail("the peer went away");
    for (std::size_t i = 0; i < window; i++)
      if (!read_all(all[(next + i) % all.size()], buffer.data(), a.size)) fail("the peer went away");
    next = (next + window) % all.size();
    messages += static_cast<double>(window);
  }
  return messages * 1e9 / nanoseconds_since(start);
}

void many_client(const Arguments& a) {
  const std::vector<int> all = connect_all(a);
  for (const int fd : all) tune(fd, a.spin);
  while (read_input()) {
    std::printf("{\"answers_per_s\": %.0f}\n", ask_in_turn(a, all));
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments a = parse(argc, argv);
  pin(a.cpu);
  const struct {
    std::string_view mode;
    void (*server)(const Arguments&);
    void (*client)(const Arguments&);
  } modes[] = {{"pingpong", pingpong_server, pingpong_client},
               {"stream", stream_server, stream_client},
               {"connect", connect_server, connect_client},
               {"idle", idle_server, idle_client},
               {"many", many_server, many_client}};
  for (const auto& m : modes) {
    if (m.mode != a.mode) continue;
    if (a.role != "server" && a.role != "client") usage();
    (a.role == "server" ? m.server : m.client)(a);
    std::fflush(stdout);
    if (a.stay) wait_for_end_of_input();
    return 0;
  }
  usage();
}
