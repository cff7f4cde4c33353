#include "backends/dpdk/card/vain_waits.h"

#include <fcntl.h>
#include <unistd.h>

#include "backends/dpdk/eal/libc.h"

namespace bypass::dpdk {
namespace {

thread_local const std::string* asked = nullptr;

}  // namespace

VainWaits::VainWaits(const std::string& card) {
  if (card.empty()) return;
  folder_ = "/sys/bus/pci/devices/" + card;
  asked = &folder_;
}

VainWaits::~VainWaits() {
  asked = nullptr;
}

bool waits_in_vain() {
  if (asked == nullptr || libc.access(asked->c_str(), F_OK) == 0) return false;
  return libc.access("/sys/bus/pci/devices", F_OK) == 0;  // after chroot(2) no card can be seen
}

}  // namespace bypass::dpdk
