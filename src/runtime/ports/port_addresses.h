// The address space that open ports use. DPDK reserves 64 GiB and more if it has huge pages, and otherwise some hundred
// MiB: so it is measured.
#pragma once

#include <cstddef>

namespace bypass::runtime {

/// Lives while a thread opens ports: the growth of the process's address space counts as the ports'. What the program's
/// threads map meanwhile counts as well.
class PortAddresses {
 public:
  PortAddresses();
  ~PortAddresses();
  PortAddresses(const PortAddresses&) = delete;
  PortAddresses& operator=(const PortAddresses&) = delete;

  /// Bytes: the largest growth in this process, or in the parent that forked it. 0: no port was opened.
  static std::size_t bytes();

 private:
  std::size_t before_;
};

}  // namespace bypass::runtime
