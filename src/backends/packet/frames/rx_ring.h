// RxRing: a packet socket that receives into a ring of slots shared with the kernel (TPACKET_V2 with PACKET_VNET_HDR).
// Frames are seen and taken without a system call. Each comes with the state of its checksum and segments.
//
// V3 would pack frames of any length. But it shows them only when a block is full or a millisecond has passed.
#pragma once

#include <linux/if_packet.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "backends/packet/descriptor.h"
#include "backends/packet/frames/vnet.h"
#include "stack/address.h"

namespace bypass::packet {

/// Which frames a ring takes: those whose length lies in this range. They are the untagged ones to `mac` and to groups,
/// or those that `program` chooses, which looks at the length, too.
struct RxShape {
  std::uint32_t shortest = 0;
  std::uint32_t longest = 0;  // also the room of a slot
  std::uint32_t ring_bytes = 0;
  MacAddress mac;
  int program = -1;  // a loaded socket filter; -1: the ring selects by `mac`
};

class RxRing {
 public:
  RxRing() = default;
  RxRing(const RxRing&) = delete;
  RxRing& operator=(const RxRing&) = delete;
  ~RxRing();

  /// The ring receives nothing until attach(). False with errno.
  bool create(const RxShape& shape);
  /// From now on the ring receives from this interface. False with errno.
  [[nodiscard]] bool attach(int interface) const;

  /// The oldest frame; null: the ring is empty.
  [[nodiscard]] const tpacket2_hdr* head() const {
    const auto* slot = reinterpret_cast<const tpacket2_hdr*>(slot_);
    // Pairs with the kernel's barrier between filling the slot and handing it over.
    return (__atomic_load_n(&slot->tp_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER) != 0 ? slot : nullptr;
  }
  /// Gives the oldest frame's slot back.
  void advance();

  [[nodiscard]] int descriptor() const { return socket_.get(); }
  /// Reads the error that an interface leaves at the socket when it goes down. Else the error keeps the descriptor
  /// readable.
  void take_error() const;
  /// How many frames the kernel dropped since the last call because the ring was full.
  [[nodiscard]] std::uint64_t take_losses() const;

 private:
  bool map(const RxShape& shape);

  Descriptor socket_;
  std::byte* memory_ = nullptr;
  std::byte* slot_ = nullptr;
  std::size_t bytes_ = 0;
  std::uint32_t slot_bytes_ = 0, block_bytes_ = 0, slots_a_block_ = 0, blocks_ = 0;
  std::uint32_t block_ = 0, slot_in_block_ = 0;
};

/// The frame in a slot.
inline std::span<const std::byte> frame_of(const tpacket2_hdr& slot) {
  return {reinterpret_cast<const std::byte*>(&slot) + slot.tp_mac, slot.tp_snaplen};
}
VnetHeader vnet_of(const tpacket2_hdr& slot);
/// Whether `a` arrived before `b`.
bool is_older(const tpacket2_hdr& a, const tpacket2_hdr& b);

}  // namespace bypass::packet
