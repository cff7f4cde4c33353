// HMAC-SHA-256 (FIPS 180-4, RFC 2104) for the handshake's magic and a link's proof. It hashes a few hundred bytes for
// each connection, so the code is short rather than fast.
// Tests: tests/fastpath/control_test.cc.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace bypass::fastpath {

using Digest = std::array<std::byte, 32>;

[[nodiscard]] Digest sha256(std::span<const std::byte> text);
[[nodiscard]] Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> text);

}  // namespace bypass::fastpath
