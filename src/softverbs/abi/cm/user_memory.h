// UserMemory: copies between the program's memory and ours, as a kernel does: a bad pointer is an error, not a fault.
//
// The bytes go through a pipe, so that the kernel looks at the pointer. (Only libbypass.so handles faults itself.)
// Calls of rdma_cm are no data path. To be used by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace bypass::softverbs {

class UserMemory {
 public:
  UserMemory() = default;
  ~UserMemory();
  UserMemory(const UserMemory&) = delete;
  UserMemory& operator=(const UserMemory&) = delete;
  /// False: there are no descriptors.
  bool open();

  /// `to` or `from` is the program's. For at most a page's bytes. False: a part is not mapped.
  bool copy(void* to, const void* from, std::size_t bytes);

 private:
  int read_fd_ = -1, write_fd_ = -1;
};

}  // namespace bypass::softverbs
