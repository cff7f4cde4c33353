// Directory: which ports of one user's processes on this host libbypass serves, so that a connection to anybody else
// costs no attempt to find a libbypass at its other end.
//
// A file in the run directory with a place for each port: who listens there, and whether a libbypass client has ever
// connected to it. Hints, no more: one that is wrong, or stale, costs an attempt or the fast path of a connection. So
// it is never cleaned up, processes write over each other's places, and it is read by system calls: a file that
// somebody cuts short is no SIGBUS.
#pragma once

#include <cstdint>
#include <string>

#include "fastpath/shm/descriptor.h"
#include "fastpath/shm/refusal.h"

namespace bypass::fastpath::shm {

/// Of a socket's network namespace (SO_NETNS_COOKIE): ports of two are different ones. Never 0; 0: it cannot be asked.
[[nodiscard]] std::uint32_t network_tag(int fd);

class Directory {
 public:
  Directory() = default;

  /// In the directory that `folder` is a descriptor of; made when it is not there. kNoResources: it could not be
  /// opened, is not a file of our own, or RLIMIT_FSIZE forbids it. `why`: "Permission denied", as people read it.
  static Outcome<Directory> open(int folder, const char** why = nullptr);

  [[nodiscard]] bool is_open() const { return file_.is_open(); }
  /// The directory that it lies in.
  [[nodiscard]] int folder() const { return folder_.get(); }
  /// In a forked child whose copies of the descriptors are closed already.
  void abandon() {
    file_.abandon();
    folder_.abandon();
  }

  void note_listener(std::uint16_t port, std::uint32_t network) const;
  [[nodiscard]] bool has_listener(std::uint16_t port, std::uint32_t network) const;
  /// Before the connection is made, so that the one that accepts it can see it.
  void note_client(std::uint16_t port, std::uint32_t network) const;
  /// The same where there is a listener, which is returned.
  [[nodiscard]] bool note_client_of_listener(std::uint16_t port, std::uint32_t network) const;
  [[nodiscard]] bool has_clients(std::uint16_t port, std::uint32_t network) const;

 private:
  struct Place {
    std::uint32_t listener = 0;  // its network's tag
    std::uint32_t client = 0;
  };
  Directory(Descriptor folder, Descriptor file) : folder_(std::move(folder)), file_(std::move(file)) {}
  [[nodiscard]] Place read(std::uint16_t port) const;
  void write(std::uint16_t port, std::size_t offset, std::uint32_t tag) const;

  Descriptor folder_, file_;
};

}  // namespace bypass::fastpath::shm
