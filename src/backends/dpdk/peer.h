// Peer: what is at the other end of a vhost-user socket's path. It takes microseconds to find out, and a bounded time
// if the peer does not answer.
#pragma once

#include <string>

namespace bypass::dpdk {

enum class Peer {
  kAbsent,     // no such path
  kStale,      // a socket on which no process listens: its process has died
  kSilent,     // a process listens but does not answer: it is stopped, or swapped out
  kBusy,       // a server of ours that has a live client already
  kAlive,      // a vhost-user server that answers
  kForbidden,  // no permission, not a socket, or a process of a user who is not trusted (trust.h)
};

/// Connects, asks for the features, and closes. Waits `patience_ms` at most. `detail` explains kForbidden.
Peer look_at_peer(const std::string& path, int patience_ms, std::string& detail);

/// While it lives, no other libbypass process checks or creates sockets in the folder of `path`. A process that finds a
/// path stale binds it anew, and no other may do the same in between. After 100 ms without the lock it goes on anyway:
/// the folder's file system may have no locks.
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
