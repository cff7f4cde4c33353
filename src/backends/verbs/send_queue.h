// SendQueue: posts frames. It posts request by request through ibv_wr_… where the queue pair has that, else as a list
// of ibv_send_wr. There is one doorbell for a batch, and only the batch's last request asks for a completion. Small
// frames are copied into the request.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "backends/verbs/verbs.h"
#include "stack/frame/packet.h"

namespace bypass::verbs {

class SendQueue {
 public:
  static constexpr std::size_t kBurst = 64;
  /// The most buffers of one frame: 64 KiB in pieces of 8 KiB.
  static constexpr std::uint32_t kMostSegments = 10;

  struct Posted {
    std::size_t taken;    // how many of the frames, from the first, were taken
    std::size_t refused;  // how many after those would be refused again
    bool told;            // a completion will tell of those taken
  };

  struct Limits {
    std::uint32_t pieces;  // of one frame, kMostSegments at most
    std::uint32_t inline_bytes;
  };

  /// `extended`: the same queue pair in its extended form, or null. Frames lie in the memory with that key.
  void use(ibv_qp* queue, ibv_qp_ex* extended, std::uint32_t memory_key, const Limits& limits);
  /// Posts at most kBurst frames, for which there must be room. The requests get the numbers `first`, first + 1, …
  Posted post(std::span<Packet* const> frames, std::uint64_t first);

 private:
  struct Request {
    std::array<ibv_sge, kMostSegments> pieces;
    std::size_t count;
    std::uint16_t headers;  // the length of the headers in front of a large segment's pieces; else 0
    bool copied;
  };

  bool describe(const Packet& frame, Request& out) const;
  Posted post_list(std::span<Packet* const> frames, std::uint64_t first);
  Posted post_extended(std::span<Packet* const> frames, std::uint64_t first);
  void build(const Packet& frame, const Request& request);

  ibv_qp* queue_ = nullptr;
  ibv_qp_ex* extended_ = nullptr;
  std::uint32_t key_ = 0;
  Limits limits_{};
  std::array<Request, kBurst> requests_{};
  std::array<ibv_send_wr, kBurst> list_{};
};

}  // namespace bypass::verbs
