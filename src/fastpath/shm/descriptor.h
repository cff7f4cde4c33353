// Descriptor: one file descriptor, closed with its owner by a straight system call.
//
// It is a process's own, as descriptors are. A forked child has a copy, which keeps a name bound, a channel open and a
// peer from seeing the end: it closes its copies (or goes on in its parent's place).
#pragma once

#include <utility>

#include "os/os.h"

namespace bypass::fastpath::shm {

/// How descriptors that stay are kept from the program's: moved above its numbers and protected from its closes. Set
/// once, before the first use; until then they stay where they are. No member is ever null.
struct DescriptorKeeper {
  int (*own)(int fd) = [](int fd) { return fd; };          // for as long as the process lives
  int (*own_passing)(int fd) = [](int fd) { return fd; };  // with a connection
  void (*disown)(int fd) = [](int) {};
};
inline DescriptorKeeper descriptor_keeper;

class Descriptor {
 public:
  Descriptor() = default;
  /// `fd` may be a system call's negative result: none.
  explicit Descriptor(long fd) : fd_(fd < 0 ? -1 : static_cast<int>(fd)) {}
  /// One of ours that stays for longer than a call: as long as a connection, or as the process.
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
  /// Forgets the number, which somebody else has closed.
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
