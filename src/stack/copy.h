// copy_bytes: memcpy for payload.
#pragma once

#include <cstddef>
#include <cstring>

namespace bypass {

/// In pieces that libc copies with vector registers. From some KiB on it takes `rep movsb`, which on AMD's Zen moves 3
/// bytes a nanosecond instead of 50 where the destination lies a few bytes above the source modulo 4096: as a large
/// buffer of malloc()'s, 16 bytes into its page, does above a ring. The pieces are as fast where it does not.
inline void copy_bytes(void* to, const void* from, std::size_t bytes) {
  std::size_t piece = 1024;
  asm("" : "+r"(piece));  // of a length that the compiler knows it makes a string instruction itself
  auto* out = static_cast<std::byte*>(to);
  const auto* in = static_cast<const std::byte*>(from);
  for (; bytes > piece; bytes -= piece, out += piece, in += piece) std::memcpy(out, in, piece);
  std::memcpy(out, in, bytes);
}

}  // namespace bypass
