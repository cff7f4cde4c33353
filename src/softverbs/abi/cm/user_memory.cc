#include "softverbs/abi/cm/user_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>

#include "os/os.h"
#include "softverbs/abi/adapter/setup.h"

namespace bypass::softverbs {

bool UserMemory::open() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return false;
  read_fd_ = own_high(ends[0]);
  write_fd_ = own_high(ends[1]);
  return true;
}

UserMemory::~UserMemory() {
  close_own(read_fd_);
  close_own(write_fd_);
}

bool UserMemory::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return true;
  const auto wanted = static_cast<long>(bytes);
  const long there = os::call(SYS_write, write_fd_, os::address(from), wanted);
  if (there == wanted && os::read(read_fd_, to, bytes) == wanted) return true;
  // What a bad pointer has left behind.
  std::array<std::byte, 512> rest;
  while (os::read(read_fd_, rest.data(), rest.size()) > 0) {
  }
  return false;
}

}  // namespace bypass::softverbs
