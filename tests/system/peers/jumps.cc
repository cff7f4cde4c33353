// jumps server ADDRESS PORT: says "ready"; tells its first connection, by a byte each, how many others have ended.
// jumps client ADDRESS PORT ROUNDS: waits in every call that does, and leaves each by siglongjmp() out of a handler.
// Nothing of the call stays: what was closed after it ends, and another thread's connection goes on.
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string_view>
#include <thread>
#include <vector>

namespace {

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

sockaddr_in address_of(const char* address, const char* port) {
  sockaddr_in result{};
  result.sin_family = AF_INET;
  result.sin_port = htons(static_cast<std::uint16_t>(std::atoi(port)));
  if (inet_pton(AF_INET, address, &result.sin_addr) != 1) fail(address);
  return result;
}

int listen_at(const sockaddr_in& address) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fail("bind");
  if (listen(fd, 16) != 0) fail("listen");
  return fd;
}

int dial(const sockaddr_in& address) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fail("connect");
  return fd;
}

// --- the server ----------------------------------------------------------------------------------------------------

// One connection after the other: the next one's bytes wait meanwhile. Byte by byte it echoes what comes in a piece of
// one byte.
void serve_one(int fd) {
  std::vector<char> bytes(1 << 16);
  for (ssize_t got = 0; (got = read(fd, bytes.data(), bytes.size())) > 0;)
    if (got == 1 && write(fd, bytes.data(), 1) != 1) break;
  close(fd);
}

int serve(const sockaddr_in& address) {
  const int listener = listen_at(address);
  std::puts("ready");
  std::fflush(stdout);
  const int control = accept(listener, nullptr, nullptr);
  std::thread(serve_one, accept(listener, nullptr, nullptr)).detach();  // the other thread's
  for (;;) {
    std::array<pollfd, 2> set{{{control, POLLIN, 0}, {listener, POLLIN, 0}}};
    if (poll(set.data(), set.size(), -1) < 0) fail("poll");
    if (set[0].revents != 0) return 0;
    if (set[1].revents == 0) continue;
    serve_one(accept(listener, nullptr, nullptr));
    if (write(control, "e", 1) != 1) fail("write to the control connection");
  }
}

// --- the client ----------------------------------------------------------------------------------------------------

sigjmp_buf home;
std::mt19937 random_numbers(7);

void jump(int) {
  siglongjmp(home, 1);
}

struct Sockets {
  int idle;      // nobody writes to it
  int deaf;      // nobody reads from it
  int listener;  // nobody connects to it
  int set;       // epoll's, of the idle one
};

void call_read(const Sockets& s) {
  char byte = 0;
  (void)!read(s.idle, &byte, 1);
}

void call_recvmsg(const Sockets& s) {
  char byte = 0;
  iovec part{&byte, 1};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  recvmsg(s.idle, &header, 0);
}

// Nothing is allocated within a call: the jump would leave the allocator locked.
std::array<char, 1 << 20> bytes_to_write;

void call_write(const Sockets& s) {
  while (write(s.deaf, bytes_to_write.data(), bytes_to_write.size()) > 0) {
  }
}

void call_poll(const Sockets& s) {
  std::array<pollfd, 3> set{{{s.idle, POLLIN, 0}, {s.listener, POLLIN, 0}, {s.deaf, POLLIN, 0}}};
  poll(set.data(), set.size(), -1);
}

void call_select(const Sockets& s) {
  fd_set set;
  FD_ZERO(&set);
  FD_SET(s.idle, &set);
  FD_SET(s.listener, &set);
  select(std::max(s.idle, s.listener) + 1, &set, nullptr, nullptr, nullptr);
}

void call_epoll_wait(const Sockets& s) {
  epoll_event event{};
  epoll_wait(s.set, &event, 1, -1);
}

void call_accept(const Sockets& s) {
  accept(s.listener, nullptr, nullptr);
}

constexpr std::array kCalls{call_read, call_recvmsg, call_write, call_poll, call_select, call_epoll_wait, call_accept};

// A handler that comes back, from the stack for handlers, and calls on top of the call that waits.
int waiting = -1;       // who handlers come back to
int handlers_left = 0;  // until the wait is over

void look_and_return(int) {
  if (--handlers_left == 0) shutdown(waiting, SHUT_RD);
  pollfd nothing{-1, POLLIN, 0};
  const int number = socket(AF_INET, SOCK_STREAM, 0);
  poll(&nothing, 1, 0);
  close(number);
}

// Out of the call by the handler, at some moment of its looks or of its sleep.
void leave(void (*call)(const Sockets&), const Sockets& sockets) {
  if (sigsetjmp(home, 1) != 0) return;
  const itimerval once{{}, {0, 1 + static_cast<suseconds_t>(random_numbers() % 2000)}};
  setitimer(ITIMER_REAL, &once, nullptr);
  for (;;) call(sockets);
}

// The call goes on after each handler, until one ends what it waits for.
void return_within(const Sockets& sockets, int flags) {
  struct sigaction action {};
  action.sa_handler = look_and_return;
  action.sa_flags = flags | SA_RESTART;
  sigaction(SIGALRM, &action, nullptr);
  waiting = sockets.idle;
  handlers_left = 5;
  const itimerval some{{0, 300}, {0, 300}};
  setitimer(ITIMER_REAL, &some, nullptr);
  char byte = 0;
  if (read(sockets.idle, &byte, 1) != 0) fail("a read that goes on");
  const itimerval none{};
  setitimer(ITIMER_REAL, &none, nullptr);
}

// From deeper down than the calls that were left.
[[gnu::noinline]] void close_below(int fd) {
  std::array<volatile char, 1024> deep{};
  deep[0] = 1;
  close(fd);
  deep[1] = 1;
}

void expect_end(int control) {
  char byte = 0;
  if (read(control, &byte, 1) != 1 || byte != 'e') fail("the control connection");
}

void round(int i, const sockaddr_in& server, int control) {
  sockaddr_in anywhere{};
  anywhere.sin_family = AF_INET;
  Sockets sockets{dial(server), dial(server), listen_at(anywhere), epoll_create1(0)};
  epoll_event event{EPOLLIN, {}};
  if (epoll_ctl(sockets.set, EPOLL_CTL_ADD, sockets.idle, &event) != 0) fail("epoll_ctl");
  struct sigaction action {};
  action.sa_handler = jump;
  action.sa_flags = (i % 2 != 0 ? SA_ONSTACK : 0) | (i % 4 < 2 ? SA_RESTART : 0);
  sigaction(SIGALRM, &action, nullptr);
  for (const auto call : kCalls) leave(call, sockets);
  for (int again = 0; again < 10; again++) leave(call_read, sockets);
  return_within(sockets, i % 2 != 0 ? SA_ONSTACK : 0);
  close_below(sockets.set);
  close_below(sockets.listener);
  close_below(sockets.idle);
  expect_end(control);
  close(sockets.deaf);
  expect_end(control);
}

std::atomic<bool> stop{false};

void exchange(int fd) {
  while (!stop) {
    char byte = 'x';
    if (write(fd, &byte, 1) != 1 || read(fd, &byte, 1) != 1 || byte != 'x') fail("the other thread's connection");
  }
  close(fd);
}

int ask(const sockaddr_in& server, int rounds) {
  std::vector<char> stack(1 << 16);
  const stack_t handlers{stack.data(), 0, stack.size()};
  if (sigaltstack(&handlers, nullptr) != 0) fail("sigaltstack");
  const int control = dial(server);
  const int other = dial(server);
  sigset_t alarm;
  sigemptyset(&alarm);
  sigaddset(&alarm, SIGALRM);
  pthread_sigmask(SIG_BLOCK, &alarm, nullptr);
  std::thread beside(exchange, other);
  pthread_sigmask(SIG_UNBLOCK, &alarm, nullptr);
  for (int i = 0; i < rounds; i++) round(i, server, control);
  stop = true;
  beside.join();
  std::printf("%d rounds\n", rounds);
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 4) return 2;
  const sockaddr_in address = address_of(arguments[2], arguments[3]);
  return std::string_view(arguments[1]) == "server" ? serve(address) : ask(address, std::atoi(arguments[4]));
}
