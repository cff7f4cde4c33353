// PumpProcess: what a process does with its connections on the port before it gives rights up or executes another
// program, while its family goes on.
//
// The memory of the port's connections belongs to the family. A process that leaves it gets one end of a pair of Unix
// sockets in place of each connection. So do other processes that go on with the same connection. A process of ours,
// named `bypass-pump`, stays in the family. It has the connection, and carries bytes between the connection and the
// pair (pump.h): bytes cross the border, never memory. The process that leaves forks the pump while it has the family's
// rights. The pump is a child of init, and ends with the connection.
//
// Another process of the family that has the connection gets its end at its next call, by pidfd_getfd(2)
// (preload/pumped.h). So bytes that have left the stack and that nobody has read lie in one place for all of them.
#pragma once

namespace bypass::socket {
struct File;
}

namespace bypass::runtime {

struct Process;

/// Called in a process of one thread, without a thread of ours. From here on a pump has the connection. Null: it has,
/// and the process fetches its end next. Otherwise the text says why it has not, and nothing has changed. `life`, if
/// not null, gets a descriptor that says POLLHUP once the pump has ended.
[[nodiscard]] const char* begin_pumping(socket::File& file, int* life = nullptr);
/// The same where another process has the program's end. `end` is the other one, which stays open here.
[[nodiscard]] const char* begin_pumping_to(socket::File& file, int end, int& life);
/// Calls pump(what) while the process has one thread of its own, and our thread rests. Where it has more threads, does
/// nothing.
void pump_alone(void (*pump)(void* what), void* what);

/// Logs that a connection is not pumped, and why.
void report_unpumped(const char* problem);

/// Called before rights are given up. It has all connections of the process pumped by `pump_numbers`, if the process
/// has nothing else on the wire. Returns whether the progress thread ran, and was ended for this.
[[nodiscard]] bool pump_connections(Process& process, void (*pump_numbers)());

/// Before an exec, or a spawn: `pump_numbers` has those pumped that the image is meant to use, where others of the
/// family keep the ports. Meanwhile the progress thread stops: only to be called where there are some.
void pump_before_exec(void (*pump_numbers)());

/// Before a descriptor is passed to another process (SCM_RIGHTS): the same for one number.
void pump_before_passing(int fd, void (*pump_number)(int fd));

/// A descriptor of the program's end of a connection that is pumped. Where the pump has been killed it is one that is
/// reset. Below 0: it cannot be had now, as where the process can have no more descriptors; it is there.
[[nodiscard]] int fetch_pumped(socket::File& file);

}  // namespace bypass::runtime
