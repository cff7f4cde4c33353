// What the families of calls share: objects get numbers and lose them.
#pragma once

#include <errno.h>

#include "preload/fd_table.h"
#include "preload/uses.h"

namespace bypass::preload {

class KeepErrno {
 public:
  KeepErrno() = default;
  ~KeepErrno() { errno = saved_; }
  KeepErrno(const KeepErrno&) = delete;
  KeepErrno& operator=(const KeepErrno&) = delete;

 private:
  int saved_ = errno;
};

// None of these does anything in a thread that goes straight to the kernel: a vfork child has numbers of its own.

/// `fd` names `file` from now on. An object that a close inside libc left there is released. False: no memory for the
/// table, and the object was released.
bool enter_number(int fd, File* file);
/// The kernel has given `fd` out again: an object that was left there is stale.
void drop_stale_number(int fd);
/// `fd` is about to lose its object; the descriptor is still open.
void leave_number(int fd);
/// `copy` is a duplicate of `fd`, made by the kernel.
void share_number(int fd, int copy);
/// To be called after a call that may decide for the kernel: if it did, takes the number out of the table.
void drop_if_decided(const Use& use, int fd);

/// The kernel had no number for the program. Returns whether one of ours is free now.
bool spare_numbers();
/// A call that makes a number. The program can have as many as without us.
template <typename Call>
[[gnu::always_inline]] inline int make_number(Call call) {
  const int before = errno;
  int fd = call();
  while (fd < 0 && errno == EMFILE && spare_numbers()) {
    errno = before;
    fd = call();
  }
  return fd;
}

}  // namespace bypass::preload
