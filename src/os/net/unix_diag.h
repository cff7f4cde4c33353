// UnixDiag: what the kernel tells of Unix sockets by sock_diag(7), and what each is known by.
// Tests: tests/os/unix_diag_test.cc
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

namespace bypass::os {

/// A Unix socket, whatever descriptors name it. The kernel gives out no cookie twice.
struct UnixSocketId {
  std::uint32_t inode = 0;  // the kernel counts these in 32 bits (get_next_ino)
  std::uint64_t cookie = 0, network = 0;

  bool operator==(const UnixSocketId&) const = default;
};
/// Of a descriptor. Nullopt: it is no Unix socket, or the kernel knows no cookies of networks (before Linux 5.14).
[[nodiscard]] std::optional<UnixSocketId> unix_socket_id(int fd);

/// A socket by which the kernel is asked. It tells of the sockets of this thread's network namespace. Some system
/// calls for each question, no allocation.
class UnixDiag {
 public:
  UnixDiag();
  ~UnixDiag();
  UnixDiag(const UnixDiag&) = delete;
  UnixDiag& operator=(const UnixDiag&) = delete;

  /// The cookie of the network namespace; 0: not known.
  [[nodiscard]] std::uint64_t network() const;
  /// Whether it is certain that no descriptor names the socket any more, in no process and in no message.
  [[nodiscard]] bool is_gone(const UnixSocketId& id);
  /// The inode of the socket's peer; 0: nobody has accepted that one yet. Nullopt: the socket has no peer, or the
  /// kernel does not tell.
  [[nodiscard]] std::optional<std::uint32_t> peer_of(std::uint32_t inode);
  /// How many bytes lie unread in the socket. Nullopt: the kernel does not tell.
  [[nodiscard]] std::optional<std::uint32_t> unread_in(std::uint32_t inode);

 private:
  long ask(std::uint32_t inode, std::uint64_t cookie, std::uint32_t show);
  template <typename T>
  std::optional<T> attribute(unsigned short type) const;

  int fd_;
  alignas(8) std::byte answer_[1024];
  long answer_bytes_ = 0;
};

}  // namespace bypass::os
