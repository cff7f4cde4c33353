// Transmit: the device's sending side of its port. Frames are collected and go out in bursts; frames to the device
// itself come back without seeing the wire.
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

  /// Whether a frame may be made: the batch takes it. Sends what is there when it is full.
  bool has_room() {
    if (pending_ < kBatch) return true;
    flush();
    return pending_ < kBatch;
  }
  /// An empty buffer, or null: the port has none left.
  Packet* alloc() {
    if (spare_count_ == 0) spare_count_ = port_.alloc(queue_, spare_);
    return spare_count_ == 0 ? nullptr : spare_[--spare_count_];
  }
  /// Takes the frame over. Only after has_room().
  void send(Packet* frame) { batch_[pending_++] = frame; }
  void loop_back(Packet* frame) { loop_.push(frame); }
  Packet* take_looped() { return loop_.pop(); }
  void free(Packet* frame) { port_.free({&frame, 1}); }
  void free(std::span<Packet* const> frames) {
    if (!frames.empty()) port_.free(frames);
  }
  /// One send() for all that waits; what the port does not take goes on waiting.
  void flush();
  std::size_t receive(std::span<Packet*> out) { return port_.receive(queue_, out); }
  [[nodiscard]] std::size_t pending() const { return pending_; }
  /// Neither frames that wait nor frames to the device itself.
  [[nodiscard]] bool is_empty() const { return pending_ == 0 && loop_.empty(); }
  [[nodiscard]] const Port& port() const { return port_; }

 private:
  /// The next frame's headers will be written there; a peer's processor may have had it last.
  void fetch_spare() const;
  Port& port_;
  std::uint16_t queue_;
  std::size_t pending_ = 0, spare_count_ = 0;
  std::array<Packet*, kBatch> batch_;
  std::array<Packet*, 32> spare_;
  PacketList loop_;
};

/// Writes one frame over as many buffers as it takes.
class FrameWriter {
 public:
  explicit FrameWriter(Transmit& transmit) : transmit_(transmit), head_(transmit.alloc()), tail_(head_) {}
  ~FrameWriter() {
    if (head_ != nullptr) transmit_.free(head_);
  }
  FrameWriter(const FrameWriter&) = delete;
  FrameWriter& operator=(const FrameWriter&) = delete;

  /// False once: the port ran out of buffers; the frame is then given back, and nothing more happens.
  [[nodiscard]] bool ok() const { return head_ != nullptr; }
  void append(const void* bytes, std::size_t len);
  /// The same; goes on with a CRC-32 over what was written (the bytes themselves may change meanwhile).
  void append_summing(const void* bytes, std::size_t len, std::uint32_t& crc);
  /// Room for a header of fixed size, in one piece; null when not ok().
  template <typename Header>
  Header* append_header() {
    return static_cast<Header*>(append_raw(sizeof(Header)));
  }
  /// The first `len` bytes that are written: one piece.
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
