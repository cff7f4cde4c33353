// Directory: which ports of one user's processes on this host libbypass serves. A connection to any other process costs
// no attempt to find a libbypass at its other end.
//
// It is a file in the run directory, with a place for each port: who listens there, and whether a libbypass client has
// ever connected to it. The entries are only hints: a wrong or stale one costs an attempt, or the fast path of one
// connection. So the file is never cleaned up, and processes overwrite each other's places. It is read by system calls,
// so that a file which is cut short causes no SIGBUS.
#pragma once

#include <cstdint>
#include <string>

#include "fastpath/shm/refusal.h"
#include "fastpath/shm/rendezvous/descriptor.h"

namespace bypass::fastpath::shm {

/// The network namespace of a socket (SO_NETNS_COOKIE), as a number: two namespaces have different ports. 0: it cannot
/// be asked.
[[nodiscard]] std::uint32_t network_tag(int fd);

class Directory {
 public:
  Directory() = default;

  /// Opens the file in the directory of the descriptor `folder`, and makes it if needed. kNoResources: it could not be
  /// opened, is not a file of our user, or RLIMIT_FSIZE forbids it. `why`: the reason as text, e.g. "Permission
  /// denied".
  static Outcome<Directory> open(int folder, const char** why = nullptr);

  [[nodiscard]] bool is_open() const { return file_.is_open(); }
  /// The directory that the file lies in.
  [[nodiscard]] int folder() const { return folder_.get(); }
  /// In a forked child whose copies of the descriptors are closed already.
  void abandon() {
    file_.abandon();
    folder_.abandon();
  }

  void note_listener(std::uint16_t port, std::uint32_t network) const;
  [[nodiscard]] bool has_listener(std::uint16_t port, std::uint32_t network) const;
  /// Notes that a client connects to `port`. To be called before the connection is made, so that the accepting process
  /// sees it.
  void note_client(std::uint16_t port, std::uint32_t network) const;
  /// The same, but only if a listener is noted. Returns whether there is one.
  [[nodiscard]] bool note_client_of_listener(std::uint16_t port, std::uint32_t network) const;
  [[nodiscard]] bool has_clients(std::uint16_t port, std::uint32_t network) const;

 private:
  struct Place {
    std::uint32_t listener = 0;  // the tag of its network namespace
    std::uint32_t client = 0;
  };
  Directory(Descriptor folder, Descriptor file) : folder_(std::move(folder)), file_(std::move(file)) {}
  [[nodiscard]] Place read(std::uint16_t port) const;
  void write(std::uint16_t port, std::size_t offset, std::uint32_t tag) const;

  Descriptor folder_, file_;
};

}  // namespace bypass::fastpath::shm
