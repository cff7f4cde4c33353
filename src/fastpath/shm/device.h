// ShmDevice: makes links over shared memory, in a run directory, to processes of the same user on this host. Their
// network namespace may be another one, if their stack's addresses reach our stack over a port.
//
// It has no thread, and never waits: a set-up is a few system calls that the kernel answers at once.
#pragma once

#include <memory>
#include <vector>

#include "fastpath/link/link_device.h"
#include "fastpath/shm/setup.h"

namespace bypass::fastpath::shm {

class ShmDevice final : public LinkDevice {
 public:
  static constexpr std::size_t kMostLinks = 64;

  /// `folder`: a descriptor of the run directory, which the device takes over. Removes what dead processes left there.
  explicit ShmDevice(Descriptor folder, std::uint16_t window = 512);

  [[nodiscard]] Mover mover() const override { return Mover::kShm; }
  [[nodiscard]] bool reads_memory() const override { return false; }
  bool add_memory(std::span<const std::byte>, const char*&) override { return true; }
  void remove_memory(std::span<const std::byte>) override {}
  LinkSetup* request(std::uint32_t id, std::span<std::byte> memory, const IpAddress& peer, Instant now) override;
  LinkSetup* answer(std::span<const std::byte> body, Reason refusal, std::span<std::byte> memory, const IpAddress& peer,
                    Instant now) override;
  void close(LinkSetup* setup) override;
  /// A link is gone as soon as its setup is.
  bool gone(std::span<const std::byte>) override { return true; }
  /// Each setup has a descriptor of its own.
  [[nodiscard]] int descriptor() const override { return -1; }
  void attend() override;
  [[nodiscard]] bool lost() const override { return false; }

  /// In a forked child, where other code closes the copies of the descriptors: forgets all links. The device must not
  /// be used afterwards. Async-signal-safe.
  void abandon();

 private:
  ShmSetup* make_setup(std::span<std::byte> memory, Instant now);

  Descriptor folder_;
  const std::uint16_t window_;
  std::vector<std::unique_ptr<ShmSetup>> setups_;
};

}  // namespace bypass::fastpath::shm
