// The CRC-32 of Ethernet, as fast as the processor allows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace bypass::rdma {

/// Extends the reflected CRC-32 (polynomial 0xEDB88320) by more bytes, without its final inversion. It begins with
/// kCrcStart.
inline constexpr std::uint32_t kCrcStart = 0xffffffff;
[[nodiscard]] std::uint32_t crc32_update(std::uint32_t crc, const void* bytes, std::size_t len);

/// The units that a processor may have; all give the same results.
enum class CrcUnit : std::uint8_t {
  kTable,        // any processor
  kFolding,      // x86: carry-less multiplication of 16 bytes (PCLMULQDQ)
  kPairFolding,  // x86: of 32 bytes (VPCLMULQDQ on 256 bits)
  kWideFolding,  // x86: of 64 bytes (VPCLMULQDQ on 512 bits)
};
[[nodiscard]] bool has_crc_unit(CrcUnit unit);
/// The same by that unit, which the processor must have.
[[nodiscard]] std::uint32_t crc32_update(CrcUnit unit, std::uint32_t crc, const void* bytes, std::size_t len);

}  // namespace bypass::rdma
