// KernelWatch: tells that what read_kernel_network() says may be another thing by now (rtnetlink(7)'s groups).
//
// IPv6's addresses and routes are not followed: its packets stay the kernel's whatever they are.
#pragma once

#include <atomic>

#include "os/net/kernel_network.h"

namespace bypass::runtime {

class KernelWatch {
 public:
  KernelWatch() = default;
  KernelWatch(const KernelWatch&) = delete;
  KernelWatch& operator=(const KernelWatch&) = delete;
  ~KernelWatch() { close(); }

  /// In the caller's network namespace. False, with errno: the kernel tells nothing.
  bool open();
  [[nodiscard]] bool is_open() const { return descriptor() >= 0; }
  /// Readable when there is something to hear; -1: it is not open.
  [[nodiscard]] int descriptor() const { return fd_.load(std::memory_order_relaxed); }
  /// Whether something has changed since this was last asked, or may have: a message may have been lost.
  bool hear();
  /// All of it, by a descriptor that stays: the thread that asks now and then takes no number from the program
  /// meanwhile.
  [[nodiscard]] KernelNetwork read() const;
  void close();
  /// A forked child's copy of the descriptor is closed elsewhere.
  void forget();

 private:
  static int make(int flags, unsigned groups);

  std::atomic<int> fd_{-1};  // the progress thread sleeps on what another one may have opened
  int questions_ = -1;
};

}  // namespace bypass::runtime
