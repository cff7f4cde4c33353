#include "fastpath/shm/device.h"

#include <algorithm>

namespace bypass::fastpath::shm {
namespace {

/// An older name belongs to no set-up: every set-up has been given up by then.
constexpr int kOldName = 60;
static_assert(std::chrono::seconds(kOldName) > 2 * ShmSetup::kLimit);

}  // namespace

ShmDevice::ShmDevice(Descriptor folder, std::uint16_t window) : folder_(std::move(folder)), window_(window) {
  Meeting::sweep(folder_.get(), kOldName);
}

ShmSetup* ShmDevice::make_setup(std::span<std::byte> memory, Instant now) {
  if (setups_.size() >= kMostLinks || memory.size() < sizeof(LinkBlock)) return nullptr;
  std::fill_n(memory.begin(), sizeof(LinkBlock), std::byte{});
  return setups_.emplace_back(std::make_unique<ShmSetup>(folder_.get(), window_, memory, now)).get();
}

LinkSetup* ShmDevice::request(std::uint32_t id, std::span<std::byte> memory, const IpAddress& /*peer*/, Instant now) {
  ShmSetup* const setup = make_setup(memory, now);
  if (setup != nullptr) setup->request(id);
  return setup;
}

LinkSetup* ShmDevice::answer(std::span<const std::byte> body, Reason refusal, std::span<std::byte> memory,
                             const IpAddress& /*peer*/, Instant now) {
  ShmSetup* const setup = make_setup(memory, now);
  if (setup != nullptr) setup->answer(body, refusal);
  return setup;
}

void ShmDevice::close(LinkSetup* setup) {
  std::erase_if(setups_, [setup](const auto& each) { return each.get() == setup; });
}

/// If both ends poll, only this look finds out that the peer has died.
void ShmDevice::attend() {
  for (const auto& setup : setups_) setup->look();
}

void ShmDevice::abandon() {
  for (const auto& setup : setups_) setup->abandon();
  folder_.abandon();
}

}  // namespace bypass::fastpath::shm
