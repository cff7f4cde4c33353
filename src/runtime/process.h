// Process: the runtime's life in one process, as src/preload drives it.
//
// It is private to a process. In a vfork child none of it is called. Everything is cheap until start(): a program that
// opens no internet socket pays only for the arena's reserved address range.
#pragma once

#include <cstddef>
#include <span>

#include "stack/address.h"

namespace bypass::socket {
struct File;
}

namespace bypass::runtime {

/// Called when the library is loaded, before the program's own constructors. It parses nothing, and only reserves the
/// arena's address range.
void at_load(char** envp);

/// Whether this process is configured to accelerate anything. It reads the configuration. It is asked at the first
/// internet socket and at the first epoll set, since an event loop is often made before the sockets that it will watch.
bool accelerates();

/// Whether the configuration may name a port. It looks at two variables and for the system's file only, and allocates
/// nothing.
bool may_name_ports();
/// Whether the configuration names a port; this reads the configuration.
bool names_ports();

/// The arena's addresses, most of which are never touched. Empty: none are reserved.
std::span<const std::byte> arena_range();

/// How much address space the library takes, in bytes: the arena's range, and what its threads and ports map beside it.
/// 0: nothing is reserved.
std::size_t address_bytes();

/// Called at the first AF_INET/AF_INET6 socket: reads the configuration and makes the log, the arena and the stack.
/// Ports open later. False: the process stays with the kernel's sockets, for a reason that has been logged.
bool start();

/// The process is about to end through libc. This delivers unsent data, within a bound. It may be called twice and by
/// several threads; it returns when all is done.
void before_exit();

/// Called before exec. It does the same, and other processes of the family see this one go. `handed_on`: the image that
/// comes inherits sockets that escape (kEscapedExec), and it is to tell of them.
void before_exec(bool handed_on);

/// Called around fork, in this order.
/// In the parent: prepare_fork(), share_with_child() for each object of the table of numbers, and after_fork_parent().
/// Its argument is the child's pid, 0 where the pid is not known, negative where there is no child.
/// In the child: after_fork_child(). If it returns true: adopt_number() for each number (false: the number is the
/// kernel's alone here), then end_fork_child(). If it returns false, all numbers are the kernel's.
enum class ChildsNetwork : bool { kSame, kNew };  // a network namespace of its own (clone(2), CLONE_NEWNET)
void prepare_fork(ChildsNetwork network = ChildsNetwork::kSame);
void share_with_child(socket::File& file);
void after_fork_parent(int child);
bool after_fork_child();
bool adopt_number(socket::File& file, int fd);
void end_fork_child();

/// The child of this thread's next forks only executes a program: it gets no thread of ours, as the program may close
/// every number meanwhile.
void expect_exec_in_child(bool expect);

/// This thread is about to go to another network namespace (unshare(2), setns(2)). What others of the family, or its
/// own ports, need there is made before.
void before_network_change();
/// Whether a new socket belongs to another network namespace than the family's ports: it reaches what the kernel lets
/// it reach.
[[nodiscard]] bool is_elsewhere(int fd);

/// Whether the process has exactly one thread of the program's, the caller's, and one of ours.
bool is_threaded_by_us();
/// Whether the process has one thread of the program's, and perhaps one of ours.
bool has_one_thread();

/// For a call of the program's that the kernel refuses to a process of several threads. Where the only other thread is
/// ours, it ends, until resume_threads(). Cancellation is off and signals are blocked meanwhile. False: our thread goes
/// on.
bool pause_threads();
void resume_threads();

/// Leaves for good, before the process forbids itself system calls. No thread of ours is left, and nothing of the
/// runtime makes a call any more, not even at the process's end. False: nothing is left, because the ports are open.
bool leave();

/// The program's first thread is about to end alone (`now`), or a filter may kill it alone. No thread of ours is to
/// keep the process alive then. Async-signal-safe.
void expect_end_of_first_thread(bool now);

/// Whether a descriptor is ours (arena, ports, eventfds, placeholders). The program's close must not reach it.
bool owns_descriptor(int fd);

/// Notes for `bypass why` why a descriptor was left to the kernel, or why we can no longer follow it.
/// Async-signal-safe. Without an address, it takes the one by which the kernel knows the descriptor.
void record_why(int fd, unsigned reason, const char* detail);
void record_why(int fd, unsigned reason, const Endpoint& address, const char* detail);

}  // namespace bypass::runtime
