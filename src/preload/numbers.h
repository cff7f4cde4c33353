// What the families of calls share: objects come under numbers and leave them.
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

// None of these does anything on a thread that goes straight: a vfork child has numbers of its own.

/// `fd` names `file` from now on. What a close inside libc left there is released. False: no memory for the
/// table, and the object has been released.
bool enter_number(int fd, File* file);
/// `fd` has been given out by the kernel anew: an object left there is stale.
void drop_stale_number(int fd);
/// `fd` will stop to name its object; the descriptor is still open.
void leave_number(int fd);
/// `copy` is a duplicate of `fd`, made by the kernel.
void share_number(int fd, int copy);
/// After a call that may decide for the kernel: takes the number out of the table if it did.
void drop_if_decided(const Use& use, int fd);

/// The kernel has had no number for the program: whether there is one more now, which was ours.
bool spare_numbers();
/// A call that makes a number. The program has as many of them as it would have without us.
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
