// NoWire: a port with nothing behind it. It is for tests of what a port is told, and of hosts that need a port.
#pragma once

#include "stack/frame/port.h"

namespace bypass::test {

class NoWire : public Port {
 public:
  explicit NoWire(const PortCaps& caps = {}) : caps_(caps) {}
  [[nodiscard]] const PortCaps& caps() const override { return caps_; }
  [[nodiscard]] MacAddress mac() const override { return {{2, 0, 0, 0, 0, 1}}; }
  [[nodiscard]] LinkState link() const override { return LinkState::kUp; }
  std::size_t receive(std::uint16_t, std::span<Packet*>) override { return 0; }
  std::size_t send(std::uint16_t, std::span<Packet* const>) override { return 0; }
  std::size_t alloc(std::uint16_t, std::span<Packet*>) override { return 0; }
  void free(std::span<Packet* const>) override {}
  [[nodiscard]] int wait_descriptor(std::uint16_t) const override { return -1; }
  [[nodiscard]] std::uint32_t wait_generation() const override { return 0; }
  bool arm(std::uint16_t) override { return true; }
  void disarm(std::uint16_t) override {}
  [[nodiscard]] PortStats stats() const override { return {}; }

 private:
  PortCaps caps_;
};

}  // namespace bypass::test
