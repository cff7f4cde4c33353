// Two ports joined in memory, in real time, for threads: frames cross under a mutex, and an armed port's
// descriptor becomes readable when one arrives.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "stack/frame/port.h"

namespace bypass::test {

class CablePort final : public Port {
 public:
  static constexpr std::size_t kBuffers = 1024, kBufferBytes = 2048;

  explicit CablePort(std::uint8_t last_byte) : mac_{{2, 0, 0, 0, 0, last_byte}} {
    caps_.buffer_bytes = kBufferBytes;
    caps_.gather = true;
    storage_.reset(new std::byte[kBuffers * (kBufferBytes + sizeof(Packet))]);
    for (std::size_t i = 0; i < kBuffers; i++) {
      auto* packet = reinterpret_cast<Packet*>(storage_.get() + i * (kBufferBytes + sizeof(Packet)));
      *packet = {};
      packet->buffer = reinterpret_cast<std::byte*>(packet + 1);
      packet->capacity = kBufferBytes;
      free_.push_back(packet);
    }
  }
  ~CablePort() override { ::close(event_); }
  using Port::count_link_up;
  static void join(CablePort& a, CablePort& b) {
    a.peer_ = &b;
    b.peer_ = &a;
  }

  [[nodiscard]] const PortCaps& caps() const override { return caps_; }
  [[nodiscard]] MacAddress mac() const override { return mac_; }
  [[nodiscard]] LinkState link() const override { return gone ? LinkState::kDown : LinkState::kUp; }

  std::size_t receive(std::uint16_t, std::span<Packet*> out) override {
    looks++;
    std::lock_guard lock(mutex_);
    std::size_t n = 0;
    while (n < out.size() && !inbox_.empty() && !free_.empty()) {
      Packet* packet = take();
      const std::vector<std::byte>& frame = inbox_.front();
      std::memcpy(packet->data, frame.data(), frame.size());
      packet->len = packet->frame_len = static_cast<std::uint32_t>(frame.size());
      inbox_.pop_front();
      out[n++] = packet;
    }
    return n;
  }
  std::size_t send(std::uint16_t, std::span<Packet* const> frames) override {
    std::size_t taken = 0;
    while (taken < frames.size() && peer_->arrive(*frames[taken])) taken++;
    free(frames.first(taken));
    return taken;
  }
  std::size_t alloc(std::uint16_t, std::span<Packet*> out) override {
    std::lock_guard lock(mutex_);
    std::size_t n = 0;
    while (n < out.size() && !free_.empty()) out[n++] = take();
    return n;
  }
  void free(std::span<Packet* const> frames) override {
    std::lock_guard lock(mutex_);
    for (Packet* head : frames)
      for (Packet* p = head; p != nullptr; p = p->next_segment) free_.push_back(p);
  }
  [[nodiscard]] int wait_descriptor(std::uint16_t) const override { return event_; }
  [[nodiscard]] std::uint32_t wait_generation() const override { return 0; }
  bool arm(std::uint16_t) override {
    std::lock_guard lock(mutex_);
    armed_ = true;
    return inbox_.empty();
  }
  void disarm(std::uint16_t) override {
    std::lock_guard lock(mutex_);
    armed_ = false;
    std::uint64_t count = 0;
    (void)!::read(event_, &count, sizeof count);
  }
  [[nodiscard]] PortStats stats() const override {
    PortStats stats;
    stats.gone = gone;
    return stats;
  }

  std::atomic<bool> gone{false};                   // the device has been taken away
  std::atomic<unsigned> looks{0};                  // how often receive() was called
  std::atomic<std::size_t> room{~std::size_t{0}};  // frames that may wait here

 private:
  Packet* take() {
    Packet* packet = free_.back();
    free_.pop_back();
    packet->reset(kTxHeadroom);
    packet->port = 0;
    return packet;
  }
  /// False: the ring is full of frames that wait.
  bool arrive(const Packet& head) {
    std::vector<std::byte> frame;
    for (const Packet* p = &head; p != nullptr; p = p->next_segment)
      frame.insert(frame.end(), p->data, p->data + p->len);
    for (int i = 0; i < 2; i++) frame.insert(frame.end(), head.external[i], head.external[i] + head.external_len[i]);
    std::lock_guard lock(mutex_);
    if (inbox_.size() >= room) return false;
    inbox_.push_back(std::move(frame));
    const std::uint64_t one = 1;
    if (armed_) (void)!::write(event_, &one, sizeof one);
    return true;
  }

  PortCaps caps_;
  MacAddress mac_;
  CablePort* peer_ = nullptr;
  std::mutex mutex_;
  std::deque<std::vector<std::byte>> inbox_;
  std::vector<Packet*> free_;
  std::unique_ptr<std::byte[]> storage_;
  int event_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  bool armed_ = false;
};

}  // namespace bypass::test
