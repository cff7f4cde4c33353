// KernelWatch: tells that the kernel's addresses, routes or interfaces may have changed since read_kernel_network()
// read them (rtnetlink(7)'s groups).
//
// It does not follow IPv6's addresses and routes: IPv6 packets stay the kernel's in any case.
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

  /// Opens in the caller's network namespace. False, with errno: the kernel tells nothing.
  bool open();
  [[nodiscard]] bool is_open() const { return descriptor() >= 0; }
  /// A descriptor that is readable when there is something to hear; -1: the watch is not open.
  [[nodiscard]] int descriptor() const { return fd_.load(std::memory_order_relaxed); }
  /// Whether something has changed since the last call. Also true if a message may have been lost.
  bool hear();
  /// Reads the whole state, by a descriptor that stays open. So a thread that asks now and then takes no number from
  /// the program meanwhile.
  [[nodiscard]] KernelNetwork read() const;
  void close();
  /// For a forked child: forgets the descriptor, whose copy is closed elsewhere.
  void forget();

 private:
  static int make(int flags, unsigned groups);

  std::atomic<int> fd_{-1};  // atomic: the progress thread sleeps on a descriptor that another thread may have opened
  int questions_ = -1;
};

}  // namespace bypass::runtime
