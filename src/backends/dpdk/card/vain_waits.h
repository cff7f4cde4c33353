// While a driver is asked about a card that has gone, its waits for the card's answers end at once: there are none, and
// the waits add up to a minute (e1000e).
#pragma once

#include <string>

namespace bypass::dpdk {

/// For the calling thread's calls of the driver of this card; "": a card that does not go before it is closed.
class VainWaits {
 public:
  explicit VainWaits(const std::string& card);
  VainWaits(const VainWaits&) = delete;
  VainWaits& operator=(const VainWaits&) = delete;
  ~VainWaits();

 private:
  std::string folder_;
};

/// Whether the driver that the calling thread is in waits for a card that has gone. One access(2) if it may have.
bool waits_in_vain();

}  // namespace bypass::dpdk
