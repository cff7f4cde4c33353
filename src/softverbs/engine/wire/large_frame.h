// LargeFrame: a TCP frame beyond the link's MTU, as a neighbour in this machine hands it on uncut, in the pieces that a
// card would have made of it on the wire.
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
  /// `mtu`: of the link, bytes of the L3 packet; for frames that do not say how large their segments are.
  LargeFrame(const Packet& frame, std::uint32_t mtu);
  /// Goes on to the next piece (at first: to the first one). False: there is none left; or the frame is not one of TCP
  /// over IPv4, and stays whole.
  bool next();
  [[nodiscard]] std::uint32_t length() const { return header_len_ + payload_; }
  /// The piece's bytes from its beginning, one call after the other; those that nobody asks for are passed over.
  void copy(std::byte* to, std::size_t len);

 private:
  static constexpr std::size_t kMostHeaders = sizeof(wire::Ethernet) + 60 + 60;

  FrameReader rest_;
  std::array<std::byte, kMostHeaders> header_;
  std::uint32_t header_len_ = 0, ip_len_ = 0, tcp_len_ = 0;
  std::uint32_t size_ = 0;     // of a piece's payload
  std::uint32_t payload_ = 0;  // of this piece
  std::uint32_t left_ = 0;     // behind it
  std::uint32_t unread_ = 0;   // of this piece's payload
  std::size_t read_ = 0;       // of this piece's header
  std::byte kept_{};           // flags that the last piece alone carries
  bool first_ = true;
};

}  // namespace bypass::rdma
