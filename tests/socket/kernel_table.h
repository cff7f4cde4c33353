// KernelTable: for a scope, a copy of the table of libc's functions, into which a test puts its own functions.
#pragma once

#include "os/kernel.h"

namespace bypass::test {

class KernelTable {
 public:
  KernelTable() : before_(socket::kernel), table(*before_) { socket::kernel = &table; }
  ~KernelTable() { socket::kernel = before_; }
  KernelTable(const KernelTable&) = delete;
  KernelTable& operator=(const KernelTable&) = delete;
  socket::Kernel* operator->() { return &table; }

 private:
  const socket::Kernel* before_;
  socket::Kernel table;
};

}  // namespace bypass::test
