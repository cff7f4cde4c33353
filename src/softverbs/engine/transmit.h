// Transmit: the sending side of the device's port. Frames are collected and go out in bursts; frames to the device
// itself come back without using the wire.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "softverbs/engine/qp/objects.h"
#include "softverbs/engine/wire/neighbours.h"
#include "softverbs/engine/wire/roce.h"
#include "stack/frame/packet_list.h"
#include "stack/frame/port.h"

namespace bypass::rdma {

class Transmit {
 public:
  static constexpr std::size_t kBatch = 64;

  Transmit(Port& port, std::uint16_t queue) : port_(port), queue_(queue) {}
  ~Transmit();
  Transmit(const Transmit&) = delete;
  Transmit& operator=(const Transmit&) = delete;

  /// Whether a frame may be made, because the batch has room. Sends the batch if it is full.
  bool has_room() {
    if (pending_ < kBatch) return true;
    flush();
    return pending_ < kBatch;
  }
  /// An empty buffer; null: the port has none left.
  Packet* alloc() {
    if (spare_count_ == 0) spare_count_ = port_.alloc(queue_, spare_);
    return spare_count_ == 0 ? nullptr : spare_[--spare_count_];
  }
  /// Takes the frame over. May be called only after has_room().
  void send(Packet* frame) { batch_[pending_++] = frame; }
  void loop_back(Packet* frame) { loop_.push(frame); }
  Packet* take_looped() { return loop_.pop(); }
  void free(Packet* frame) { port_.free({&frame, 1}); }
  void free(std::span<Packet* const> frames) {
    if (!frames.empty()) port_.free(frames);
  }
  /// Makes one send() for all waiting frames. Those that the port does not take keep waiting.
  void flush();
  std::size_t receive(std::span<Packet*> out) { return port_.receive(queue_, out); }
  [[nodiscard]] std::size_t pending() const { return pending_; }
  /// True if no frames wait, neither for the wire nor for the device itself.
  [[nodiscard]] bool is_empty() const { return pending_ == 0 && loop_.empty(); }
  [[nodiscard]] const Port& port() const { return port_; }

 private:
  /// The next frame's headers will be written there; a peer's processor may have had its cache line last.
  void fetch_spare() const;
  Port& port_;
  std::uint16_t queue_;
  std::size_t pending_ = 0, spare_count_ = 0;
  std::array<Packet*, kBatch> batch_;
  std::array<Packet*, 32> spare_;
  PacketList loop_;
};

/// Writes one frame over as many buffers as needed.
class FrameWriter {
 public:
  explicit FrameWriter(Transmit& transmit) : transmit_(transmit), head_(transmit.alloc()), tail_(head_) {}
  ~FrameWriter() {
    if (head_ != nullptr) transmit_.free(head_);
  }
  FrameWriter(const FrameWriter&) = delete;
  FrameWriter& operator=(const FrameWriter&) = delete;

  /// False after the port ran out of buffers: the frame was given back, and later calls do nothing.
  [[nodiscard]] bool ok() const { return head_ != nullptr; }
  void append(const void* bytes, std::size_t len);
  /// The same, and extends a CRC-32 over what was written (the source bytes may change meanwhile).
  void append_summing(const void* bytes, std::size_t len, std::uint32_t& crc);
  /// Room for a header of fixed size, in one piece; null if not ok().
  template <typename Header>
  Header* append_header() {
    return static_cast<Header*>(append_raw(sizeof(Header)));
  }
  /// The first `len` bytes of the frame: one piece.
  std::byte* append_raw(std::size_t len);
  [[nodiscard]] Packet* head() { return head_; }
  Packet* take() { return std::exchange(head_, nullptr); }

 private:
  bool grow();
  template <typename Write>
  void append_pieces(const void* bytes, std::size_t len, Write&& write);
  Transmit& transmit_;
  Packet* head_;
  Packet* tail_;
};

}  // namespace bypass::rdma
