// Escapes: ways in which a socket of ours leaves the interposers' control, counted for `bypass why`.
#pragma once

#include "observe/reasons.h"
#include "socket/api.h"

namespace bypass::preload {

void note_escape(int fd, observe::Reason reason, const char* detail);
/// There is no memory for an object for the kernel's new descriptor, which alone would not do: closes it and records
/// that. Returns -1 with errno set to `error`, for the program.
int refuse_without_memory(int fd, int error, const char* detail);

/// Whether the kernel has the connection beneath the number. Then the connection goes back to the kernel, for any
/// process that gets the descriptor.
bool goes_back_to_kernel(int fd);

/// Records every socket of ours that an exec'd program would inherit. Returns whether any of them does not go back to
/// the kernel.
bool note_exec(const char* program);
/// The same for a vfork child's exec.
void note_vfork_exec();
/// `fd` will be inherited by a program that a vfork child, or posix_spawn, is about to exec.
void note_given_away(int fd);

/// libc's threads are about to read or write `fd` directly. 0: from now on they may. ENOSYS: the stack has the socket.
/// EAGAIN: bytes in shared memory come first.
int let_libc_transfer(int fd, socket::Transfer transfer);
/// The program has made an io_uring, by which any descriptor may be read; `detail` says how. From now on no connection
/// shares memory.
void note_io_uring(const char* detail);
/// A handler has made a socket or an epoll set before the decision: it is the kernel's.
void note_left_by_handler();
/// Reports what was seen before there was a place to report it.
void report_early_escapes();

}  // namespace bypass::preload
