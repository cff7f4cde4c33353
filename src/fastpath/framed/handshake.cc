#include "fastpath/framed/handshake.h"

#include "fastpath/framed/wire.h"
#include "fastpath/setup/sha256.h"

namespace bypass::fastpath {
namespace {

constexpr std::size_t kBody = kSynOptionBytes - 2, kAnswerBody = kSynAckOptionBytes - 2;
constexpr std::uint8_t kR = 0x08, kF = 0x04;

// Without a shared secret the key is this public text.
constexpr char kNoSecret[] = "libbypass framed stream";

}  // namespace

std::size_t write_syn_option(std::span<std::byte> room, const SynOption& option) {
  const std::size_t length = option.response ? kSynAckOptionBytes : kSynOptionBytes;
  if (room.size() < length) return 0;
  const auto flags =
      static_cast<std::uint8_t>(option.version << 4 | (option.response ? kR : 0) | (option.framed ? kF : 0));
  room[0] = std::byte{kOptionKind};
  room[1] = std::byte{static_cast<std::uint8_t>(length)};
  put32(room.data() + 2, kExId);
  room[6] = std::byte{flags};
  room[7] = std::byte{option.capabilities};
  put32(room.data() + 8, option.tag);
  if (option.response) put32(room.data() + 12, option.proof);
  return length;
}

std::optional<SynOption> parse_syn_option(std::span<const std::byte> body) {
  const bool answer = body.size() == kAnswerBody;
  if ((!answer && body.size() != kBody) || get32(body.data()) != kExId) return std::nullopt;
  const auto flags = std::to_integer<std::uint8_t>(body[4]);
  if (flags >> 4 == 0 || answer != ((flags & kR) != 0)) return std::nullopt;
  return SynOption{.version = static_cast<std::uint8_t>(flags >> 4),
                   .response = (flags & kR) != 0,
                   .framed = (flags & kF) != 0,
                   .capabilities = std::to_integer<std::uint8_t>(body[5]),
                   .tag = get32(body.data() + 6),
                   .proof = answer ? get32(body.data() + 10) : 0};
}

std::uint32_t answer_proof(std::uint32_t client_tag, std::uint32_t server_tag, std::span<const std::byte> secret) {
  return get32(magic(client_tag, server_tag, Role::kAnswer, secret).data());
}

Magic magic(std::uint32_t client_tag, std::uint32_t server_tag, Role role, std::span<const std::byte> secret) {
  std::array<std::byte, 9> text;
  put32(text.data(), client_tag);
  put32(text.data() + 4, server_tag);
  text[8] = std::byte{static_cast<std::uint8_t>(role)};
  if (secret.empty()) secret = std::as_bytes(std::span(kNoSecret));
  const Digest digest = hmac_sha256(secret, text);
  Magic out;
  std::copy_n(digest.begin(), out.size(), out.begin());
  return out;
}

Framing Sniffer::look(Instant now, std::span<const std::byte> first) {
  if (framing_ != Framing::kUnknown || first.empty()) return framing_;
  const std::size_t n = std::min(first.size(), magic_.size());
  if (!std::equal(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(n), magic_.begin())) {
    framing_ = Framing::kPlain;
  } else if (n == magic_.size()) {
    framing_ = Framing::kFramed;
  } else if (n >= kEnough) {
    deadline_ = kNever;
  } else if (deadline_ == kNever) {
    deadline_ = now + kPatience;
  }
  return framing_;
}

}  // namespace bypass::fastpath
