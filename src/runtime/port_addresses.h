// The address space that open ports take. DPDK reserves 64 GiB and more where it has huge pages, a few hundred MiB
// elsewhere: so it is measured.
#pragma once

#include <cstddef>

namespace bypass::runtime {

/// Lives while a thread opens ports: what the process's address space has grown by then counts as the ports'. What the
/// program's threads map meanwhile counts, too.
class PortAddresses {
 public:
  PortAddresses();
  ~PortAddresses();
  PortAddresses(const PortAddresses&) = delete;
  PortAddresses& operator=(const PortAddresses&) = delete;

  /// Bytes; the largest growth of this process, or of the parent that it was forked from. 0: no port was opened.
  static std::size_t bytes();

 private:
  std::size_t before_;
};

}  // namespace bypass::runtime
