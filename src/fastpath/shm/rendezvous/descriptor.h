// Descriptor: one file descriptor, which its owner closes by a direct system call.
//
// It belongs to one process, as descriptors do. A forked child has a copy. The copy keeps a name bound and a channel
// open, and it hides the end from the peer. So the child closes its copies (or goes on in its parent's place).
// Tests: tests/fastpath/shm/setup_test.cc.
#pragma once

#include <utility>

#include "os/os.h"

namespace bypass::fastpath::shm {

/// Keeps lasting descriptors apart from the program's: moves them above the program's numbers and protects them from
/// its closes. Set once, before the first use; until then descriptors stay where they are. No member is ever null.
struct DescriptorKeeper {
  int (*own)(int fd) = [](int fd) { return fd; };          // keeps `fd` for as long as the process lives
  int (*own_passing)(int fd) = [](int fd) { return fd; };  // keeps `fd` for as long as a connection
  void (*disown)(int fd) = [](int) {};
};
inline DescriptorKeeper descriptor_keeper;

class Descriptor {
 public:
  Descriptor() = default;
  /// `fd` may be the negative result of a system call: then there is no descriptor.
  explicit Descriptor(long fd) : fd_(fd < 0 ? -1 : static_cast<int>(fd)) {}
  /// Makes a descriptor of ours that stays longer than a call: as long as a connection. kept_for_good(): as long as the
  /// process.
  static Descriptor kept(long fd) { return kept_by(descriptor_keeper.own_passing, fd); }
  static Descriptor kept_for_good(long fd) { return kept_by(descriptor_keeper.own, fd); }
  ~Descriptor() { reset(); }
  Descriptor(Descriptor&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), owned_(std::exchange(other.owned_, false)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this == &other) return *this;
    reset();
    fd_ = std::exchange(other.fd_, -1);
    owned_ = std::exchange(other.owned_, false);
    return *this;
  }

  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool is_open() const { return fd_ >= 0; }
  /// Forgets the number; other code has closed it.
  void abandon() {
    fd_ = -1;
    owned_ = false;
  }
  void reset() {
    if (fd_ < 0) return;
    if (owned_) descriptor_keeper.disown(fd_);
    os::close(fd_);
    fd_ = -1;
    owned_ = false;
  }

 private:
  static Descriptor kept_by(int (*own)(int fd), long fd) {
    Descriptor made(fd);
    if (!made.is_open()) return made;
    made.fd_ = own(made.fd_);
    made.owned_ = true;
    return made;
  }

  int fd_ = -1;
  bool owned_ = false;
};

}  // namespace bypass::fastpath::shm
