#include "fastpath/setup/rc_record.h"

#include <algorithm>
#include <cstring>

#include "fastpath/framed/wire.h"
#include "fastpath/link/link.h"

namespace bypass::fastpath {
namespace {

constexpr std::uint32_t kMost24 = 0xffffff;
constexpr std::uint32_t kLeastQpn = 2;  // 0 and 1 are the subnet manager's and the general services'

// Where things lie in a body.
enum : std::size_t {
  kAtGid = kLinkHeadBytes,
  kAtQpn = kAtGid + 16,
  kAtPsn = kAtQpn + 4,
  kAtKey = kAtPsn + 4,
  kAtMtu = kAtKey + 4,
  kAtWindow = kAtMtu + 2,
  kAtAddress = kAtWindow + 2,
  kAtSize = kAtAddress + 8,
  kAtNonce = kAtSize + 8,
};
static_assert(kAtNonce + 8 == kRcBodyBytes);

bool is_usable(const IpAddress& gid) {
  return !gid.is_any() && !gid.is_multicast();
}

bool is_sound(const RcEnd& end) {
  const bool numbers = end.qpn >= kLeastQpn && end.qpn <= kMost24 && end.psn <= kMost24 && end.nonce != 0;
  const bool limits = end.mtu >= 1 && end.mtu <= 5 && end.window >= kLeastWindow && end.window <= kMostWindow;
  const bool memory =
      end.size >= sizeof(LinkBlock) && end.size <= kMostLinkMemory && end.address + end.size > end.address;
  return numbers && limits && memory && is_usable(end.gid);
}

}  // namespace

std::size_t encode(const LinkHead& head, const RcEnd& end, std::span<std::byte> room) {
  encode(head, room);
  std::memcpy(&room[kAtGid], end.gid.bytes.data(), end.gid.bytes.size());
  put32(&room[kAtQpn], end.qpn);
  put32(&room[kAtPsn], end.psn);
  put32(&room[kAtKey], end.key);
  room[kAtMtu] = std::byte{end.mtu};
  room[kAtMtu + 1] = std::byte{0};
  put16(&room[kAtWindow], end.window);
  put64(&room[kAtAddress], end.address);
  put64(&room[kAtSize], end.size);
  put64(&room[kAtNonce], end.nonce);
  return kRcBodyBytes;
}

Reason decode(std::span<const std::byte> body, const IpAddress& peer, RcEnd& out) {
  if (body.size() != kRcBodyBytes || body[kAtMtu + 1] != std::byte{0}) return Reason::kLinkValue;
  std::memcpy(out.gid.bytes.data(), &body[kAtGid], out.gid.bytes.size());
  out.qpn = get32(&body[kAtQpn]);
  out.psn = get32(&body[kAtPsn]);
  out.key = get32(&body[kAtKey]);
  out.mtu = static_cast<std::uint8_t>(body[kAtMtu]);
  out.window = get16(&body[kAtWindow]);
  out.address = get64(&body[kAtAddress]);
  out.size = get64(&body[kAtSize]);
  out.nonce = get64(&body[kAtNonce]);
  if (!is_sound(out)) return Reason::kLinkValue;
  return out.gid == peer ? Reason::kNone : Reason::kForeignAddress;
}

}  // namespace bypass::fastpath
