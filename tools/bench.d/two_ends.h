// What benchmarks of two processes share: their roles, the TCP connection over which they find each other on this
// machine, and how a latency is told.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bypass::bench {

struct EndOptions {
  std::string role, mode = "latency";
  std::uint16_t listen = 18515;
  std::uint32_t size = 64;
  std::uint64_t count = 100'000;
  int cpu = -1;
  [[nodiscard]] bool client() const { return role == "client"; }
  /// A role, a mode and a size that there are.
  [[nodiscard]] bool good() const;
};

/// With the program's name in front.
[[noreturn]] void die(const std::string& what);
/// With errno's meaning behind it.
[[noreturn]] void die_of_errno(std::string_view what);
inline void need(bool good, std::string_view what) {
  if (!good) die_of_errno(what);
}

/// What take() does not know ends the program with `usage`.
template <typename Options, typename Take>
void read_options(int argc, char** argv, Options& options, const char* usage, Take&& take);
/// --role --mode --listen --size --count --cpu. False: it is another one.
bool take_option(EndOptions& options, std::string_view name, const std::string& value);
[[noreturn]] void explain(const char* usage);

/// The server says "ready", and waits for the client. Connected sockets, as many as wanted, in the same order at both.
std::vector<int> meet(const EndOptions& options, int count = 1);
/// This thread; the device's own stay on every core.
void pin(int cpu);

/// min, p50 and p99 in nanoseconds, as members of a JSON object. Sorts them.
std::string percentiles(std::vector<double>& us);
/// Likewise gbit_per_s and messages_per_s.
std::string rates(const EndOptions& options, double seconds);

template <typename Options, typename Take>
void read_options(int argc, char** argv, Options& options, const char* usage, Take&& take) {
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 == argc) explain(usage);
    const std::string_view name = argv[i];
    const std::string value = argv[i + 1];
    if (!take_option(options, name, value) && !take(name, value)) explain(usage);
  }
}

}  // namespace bypass::bench
