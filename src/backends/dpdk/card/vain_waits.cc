#include "backends/dpdk/card/vain_waits.h"

#include <fcntl.h>
#include <unistd.h>

#include "backends/dpdk/eal/libc.h"

namespace bypass::dpdk {
namespace {

// Far more than any driver's bounded loop has.
constexpr unsigned kMostWaits = 200'000;

thread_local VainWaits* current = nullptr;

Instant monotonic() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return Instant{std::chrono::seconds{t.tv_sec} + std::chrono::nanoseconds{t.tv_nsec}};
}

}  // namespace

VainWaits::VainWaits(const std::string& card, Instant until, const std::string& root)
    : root_(root + "/sys/bus/pci/devices"), until_(until), before_(current) {
  if (card.empty()) return;
  folder_ = root_ + "/" + card;
  current = this;
}

VainWaits::~VainWaits() {
  current = before_;
}

bool VainWaits::has_gone() const {
  if (libc.access(folder_.c_str(), F_OK) == 0) return false;
  return libc.access(root_.c_str(), F_OK) == 0;  // after chroot(2) no card can be seen
}

bool VainWaits::ends_wait() {
  const bool silent = until_ != kNever && monotonic() >= until_;
  was_silent_ = was_silent_ || silent;
  if (!silent && !has_gone()) return false;
  ended_++;
  return true;
}

bool waits_in_vain() {
  return current != nullptr && current->ends_wait();
}

bool waits_without_end() {
  return current != nullptr && current->ended_ > kMostWaits;
}

}  // namespace bypass::dpdk
