// What sits at the other end of a vhost-user socket path, found out in microseconds and without waiting
// for a peer that does not answer.
#pragma once

#include <string>

namespace bypass::dpdk {

enum class Peer {
  kAbsent,     // no such path
  kStale,      // a socket that nobody listens on: left behind by a process that died
  kSilent,     // somebody listens but does not answer: stopped, or swapped out
  kBusy,       // a server of ours that has a live client already
  kAlive,      // a vhost-user server that answers
  kForbidden,  // no permission, not a socket, or a process of a user who is not trusted (trust.h)
};

/// Connects, asks for the features, and hangs up. Waits `patience_ms` at most. `detail` explains kForbidden.
Peer look_at_peer(const std::string& path, int patience_ms, std::string& detail);

/// While it lives, no other libbypass process checks or creates sockets in the folder of `path`. Between finding a path
/// stale and binding it anew, no other process may do the same. Best effort: after 100 ms it goes on without (a folder
/// on a file system that cannot lock).
class FolderLock {
 public:
  explicit FolderLock(const std::string& path);
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();

 private:
  int fd_ = -1;
};

/// The folder that holds `path`; "." for a bare name.
std::string folder_of(const std::string& path);

}  // namespace bypass::dpdk
