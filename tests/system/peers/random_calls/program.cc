// Random sequences of socket calls by several threads and processes. On the kernel's sockets the program writes down
// what came of each call; under the library it compares.
//
//   random_calls write   IN OUT SERVER CLIENT LENGTH FIRST COUNT [STEPS]   the server's process: results to standard
//   output random_calls compare IN OUT SERVER CLIENT LENGTH FIRST COUNT [STEPS]   the same: expected results from
//   standard input random_calls client  IN OUT SERVER CLIENT LENGTH                       the client's process
//
// IN and OUT: descriptors of the pipes between both processes. STEPS: indexes with commas between; the other steps are
// left out. Before each call the comparing process waits until poll() and FIONREAD say of all descriptors what they
// said in the kernel's run, because bytes and ends arrive later there.
#include <arpa/inet.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "director.h"

namespace {

using namespace random_calls;

std::uint32_t address(const char* text) {
  in_addr parsed{};
  if (inet_pton(AF_INET, text, &parsed) == 1) return parsed.s_addr;
  fprintf(stderr, "random_calls: '%s' is not an IPv4 address\n", text);
  exit(2);
}

/// Apart from the descriptors of the calls.
int high(int fd) {
  const int moved = fcntl(fd, F_DUPFD, 500);
  close(fd);
  return moved;
}

int number(const char* text) {
  return static_cast<int>(strtol(text, nullptr, 10));
}

std::set<unsigned> indexes(const char* text) {
  std::set<unsigned> found;
  char* next = nullptr;
  for (; *text != '\0'; text = *next == ',' ? next + 1 : next)
    found.insert(static_cast<unsigned>(strtoul(text, &next, 10)));
  return found;
}

}  // namespace

int main(int count, char** words) {
  if (count < 7) {
    fprintf(stderr, "usage: random_calls write|compare|client|child IN OUT SERVER CLIENT LENGTH ...\n");
    return 2;
  }
  count_broken_pipes();
  const std::string role = words[1];
  const bool keeps = role == "child";  // they are high already
  const Served served{keeps ? number(words[2]) : high(number(words[2])),
                      keeps ? number(words[3]) : high(number(words[3])),
                      static_cast<unsigned>(number(words[6])),
                      {address(words[4]), address(words[5])},
                      {words[4], words[5]}};
  Caller caller(served.addresses);
  if (role == "client") serve(served, caller, 0, false);
  if (role == "child" && count == 9) {
    const std::uint64_t seed = strtoull(words[7], nullptr, 10);
    caller.begin(seed);
    caller.shows_numbers = false;
    caller.is_child = true;
    char* at = words[8];
    const auto next_number = [&at] {
      const long found = strtol(at, &at, 10);
      at += *at == ',' ? 1 : 0;
      return static_cast<int>(found);
    };
    caller.pass_end = next_number();
    for (int& fd : caller.slots) {
      fd = next_number();
      if (fcntl(fd, F_GETFD) < 0) fd = -1;  // exec has closed it
    }
    serve(served, caller, seed, true);
  }
  if ((role != "write" && role != "compare") || count < 9) return 2;
  Director director(served, role == "compare", count > 9 ? indexes(words[9]) : std::set<unsigned>{});
  const std::uint64_t first = strtoull(words[7], nullptr, 10), last = first + strtoull(words[8], nullptr, 10);
  for (std::uint64_t seed = first; seed < last; ++seed) director.run(seed);
  return director.differences() == 0 ? 0 : 1;
}
