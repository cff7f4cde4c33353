// Sender: sends batches of frames to a packet socket, with their virtio headers.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <span>

#include "backends/packet/frames/vnet.h"
#include "stack/frame/packet.h"

namespace bypass::packet {

class Sender {
 public:
  static constexpr std::size_t kBatch = 64;

  Sender();

  struct Outcome {
    std::size_t done = 0;     // how many from the batch's beginning were sent or refused
    std::size_t bytes = 0;    // of the frames that were sent
    std::size_t refused = 0;  // lost: the interface is down, its queue is full, or the frame is longer than its MTU
  };
  /// Sends at most kBatch frames. They stay the caller's; their bytes have been copied when this returns. It never
  /// waits: it ends early where the socket's buffer is full. It costs one system call, and one more for each refused
  /// frame.
  Outcome send(int socket, std::span<Packet* const> frames);

 private:
  void describe(std::span<Packet* const> frames);

  std::array<VnetHeader, kBatch> headers_{};
  std::array<std::array<iovec, 1 + kMaxPieces>, kBatch> pieces_{};
  std::array<mmsghdr, kBatch> messages_{};
};

}  // namespace bypass::packet
