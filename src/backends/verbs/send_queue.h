// SendQueue: posting frames: request by request through ibv_wr_… where the queue pair has that, as a list of
// ibv_send_wr elsewhere. One doorbell a batch; its last request alone asks for a completion; small frames are copied
// into the request.
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
  /// Buffers of one frame: 64 KiB in pieces of 8.
  static constexpr std::uint32_t kMostSegments = 10;

  struct Posted {
    std::size_t taken;    // the first so many of the frames
    std::size_t refused;  // the next so many: they would be refused again
    bool told;            // a completion will speak of those taken
  };

  struct Limits {
    std::uint32_t pieces;  // of a frame, kMostSegments at most
    std::uint32_t inline_bytes;
  };

  /// `extended`: the same queue pair, or null. Frames lie in the memory of that key.
  void use(ibv_qp* queue, ibv_qp_ex* extended, std::uint32_t memory_key, const Limits& limits);
  /// At most kBurst frames, for which there is room; requests get the numbers `first`, first + 1, …
  Posted post(std::span<Packet* const> frames, std::uint64_t first);

 private:
  struct Request {
    std::array<ibv_sge, kMostSegments> pieces;
    std::size_t count;
    std::uint16_t headers;  // of a large segment's, in front of its pieces; else 0
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
