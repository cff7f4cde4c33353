#include "fastpath/setup/shm_record.h"

#include <algorithm>
#include <cstring>

#include "fastpath/framed/wire.h"
#include "fastpath/link/link.h"

namespace bypass::fastpath {
namespace {

// Where things lie in a body.
enum : std::size_t {
  kAtName = kLinkHeadBytes,
  kAtSecret = kAtName + sizeof(Nonce),
  kAtSize = kAtSecret + sizeof(Nonce),
  kAtWindow = kAtSize + 8,
  kAtReserved = kAtWindow + 2,
};
static_assert(kAtReserved + 6 == kShmBodyBytes);

bool is_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{}; });
}

}  // namespace

std::size_t encode(const LinkHead& head, const ShmEnd& end, std::span<std::byte> room) {
  encode(head, room);
  std::memcpy(&room[kAtName], end.name.data(), end.name.size());
  std::memcpy(&room[kAtSecret], end.secret.data(), end.secret.size());
  put64(&room[kAtSize], end.size);
  put16(&room[kAtWindow], end.window);
  std::fill(room.begin() + kAtReserved, room.begin() + kShmBodyBytes, std::byte{});
  return kShmBodyBytes;
}

Reason decode(std::span<const std::byte> body, bool names, ShmEnd& out) {
  if (body.size() != kShmBodyBytes || !is_zero(body.subspan(kAtReserved))) return Reason::kLinkValue;
  std::memcpy(out.name.data(), &body[kAtName], out.name.size());
  std::memcpy(out.secret.data(), &body[kAtSecret], out.secret.size());
  out.size = get64(&body[kAtSize]);
  out.window = get16(&body[kAtWindow]);
  const bool numbers = out.size >= sizeof(LinkBlock) && out.size <= kMostLinkMemory && out.window >= kLeastWindow &&
                       out.window <= kMostWindow;
  return numbers && is_zero(out.name) != names && !is_zero(out.secret) ? Reason::kNone : Reason::kLinkValue;
}

}  // namespace bypass::fastpath
