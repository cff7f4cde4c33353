// Drivers wait for a card's answers, some of them without end (virtio's for its control queue). Where no answer will
// come the waits end at once: the card has gone, or it has been silent for too long.
#pragma once

#include <string>

#include "stack/time.h"

namespace bypass::dpdk {

/// For the calling thread's calls of the driver of this card; "": no card's, whose waits are left alone.
class VainWaits {
 public:
  /// From `until` (CLOCK_MONOTONIC) on the card counts as silent. `root` is put in front of /sys; it is empty except in
  /// tests.
  explicit VainWaits(const std::string& card, Instant until = kNever, const std::string& root = "");
  VainWaits(const VainWaits&) = delete;
  VainWaits& operator=(const VainWaits&) = delete;
  ~VainWaits();

  /// Whether waits have been ended because the card was silent.
  [[nodiscard]] bool was_silent() const { return was_silent_; }

 private:
  friend bool waits_in_vain();
  friend bool waits_without_end();
  [[nodiscard]] bool has_gone() const;
  bool ends_wait();

  std::string folder_, root_;
  Instant until_;
  bool was_silent_ = false;
  unsigned ended_ = 0;  // waits
  VainWaits* const before_;
};

/// Whether the driver that the calling thread is in waits for a card that will not answer. One access(2) if it may.
bool waits_in_vain();

/// Whether the driver has gone on waiting although its waits end at once. It will not stop by itself.
bool waits_without_end();

}  // namespace bypass::dpdk
