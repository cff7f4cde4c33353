// Process: the runtime's life in one process, as src/preload drives it.
//
// Private to a process; in a vfork child none of it is called. Everything is cheap until start(): a program
// that opens no internet socket pays for the arena's reserved address range and nothing else.
#pragma once

#include <cstddef>
#include <span>

#include "stack/address.h"

namespace bypass::socket {
struct File;
}

namespace bypass::runtime {

/// When the library is loaded, before the program's own constructors. Parses nothing: reserves the arena's
/// address range, cheaply.
void at_load(char** envp);

/// Whether this process is configured to accelerate anything. Asked at the first internet socket, and at the
/// first epoll set (an event loop is often made before the sockets that it will watch); reads the
/// configuration then.
bool accelerates();

/// Whether the configuration may name a port: a look at two variables and for the system's file. Allocates nothing.
bool may_name_ports();
/// Whether it does; reads the configuration.
bool names_ports();

/// The arena's addresses, of which most is never touched; empty: none are reserved.
std::span<const std::byte> arena_range();

/// What the library takes of the address space, in bytes: that range, and what its threads and ports map beside it. 0:
/// nothing is reserved.
std::size_t address_bytes();

/// At the first AF_INET/AF_INET6 socket: configuration, log, arena, stack. Ports open later. False: the
/// process stays with the kernel's sockets, for a reason that has been logged.
bool start();

/// The process is about to end through libc: delivers unsent data, within a bound. May be called twice, and by
/// several threads: returns when all is done.
void before_exit();

/// Before exec: the same, and other processes of the family see this one go. `handed_on`: the image that comes inherits
/// sockets that escape (kEscapedExec), of which it is to tell.
void before_exec(bool handed_on);

/// Around fork, in this order. In the parent: prepare_fork(), share_with_child() for each object of the table of
/// numbers, and after_fork_parent() with the child's pid (negative: there is none), or 0 where it is not known.
/// In the child: after_fork_child(); where it is true, adopt_number() for each number (false: it is the kernel's
/// alone here) and end_fork_child(); else all of them are the kernel's.
void prepare_fork();
void share_with_child(socket::File& file);
void after_fork_parent(int child);
bool after_fork_child();
bool adopt_number(socket::File& file, int fd);
void end_fork_child();

/// The process has one thread of the program's, the caller's, and one of ours.
bool is_threaded_by_us();
/// It has one thread of the program's, and perhaps one of ours.
bool has_one_thread();

/// A call of the program's is refused to a process of several threads: where the only other one is ours, it ends for
/// its sake, until resume_threads(). Cancellation is off and signals are blocked meanwhile. False: it goes on.
bool pause_threads();
void resume_threads();

/// For good, before the process forbids itself system calls: no thread of ours is left, and nothing of the runtime
/// makes a call any more, at its end either. False: its ports are open.
bool leave();

/// The program's first thread is about to end alone (`now`), or a filter may kill it alone: no thread of ours is to
/// keep the process then. Async-signal-safe.
void expect_end_of_first_thread(bool now);

/// A descriptor of ours (arena, ports, eventfds, placeholders): the program's close must not reach it.
bool owns_descriptor(int fd);

/// Why a descriptor was left to the kernel, or left our sight, for `bypass why`. Async-signal-safe. Without an
/// address: with the one that the kernel knows it by.
void record_why(int fd, unsigned reason, const char* detail);
void record_why(int fd, unsigned reason, const Endpoint& address, const char* detail);

}  // namespace bypass::runtime
