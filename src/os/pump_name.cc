#include "os/pump_name.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

namespace bypass::socket {

namespace {

constexpr char kPrefix[] = "bypass-pump ";  // behind the zero that makes a name abstract
constexpr std::size_t kPrefixBytes = sizeof kPrefix - 1;
constexpr char kDigits[] = "0123456789abcdef";

/// The fields behind the prefix, in hexadecimal digits so that they can be read in /proc/net/unix.
struct Packed {
  std::uint64_t serial;
  std::array<std::uint8_t, 16> local, remote;
  std::uint16_t local_port, remote_port;
  std::uint8_t domain, end, error;
};
constexpr std::size_t kPackedBytes = 8 + 16 + 16 + 2 + 2 + 1 + 1 + 1;  // without the struct's padding
constexpr std::size_t kNameBytes = 1 + kPrefixBytes + 2 * kPackedBytes;
static_assert(kNameBytes <= sizeof(sockaddr_un::sun_path));
static_assert(offsetof(Packed, error) + 1 == kPackedBytes);

static_assert(kPumpNameLength == offsetof(sockaddr_un, sun_path) + kNameBytes);

int value_of(char digit) {
  const char* const at = static_cast<const char*>(std::memchr(kDigits, digit, 16));
  return at == nullptr ? -1 : static_cast<int>(at - kDigits);
}

}  // namespace

socklen_t write_pump_name(const PumpName& name, sockaddr_un& out) {
  const Packed packed{name.serial,
                      name.local.address.bytes,
                      name.remote.address.bytes,
                      name.local.port,
                      name.remote.port,
                      name.domain,
                      static_cast<std::uint8_t>(name.end),
                      name.error};
  std::array<std::uint8_t, kPackedBytes> bytes;
  std::memcpy(bytes.data(), &packed, bytes.size());
  out = {};
  out.sun_family = AF_UNIX;
  char* at = std::copy_n(kPrefix, kPrefixBytes, out.sun_path + 1);
  for (const std::uint8_t byte : bytes) {
    *at++ = kDigits[byte >> 4];
    *at++ = kDigits[byte & 15];
  }
  return kPumpNameLength;
}

std::optional<PumpName> read_pump_name(const sockaddr_un& name, socklen_t length) {
  if (length != kPumpNameLength || name.sun_family != AF_UNIX || name.sun_path[0] != 0) return std::nullopt;
  if (std::memcmp(name.sun_path + 1, kPrefix, kPrefixBytes) != 0) return std::nullopt;
  std::array<std::uint8_t, kPackedBytes> bytes;
  const char* at = name.sun_path + 1 + kPrefixBytes;
  for (std::uint8_t& byte : bytes) {
    const int high = value_of(*at++), low = value_of(*at++);
    if (high < 0 || low < 0) return std::nullopt;
    byte = static_cast<std::uint8_t>(high << 4 | low);
  }
  Packed packed{};
  std::memcpy(&packed, bytes.data(), bytes.size());
  if (packed.domain != AF_INET && packed.domain != AF_INET6) return std::nullopt;
  if (packed.end > static_cast<std::uint8_t>(PumpName::End::kListener)) return std::nullopt;
  return PumpName{packed.domain,
                  {{packed.local}, packed.local_port},
                  {{packed.remote}, packed.remote_port},
                  static_cast<PumpName::End>(packed.end),
                  packed.serial,
                  packed.error};
}

bool are_ends(const PumpName& programs, const PumpName& pumps) {
  PumpName other = programs;
  other.end = PumpName::End::kPumps;
  return programs.end == PumpName::End::kPrograms && other == pumps;
}

int connect_error(const PumpName& programs, const PumpName& other) {
  const bool failed = programs.end == PumpName::End::kPrograms && other.end == PumpName::End::kFailed;
  return failed && programs.serial == other.serial ? other.error : 0;
}

}  // namespace bypass::socket
