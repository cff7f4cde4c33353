// Every descriptor that DPDK or this plugin opens: moved by Host::copy_high(), CLOEXEC,
// known to the host, and closed at once in a forked child.
//
// The set is a bitmap of atomics, so that drop_all() may run in a forked child (async-signal-safe) while
// another thread of the parent was in the middle of anything.
#pragma once

#include <poll.h>

#include <span>
#include <string>

namespace bypass::dpdk {

/// Moves a new descriptor up, marks it CLOEXEC and ours. Where no higher number is left it keeps its own.
/// Returns -1 for -1, errno untouched.
int raise_descriptor(int fd);

/// The highest of ours that is `wanted`; -1: none is.
int find_descriptor(bool (*wanted)(int fd));

/// Forgets a descriptor that is about to be closed (before: another thread may get its number at once).
void forget_descriptor(int fd);

/// forget_descriptor and close.
void close_descriptor(int fd);

/// Closes everything that is ours. For a forked child only.
void drop_all_descriptors();

/// Backend::protect_descriptors() for everything that is ours.
void protect_all_descriptors(bool on);

/// poll(2) that sleeps also where RLIMIT_NOFILE lets nobody ask for so many: then 0 may come early.
int poll_descriptors(std::span<pollfd> set, int timeout_ms);

// --- The vhost-user sockets among them, by the path they serve

/// A connected client socket (virtio end), so that a silent peer can be cut off: shutdown() makes the
/// driver's blocking read return.
void remember_client(int fd, const char* path);
/// Shuts the client socket of `path` down; the driver then finds end-of-file instead of blocking.
void shut_client_down(const std::string& path);

/// Tells the peer of a vhost-user socket that is about to be closed. close() alone would not: the vhost
/// library's thread may sit in poll() on it and hold it open for up to a second.
void hang_up(int fd);

/// The write end of the pipe that wakes the vhost library's thread. It sits in poll() for up to a second
/// and is not told of a new listener otherwise.
void remember_vhost_pipe(int write_end);
void poke_vhost_thread();

/// Whether the next accepted connection of a vhost listener is a rival: a client is there and alive. The
/// library itself would let the newcomer silently take the port over.
bool is_rival(int listener);
void remember_accepted(int listener, int fd);

}  // namespace bypass::dpdk
