// ShmDevice: a run directory as a maker of links over shared memory, to processes of the same user on this host in
// whatever network namespace, whose stack's addresses the own stack's meet over a port.
//
// It has no thread, and waits for nothing: a set-up is a handful of system calls that the kernel answers at once.
#pragma once

#include <memory>
#include <vector>

#include "fastpath/link/link_device.h"
#include "fastpath/shm/setup.h"

namespace bypass::fastpath::shm {

class ShmDevice final : public LinkDevice {
 public:
  static constexpr std::size_t kMostLinks = 64;

  /// `folder`: a descriptor of the run directory, the device's from now on. Takes away what dead processes left there.
  explicit ShmDevice(Descriptor folder, std::uint16_t window = 512);

  [[nodiscard]] Mover mover() const override { return Mover::kShm; }
  [[nodiscard]] bool reads_memory() const override { return false; }
  bool add_memory(std::span<const std::byte>, const char*&) override { return true; }
  void remove_memory(std::span<const std::byte>) override {}
  LinkSetup* request(std::uint32_t id, std::span<std::byte> memory, const IpAddress& peer, Instant now) override;
  LinkSetup* answer(std::span<const std::byte> body, Reason refusal, std::span<std::byte> memory, const IpAddress& peer,
                    Instant now) override;
  void close(LinkSetup* setup) override;
  /// With its setup the link is gone.
  bool gone(std::span<const std::byte>) override { return true; }
  /// Setups have descriptors of their own.
  [[nodiscard]] int descriptor() const override { return -1; }
  void attend() override;
  [[nodiscard]] bool lost() const override { return false; }

  /// In a forked child, whose copies of the descriptors are closed by somebody else: it keeps nothing of the links, and
  /// the device is of no use any more. Async-signal-safe.
  void abandon();

 private:
  ShmSetup* make_setup(std::span<std::byte> memory, Instant now);

  Descriptor folder_;
  const std::uint16_t window_;
  std::vector<std::unique_ptr<ShmSetup>> setups_;
};

}  // namespace bypass::fastpath::shm
