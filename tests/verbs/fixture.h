// PortFixture: a VerbsPort over a FakeDevice.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backends/packet/libc.h"
#include "backends/plain_host.h"
#include "backends/verbs/verbs_port.h"
#include "fake_device.h"

namespace bypass::verbs {

class PortFixture : public testing::Test {
 protected:
  static constexpr std::size_t kBuffers = 512;

  void SetUp() override {
    const char* missing = nullptr;
    ASSERT_TRUE(packet::bind_libc(&PlainHost::host(), &missing)) << missing;
    packet::libc.poll = watched_poll;
  }

  /// Null: `problem` says why.
  void try_to_open(PortSpec spec = {}) {
    port.reset();
    spec.kind = "verbs";
    if (spec.target.empty()) spec.target = FakeDevice::kName;
    spec.addresses = {IpAddress::from_v4(0x0a090001)};
    spec.buffer_memory = kBuffers * packet::FramePool::kLarge.element;
    problem.clear();
    port = VerbsPort::open(spec, problem);
  }
  void open(const PortSpec& spec = {}) {
    try_to_open(spec);
    ASSERT_NE(port, nullptr) << problem;
  }

  // The device's thread sets the link's state, perhaps after the data path has looked, and then wakes a sleeper. When
  // the thread sleeps again, it has done both. So nothing else wakes what a test arms afterwards.
  void await_link(LinkState state) const {
    while (port->link() != state || !is_asleep.load(std::memory_order_acquire)) {
      (void)received();
      std::this_thread::yield();
    }
  }

  std::vector<Packet*> frames(std::size_t count, const std::string& text) const {
    std::vector<Packet*> made(count);
    EXPECT_EQ(port->alloc(0, made), count);
    for (std::size_t i = 0; i < count; i++) {
      const std::string bytes = text + std::to_string(i);
      std::memcpy(made[i]->data, bytes.data(), bytes.size());
      made[i]->len = made[i]->frame_len = static_cast<std::uint32_t>(bytes.size());
    }
    return made;
  }

  /// The frames that the port gives at one look.
  std::vector<std::string> received() const {
    std::vector<Packet*> got(64);
    got.resize(port->receive(0, got));
    std::vector<std::string> texts;
    for (const Packet* frame : got) texts.emplace_back(reinterpret_cast<const char*>(frame->data), frame->len);
    port->free(got);
    return texts;
  }

  /// The buffers that neither the pool nor the device has are lost. (Each request has one buffer.)
  void expect_no_buffer_lost() const {
    EXPECT_EQ(port->stats().buffers_free + device.receives() + device.sends(), port->stats().buffers_total);
  }

  FakeDevice device;
  std::unique_ptr<VerbsPort> port;
  std::string problem;

 private:
  /// The device's thread alone polls.
  static int watched_poll(pollfd* items, nfds_t count, int limit_ms) {
    is_asleep.store(true, std::memory_order_release);
    const int ready = ::poll(items, count, limit_ms);
    is_asleep.store(false, std::memory_order_release);
    return ready;
  }

  static inline std::atomic<bool> is_asleep{false};
};

}  // namespace bypass::verbs
