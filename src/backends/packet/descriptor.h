// Descriptor: one descriptor of this plugin, moved by Host::copy_high(), CLOEXEC, and known to the host. A forked child
// closes its copy at once. Else the copy would keep sockets and interfaces alive that their owner has closed.
#pragma once

#include <utility>

namespace bypass::packet {

class Descriptor {
 public:
  Descriptor() = default;
  /// Takes over a new descriptor; -1 stands for none. errno stays as it was.
  explicit Descriptor(int fd);
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { close(); }

  void close();
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool is_open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// Closes the number of every open Descriptor. For a forked child only; async-signal-safe.
void drop_descriptors();

/// Backend::protect_descriptors() for every open Descriptor.
void protect_descriptors(bool on);

}  // namespace bypass::packet
