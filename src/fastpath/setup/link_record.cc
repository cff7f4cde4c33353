#include "fastpath/setup/link_record.h"

#include "fastpath/framed/wire.h"

namespace bypass::fastpath {
namespace {

// Where things lie in a body.
enum : std::size_t { kAtVersion = 0, kAtMover = 1, kAtReason = 2, kAtLink = 4 };
static_assert(kAtLink + 4 == kLinkHeadBytes);

}  // namespace

std::size_t encode(const LinkHead& head, std::span<std::byte> room) {
  room[kAtVersion] = std::byte{kLinkRecordVersion};
  room[kAtMover] = static_cast<std::byte>(head.mover);
  put16(&room[kAtReason], static_cast<std::uint16_t>(head.reason));
  put32(&room[kAtLink], head.link);
  return kLinkHeadBytes;
}

Reason decode(std::span<const std::byte> body, LinkHead& out) {
  if (body.size() < kLinkHeadBytes) return Reason::kLinkValue;
  const auto mover = std::to_integer<std::uint8_t>(body[kAtMover]);
  const std::uint16_t reason = get16(&body[kAtReason]);
  out.link = get32(&body[kAtLink]);
  if (body[kAtVersion] != std::byte{kLinkRecordVersion} || mover == 0 || mover > kMovers) return Reason::kLinkVersion;
  out.mover = static_cast<Mover>(mover);
  out.reason = reason <= static_cast<std::uint16_t>(kLastReason) ? static_cast<Reason>(reason) : Reason::kPolicy;
  return out.link == 0 ? Reason::kLinkValue : Reason::kNone;
}

Reason decode(std::span<const std::byte> body, Mover mover, LinkHead& out) {
  const Reason why = decode(body, out);
  return why == Reason::kNone && out.mover != mover ? Reason::kLinkVersion : why;
}

}  // namespace bypass::fastpath
