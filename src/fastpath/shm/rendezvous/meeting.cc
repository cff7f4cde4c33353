#include "fastpath/shm/rendezvous/meeting.h"

#include <cerrno>

namespace bypass::fastpath::shm {
namespace {

constexpr char kPrefix[] = "link-";
/// For the peer, and for strangers of our user that are checked one after the other.
constexpr int kBacklog = 4;

}  // namespace

std::string meeting_name(const Nonce& name) {
  std::string text = kPrefix;
  for (const std::byte byte : name) {
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte) >> 4];
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte) & 0xf];
  }
  return text;
}

Reason Meeting::open(int folder, const Nonce& name) {
  return listener_.open(folder, meeting_name(name), kBacklog) == 0 ? Reason::kNone : Reason::kNoSharedMemory;
}

std::optional<Channel> Meeting::accept() {
  for (int i = 0; i <= kBacklog; i++) {
    const long fd = listener_.accept();
    if (fd < 0) return std::nullopt;
    Channel guest(Descriptor::kept(fd));
    if (guest.is_of_our_user()) return guest;
  }
  return std::nullopt;
}

Reason Meeting::come(int folder, const Nonce& name, Channel& out) {
  Channel made;
  switch (NamedListener::connect(folder, meeting_name(name), made)) {
    case 0:
      break;
    case -ENOENT:
    case -ECONNREFUSED:  // the process that had it is dead
      return Reason::kElsewhere;
    case -EACCES:
    case -EPERM:
      return Reason::kOtherUser;
    default:
      return Reason::kNoSharedMemory;
  }
  if (!made.is_of_our_user()) return Reason::kOtherUser;
  out = std::move(made);
  return Reason::kNone;
}

void Meeting::sweep(int folder, int age) {
  NamedListener::sweep(folder, kPrefix, age);
}

}  // namespace bypass::fastpath::shm
