// endings ADDRESS: one end of a TCP connection, told what to do by lines on its standard input, one answer a line: see
// endings.py. ADDRESS is where the other end, or this one, listens. Every transfer is non-blocking but those of `ping`
// and `pong`.
//
// The bytes of a direction follow a pattern by their offset, so the reader knows whether each is the next one. Urgent
// bytes are outside of it.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr unsigned char kUrgent = 0xff;

int listener = -1, connection = -1;
unsigned long written = 0, was_read = 0;  // offsets of the two directions
bool in_order = true;

unsigned char pattern(unsigned long at) {
  return static_cast<unsigned char>((at * 31 + at / 251) % 255);
}

void answer(std::string_view text) {
  std::printf("%.*s\n", static_cast<int>(text.size()), text.data());
}

std::string result(long r) {
  return r < 0 ? strerrorname_np(errno) : std::to_string(r);
}

in_addr where{};

sockaddr_in address_of(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr = where;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return address;
}

void began() {
  written = was_read = 0;
  in_order = true;
}

std::string do_listen() {
  listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = address_of(0);
  socklen_t length = sizeof address;
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 || listen(listener, 8) != 0)
    return "failed";
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  return std::to_string(ntohs(address.sin_port));
}

std::string do_connect(int port) {
  const sockaddr_in address = address_of(port);
  connection = socket(AF_INET, SOCK_STREAM, 0);
  began();
  return result(connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof address));
}

std::string do_accept() {
  connection = accept(listener, nullptr, nullptr);
  began();
  return connection < 0 ? result(-1) : "0";
}

std::string do_send(std::size_t bytes, int flags) {
  std::vector<unsigned char> data(bytes);
  for (std::size_t i = 0; i < bytes; i++) data[i] = pattern(written + i);
  const long r = send(connection, data.data(), bytes, MSG_NOSIGNAL | flags);
  if (r > 0) written += static_cast<unsigned long>(r);
  return result(r);
}

std::string do_urgent() {
  return result(send(connection, &kUrgent, 1, MSG_NOSIGNAL | MSG_DONTWAIT | MSG_OOB));
}

void check_order(const std::vector<unsigned char>& data, long count, unsigned long at) {
  for (long i = 0; i < count; i++) {
    const unsigned char byte = data[static_cast<std::size_t>(i)];
    if (byte == kUrgent) continue;
    in_order = in_order && byte == pattern(at++);
  }
}

long take(std::size_t bytes, int flags) {
  std::vector<unsigned char> data(bytes);
  const long r = recv(connection, data.data(), bytes, flags);
  check_order(data, r, was_read);
  if (r <= 0 || (flags & MSG_PEEK) != 0) return r;
  for (long i = 0; i < r; i++) was_read += data[static_cast<std::size_t>(i)] != kUrgent ? 1 : 0;
  return r;
}

std::string do_poll(int milliseconds) {
  pollfd one{connection, POLLIN | POLLOUT | POLLRDHUP | POLLPRI, 0};
  poll(&one, 1, milliseconds);
  std::string bits;
  const auto add = [&](short bit, const char* name) {
    if ((one.revents & bit) != 0) bits += (bits.empty() ? "" : "|") + std::string(name);
  };
  add(POLLIN, "IN");
  add(POLLOUT, "OUT");
  add(POLLPRI, "PRI");
  add(POLLRDHUP, "RDHUP");
  add(POLLHUP, "HUP");
  add(POLLERR, "ERR");
  return bits.empty() ? "none" : bits;
}

// All there is, until the end, an error, or nothing more for so long: what ended it, and the bytes read so far in all.
std::string do_drain(int milliseconds) {
  std::string end = "open";
  for (;;) {
    const long r = take(65536, MSG_DONTWAIT);
    if (r > 0) continue;
    pollfd one{connection, POLLIN, 0};
    if (r < 0 && errno == EAGAIN && poll(&one, 1, milliseconds) > 0) continue;
    if (r == 0) end = "end";
    if (r < 0 && errno != EAGAIN) end = result(r);
    break;
  }
  return end + " " + std::to_string(was_read) + (in_order ? "" : " out of order");
}

// Until so many of the peer's bytes have come, read or not; a second at most.
std::string do_await(unsigned long count) {
  int there = 0;
  for (int i = 0; i < 1000; i++) {
    if (ioctl(connection, FIONREAD, &there) == 0 && was_read + static_cast<unsigned long>(there) >= count) break;
    poll(nullptr, 0, 1);
  }
  return "0";
}

// Until the peer's end, or a reset, has come; three seconds at most.
std::string do_await_end() {
  pollfd one{connection, POLLRDHUP, 0};
  return poll(&one, 1, 3000) == 1 ? "come" : "none";
}

std::string do_ping(int count) {
  for (int i = 0; i < count; i++) {
    if (do_send(1, 0) != "1" || take(1, 0) != 1) return "failed";
  }
  return "0";
}

std::string do_pong(int count) {
  for (int i = 0; i < count; i++) {
    if (take(1, 0) != 1 || do_send(1, 0) != "1") return "failed";
  }
  return "0";
}

std::string do_option(std::string_view name, int value) {
  if (name == "linger") {
    const struct linger how { .l_onoff = 1, .l_linger = value };
    return result(setsockopt(connection, SOL_SOCKET, SO_LINGER, &how, sizeof how));
  }
  const int option = name == "cork" ? TCP_CORK : name == "quickack" ? TCP_QUICKACK : TCP_NODELAY;
  return result(setsockopt(connection, IPPROTO_TCP, option, &value, sizeof value));
}

std::string do_error() {
  int error = 0;
  socklen_t bytes = sizeof error;
  getsockopt(connection, SOL_SOCKET, SO_ERROR, &error, &bytes);
  return error == 0 ? "0" : strerrorname_np(error);
}

std::string do_close() {
  if (connection < 0) return "0";
  const int closing = connection;
  connection = -1;
  return result(close(closing));
}

std::string do_unlisten() {
  if (listener >= 0) close(listener);
  listener = -1;
  return "0";
}

// exit_group() past every library.
[[noreturn]] void leave_at_once() {
  for (;;) asm volatile("syscall" : : "a"(SYS_exit_group), "D"(0) : "rcx", "r11", "memory");
}

std::string perform(std::string_view word, int number, std::string_view name) {
  if (word == "listen") return do_listen();
  if (word == "connect") return do_connect(number);
  if (word == "accept") return do_accept();
  if (word == "send") return do_send(static_cast<std::size_t>(number), MSG_DONTWAIT);
  if (word == "urgent") return do_urgent();
  if (word == "recv") return result(take(static_cast<std::size_t>(number), MSG_DONTWAIT));
  if (word == "peek") return result(take(static_cast<std::size_t>(number), MSG_DONTWAIT | MSG_PEEK));
  if (word == "poll") return do_poll(number);
  if (word == "drain") return do_drain(number);
  if (word == "written") return std::to_string(written);
  if (word == "await") return do_await(static_cast<unsigned long>(number));
  if (word == "await_end") return do_await_end();
  if (word == "ping") return do_ping(number);
  if (word == "pong") return do_pong(number);
  if (word == "option") return do_option(name, number);
  if (word == "error") return do_error();
  if (word == "shutdown") return result(shutdown(connection, number));
  if (word == "close") return do_close();
  if (word == "unlisten") return do_unlisten();
  if (word == "exit") std::exit(0);
  if (word == "_exit") _exit(0);
  if (word == "exit_group") leave_at_once();
  return "what?";
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2 || inet_aton(arguments[1], &where) == 0) return 2;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  char line[128], word[32], name[32];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    int number = 0;
    name[0] = 0;
    if (std::sscanf(line, "%31s %d %31s", word, &number, name) < 1) continue;
    answer(perform(word, number, name));
  }
}
