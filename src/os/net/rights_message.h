// RightsMessage: one record of a Unix socket with the descriptors that go with it (SCM_RIGHTS, unix(7)).
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>

namespace bypass::os {

/// A message of one part, with room for `Room` descriptors. Nothing is sent, read or closed here: the owner gives
/// header() to sendmsg(2) or recvmsg(2). Not to be moved: the header names the message's own memory.
template <std::size_t Room>
class RightsMessage {
 public:
  /// The message's bytes, which must outlive the message. They are read where it is sent.
  RightsMessage(const void* bytes, std::size_t count) : part_{const_cast<void*>(bytes), count} {
    header_.msg_iov = &part_;
    header_.msg_iovlen = 1;
  }
  RightsMessage(const RightsMessage&) = delete;
  RightsMessage& operator=(const RightsMessage&) = delete;

  /// To be sent with these descriptors, `Room` at most. With none, the message is an ordinary one.
  void pass(std::span<const int> descriptors) {
    if (descriptors.empty()) return;
    expect();
    cmsghdr* const rights = CMSG_FIRSTHDR(&header_);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    header_.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  }

  /// To be called before recvmsg(2). The kernel installs `Room` descriptors at most: the room has no padding in which
  /// one more would fit.
  void expect() {
    header_.msg_control = control_.data();
    header_.msg_controllen = CMSG_LEN(Room * sizeof(int));
  }

  /// The descriptors that have come, -1 in the other places. They are the caller's to close.
  [[nodiscard]] std::array<int, Room> received() const {
    std::array<int, Room> descriptors;
    descriptors.fill(-1);
    const cmsghdr* const rights = CMSG_FIRSTHDR(&header_);
    const bool is_here = rights != nullptr && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS;
    if (is_here && rights->cmsg_len > CMSG_LEN(0))
      std::memcpy(descriptors.data(), CMSG_DATA(rights), std::min(rights->cmsg_len - CMSG_LEN(0), sizeof descriptors));
    return descriptors;
  }

  /// More bytes had been sent than there was room for.
  [[nodiscard]] bool lacks_bytes() const { return (header_.msg_flags & MSG_TRUNC) != 0; }
  /// More descriptors had been sent, or this process has no numbers left for them.
  [[nodiscard]] bool lacks_descriptors() const { return (header_.msg_flags & MSG_CTRUNC) != 0; }

  [[nodiscard]] msghdr& header() { return header_; }

 private:
  alignas(cmsghdr) std::array<char, CMSG_SPACE(Room * sizeof(int))> control_{};
  iovec part_;
  msghdr header_{};
};

}  // namespace bypass::os
