// Integers of the control stream and the handshake: big-endian, at any address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "stack/address.h"

namespace bypass::fastpath {

inline void put16(std::byte* at, std::uint16_t v) {
  v = host_to_be16(v);
  std::memcpy(at, &v, sizeof v);
}
inline void put32(std::byte* at, std::uint32_t v) {
  v = host_to_be32(v);
  std::memcpy(at, &v, sizeof v);
}
inline void put64(std::byte* at, std::uint64_t v) {
  put32(at, static_cast<std::uint32_t>(v >> 32));
  put32(at + 4, static_cast<std::uint32_t>(v));
}
inline std::uint16_t get16(const std::byte* at) {
  std::uint16_t v;
  std::memcpy(&v, at, sizeof v);
  return be16_to_host(v);
}
inline std::uint32_t get32(const std::byte* at) {
  std::uint32_t v;
  std::memcpy(&v, at, sizeof v);
  return be32_to_host(v);
}
inline std::uint64_t get64(const std::byte* at) {
  return std::uint64_t{get32(at)} << 32 | get32(at + 4);
}

}  // namespace bypass::fastpath
