// LargeFrame: a TCP frame above the link's MTU, which a neighbour on this machine passes on uncut. It is split into the
// pieces that a card would have sent on the wire.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "softverbs/engine/wire/roce.h"
#include "stack/frame/packet.h"
#include "stack/frame/wire.h"

namespace bypass::rdma {

class LargeFrame {
 public:
  /// `mtu`: bytes of the link's L3 packet. It is used if the frame does not say how large its segments are.
  LargeFrame(const Packet& frame, std::uint32_t mtu);
  /// Moves to the next piece (the first call: to the first one). False: there is no other piece, or the frame is not
  /// TCP over IPv4 and stays whole.
  bool next();
  [[nodiscard]] std::uint32_t length() const { return header_len_ + payload_; }
  /// Copies the piece's next bytes. Bytes that are not copied are skipped by next().
  void copy(std::byte* to, std::size_t len);

 private:
  static constexpr std::size_t kMostHeaders = sizeof(wire::Ethernet) + 60 + 60;

  FrameReader rest_;
  std::array<std::byte, kMostHeaders> header_;
  std::uint32_t header_len_ = 0, ip_len_ = 0, tcp_len_ = 0;
  std::uint32_t size_ = 0;     // payload bytes of a piece
  std::uint32_t payload_ = 0;  // payload bytes of this piece
  std::uint32_t left_ = 0;     // payload bytes after it
  std::uint32_t unread_ = 0;   // unread bytes of this piece's payload
  std::size_t read_ = 0;       // read bytes of this piece's header
  std::byte kept_{};           // flags that only the last piece carries
  bool first_ = true;
};

}  // namespace bypass::rdma
