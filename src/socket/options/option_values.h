// Getters and setters from which the rows of the option tables are made: values as bytes, flags of the socket, members
// of tcp::Options.
// Tests: tests/socket/option_table_test.cc.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <type_traits>

#include "os/errno_map.h"
#include "socket/options/options.h"

namespace bypass::socket::option {

using Bytes = std::span<std::byte>;
using Value = std::span<const std::byte>;

// --- Values as bytes

inline long put(Bytes out, const void* value, std::size_t size) {
  const std::size_t n = std::min(out.size(), size);
  std::memcpy(out.data(), value, n);
  return static_cast<long>(n);
}
inline long put_int(Bytes out, long value) {
  const int v = static_cast<int>(value);
  return put(out, &v, sizeof v);
}
template <typename T>
bool read_as(Value value, T& out) {
  if (value.size() < sizeof out) return false;
  std::memcpy(&out, value.data(), sizeof out);
  return true;
}

/// A setter of an int: `Apply` is long(Guard&, Socket&, int).
template <auto Apply>
long set_int(Guard& guard, Socket& socket, Value value) {
  int v = 0;
  return read_as(value, v) ? Apply(guard, socket, v) : failure(Error::kInvalid);
}
template <auto Read>
long get_int(Socket& socket, Bytes out) {
  return put_int(out, Read(socket));
}

/// As ip(7)'s options (do_ip_setsockopt and do_ip_getsockopt of Linux): a single byte suffices, or nothing for 0.
template <auto Apply>
long set_ip_int(Guard& guard, Socket& socket, Value value) {
  int v = 0;
  if (value.size() < sizeof v) return Apply(guard, socket, value.empty() ? 0 : static_cast<int>(value[0]));
  return set_int<Apply>(guard, socket, value);
}
template <auto Read>
long get_ip_int(Socket& socket, Bytes out) {
  const long v = Read(socket);
  const bool in_a_byte = !out.empty() && out.size() < sizeof(int) && v >= 0 && v <= 255;
  return put_int(in_a_byte ? out.first(1) : out, v);
}

// --- Flags of the socket

template <std::uint32_t Flag>
inline constexpr auto read_flag = [](Socket& s) -> long { return s.has(Flag) ? 1 : 0; };
template <std::uint32_t Flag>
inline constexpr auto write_flag = [](Guard&, Socket& s, int v) -> long {
  s.set(Flag, v != 0);
  return 0;
};
template <auto Constant>
inline constexpr auto constant = [](Socket&) -> long { return Constant; };
inline constexpr auto accept_and_forget = [](Guard&, Socket&, int) -> long { return 0; };

// --- Members of tcp::Options

template <auto Member>
inline constexpr auto read_tcp = [](Socket& s) -> long { return static_cast<long>(tcp_options(s).*Member); };
template <auto Member, int Least, int Most>
inline constexpr auto write_tcp = [](Guard& g, Socket& s, int v) -> long {
  if (v < Least || v > Most) return failure(Error::kInvalid);
  tcp::Options options = tcp_options(s);
  options.*Member = static_cast<std::remove_reference_t<decltype(options.*Member)>>(v);
  set_tcp_options(g, s, options);
  return 0;
};
// For options where Linux takes the nearest possible value.
template <auto Member, int Least, int Most>
inline constexpr auto write_tcp_clamped =
    [](Guard& g, Socket& s, int v) -> long { return write_tcp<Member, Least, Most>(g, s, std::clamp(v, Least, Most)); };

// For options that are bits.
struct TcpFlag {
  bool (*read)(const tcp::Options&);
  void (*write)(tcp::Options&, bool);
};
template <const TcpFlag& Flag>
inline constexpr auto read_tcp_flag = [](Socket& s) -> long { return Flag.read(tcp_options(s)) ? 1 : 0; };
template <const TcpFlag& Flag>
inline constexpr auto write_tcp_flag = [](Guard& g, Socket& s, int v) -> long {
  tcp::Options options = tcp_options(s);
  Flag.write(options, v != 0);
  set_tcp_options(g, s, options);
  return 0;
};

using O = tcp::Options;

}  // namespace bypass::socket::option
