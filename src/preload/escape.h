// Escapes: ways in which a socket of ours leaves the sight of the interposers, counted for `bypass why`.
#pragma once

#include <sys/socket.h>

#include "observe/reasons.h"
#include "socket/api.h"

namespace bypass::preload {

void note_escape(int fd, observe::Reason reason, const char* detail);
/// There is no memory for what the kernel has just made, and its own would not do: closes it, notes that. -1, with
/// errno set to `error`: what the program is to hear.
int refuse_without_memory(int fd, int error, const char* detail);

/// Looks for sockets of ours among the descriptors that a message carries.
void note_passed_descriptors(const msghdr* message);

/// Every socket of ours that an exec'd image would inherit. Whether there are any that do not go back to the kernel.
bool note_exec(const char* program);
/// The same for what a vfork child execs.
void note_vfork_exec();
/// `fd` becomes one that a program will have that a vfork child, or posix_spawn, is about to exec.
void note_given_away(int fd);

/// libc's threads are about to read or write `fd`, past us: 0 when that is as good from here on. ENOSYS: it is on the
/// stack, `bypass why` knows. EAGAIN: bytes that lie in shared memory come first.
int let_libc_transfer(int fd, socket::Transfer transfer);
/// The program has made an io_uring, by what `detail` says, through which any descriptor may be read: no connection
/// shares memory from here on.
void note_io_uring(const char* detail);
/// A handler has made a socket or an epoll set while nothing had been decided: it is the kernel's.
void note_left_by_handler();
/// What was seen before there was anywhere to say it.
void tell_early_escapes();

}  // namespace bypass::preload
