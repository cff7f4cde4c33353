// C++'s streams over sockets: std::cin, cout, cerr and clog, with stdio beneath and on their own, and libstdc++'s
// streams over a number.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <ext/stdio_filebuf.h>

#include <fstream>
#include <iostream>
#include <string>

namespace {

FILE* results;
int a, b;

void connect_both() {
  const char* address = std::getenv("TEST_ADDRESS");
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = address != nullptr ? inet_addr(address) : htonl(INADDR_LOOPBACK);
  auto* const name = reinterpret_cast<sockaddr*>(&where);
  socklen_t length = sizeof where;
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(listener, name, length) != 0 || listen(listener, 1) != 0) abort();
  getsockname(listener, name, &length);
  a = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(a, name, length) != 0) abort();
  b = accept(listener, nullptr, nullptr);
  close(listener);
}

// That many bytes, and what else is there by then.
void say_arrived(const char* what, ssize_t bytes) {
  std::fprintf(results, "%s <", what);
  char text[4096];
  for (pollfd p = {b, POLLIN, 0}; poll(&p, 1, bytes > 0 ? 5000 : 0) == 1;) {
    const ssize_t n = read(b, text, sizeof text);
    if (n <= 0) break;
    std::fwrite(text, 1, static_cast<size_t>(n), results);
    bytes -= n;
  }
  std::fprintf(results, ">\n");
  std::fflush(results);
}

void talk() {
  std::cout << "a number " << 42 << std::endl;
  std::cerr << "cerr\n";
  std::clog << "clog\n" << std::flush;
  std::wcout.flush();
  say_arrived("out", 22);
  const std::string question = "7 words in a line\nnext\n";
  if (write(b, question.data(), question.size()) < 0) return;
  int number = 0;
  std::string line, next;
  std::cin >> number;
  std::getline(std::cin, line);
  std::getline(std::cin, next);
  std::fprintf(results, "%d,%s,%s\n", number, line.c_str(), next.c_str());
  std::cout << "left to the end";
}

void over_a_number() {
  __gnu_cxx::stdio_filebuf<char> buffer(a, std::ios::in | std::ios::out);
  std::iostream stream(&buffer);
  stream << "by a number\n" << std::string(100000, 'x').size() << std::flush;
  say_arrived("filebuf", 18);
  if (write(b, "answer\n", 7) < 0) return;
  std::string line;
  std::getline(stream, line);
  std::fprintf(results, "%s %d\n", line.c_str(), buffer.fd() == a);
}

void run(const char* name, bool with_stdio, void (*body)()) {
  std::fprintf(results, "== %s\n", name);
  std::fflush(results);
  connect_both();
  if (fork() == 0) {
    if (body == talk) {
      std::ios::sync_with_stdio(with_stdio);
      for (int number = 0; number < 3; number++) dup2(a, number);
    }
    body();
    std::fflush(results);
    exit(0);
  }
  close(a);
  wait(nullptr);
  say_arrived("the rest", 1 << 20);
  close(b);
}

}  // namespace

int main() {
  results = fdopen(fcntl(1, F_DUPFD_CLOEXEC, 100), "w");
  run("with stdio", true, talk);
  run("without stdio", false, talk);
  run("over a number", false, over_a_number);
}
