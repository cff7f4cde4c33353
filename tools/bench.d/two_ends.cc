#include "two_ends.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace bypass::bench {

bool EndOptions::good() const {
  return (role == "server" || role == "client") && (mode == "latency" || mode == "bandwidth") && size != 0;
}

void die(const std::string& what) {
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, what.c_str());
  std::exit(1);
}

void die_of_errno(std::string_view what) {
  die(std::string(what) + ": " + std::strerror(errno));
}

void explain(const char* usage) {
  std::fprintf(stderr, "%s\n", usage);
  std::exit(2);
}

bool take_option(EndOptions& options, std::string_view name, const std::string& value) {
  if (name == "--role")
    options.role = value;
  else if (name == "--mode")
    options.mode = value;
  else if (name == "--listen")
    options.listen = static_cast<std::uint16_t>(std::stoul(value));
  else if (name == "--size")
    options.size = static_cast<std::uint32_t>(std::stoul(value));
  else if (name == "--count")
    options.count = std::stoull(value);
  else if (name == "--cpu")
    options.cpu = std::stoi(value);
  else
    return false;
  return true;
}

std::vector<int> meet(const EndOptions& options, int count) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(options.listen);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const auto* const where = reinterpret_cast<const sockaddr*>(&address);
  std::vector<int> met;
  for (int i = 0; i < count && options.client(); i++) {
    met.push_back(socket(AF_INET, SOCK_STREAM, 0));
    need(connect(met.back(), where, sizeof address) == 0, "connecting to the server");
  }
  if (options.client()) return met;
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  need(bind(fd, where, sizeof address) == 0 && listen(fd, count) == 0, "listening");
  std::puts("ready");
  std::fflush(stdout);
  for (int i = 0; i < count; i++) {
    met.push_back(accept(fd, nullptr, nullptr));
    need(met.back() >= 0, "accepting");
  }
  close(fd);
  return met;
}

void pin(int cpu) {
  if (cpu < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  need(sched_setaffinity(0, sizeof set, &set) == 0, "that core");
}

std::string percentiles(std::vector<double>& us) {
  std::sort(us.begin(), us.end());
  const auto at = [&](double q) { return us[static_cast<std::size_t>(q * static_cast<double>(us.size() - 1))] * 1e3; };
  char text[128];
  std::snprintf(text, sizeof text, "\"min_ns\":%.0f,\"p50_ns\":%.0f,\"p99_ns\":%.0f", at(0), at(0.5), at(0.99));
  return text;
}

std::string rates(const EndOptions& options, double seconds) {
  const auto count = static_cast<double>(options.count);
  char text[128];
  std::snprintf(text, sizeof text, "\"gbit_per_s\":%.5f,\"messages_per_s\":%.0f", count * options.size * 8e-9 / seconds,
                count / seconds);
  return text;
}

}  // namespace bypass::bench
