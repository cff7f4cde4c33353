#include "runtime/links/place_number.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <span>

#include "fastpath/link/links_config.h"
#include "fastpath/setup/sha256.h"
#include "os/os.h"

namespace bypass::runtime {
namespace {

using fastpath::LinksConfig;

/// Bits of a hash, which does not reveal its input: other software uses boot_id as the host's identity.
std::uint32_t hash_bits(std::span<const std::byte> bytes, unsigned bits) {
  const auto hash = fastpath::sha256(bytes);
  std::uint32_t value = 0;
  std::memcpy(&value, hash.data(), sizeof value);
  return value >> (32 - bits);
}

}  // namespace

std::uint32_t place_number(int folder) {
  const long fd = os::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  std::array<std::byte, 64> boot{};
  const long got = os::read(static_cast<int>(fd), boot.data(), boot.size());
  os::close(static_cast<int>(fd));
  struct stat about {};
  if (got <= 0 || fstat(folder, &about) != 0) return 0;
  const std::array<std::uint64_t, 3> directory{about.st_dev, about.st_ino, geteuid()};
  constexpr unsigned kDirectoryBits = LinksConfig::kPlaceBits - LinksConfig::kHostBits;
  const std::uint32_t host = hash_bits(std::span(boot).first(static_cast<std::size_t>(got)), LinksConfig::kHostBits);
  const std::uint32_t number = host << kDirectoryBits | hash_bits(std::as_bytes(std::span(directory)), kDirectoryBits);
  return number != 0 ? number : 1;
}

}  // namespace bypass::runtime
