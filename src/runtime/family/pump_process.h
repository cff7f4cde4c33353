// PumpProcess: what a process does with its connections on the port before it gives rights up, or executes another
// program, while its family goes on.
//
// The memory of the port's connections is the family's. Who leaves it, and others that go on with the same connection,
// get one end of a pair of Unix sockets in its place. A process of ours named `bypass-pump` stays in the family, has
// the connection, and carries bytes between the two (pump.h): bytes cross the border, never memory. It is forked by the
// process that leaves, while that has the family's rights, and is nobody's child. It ends with the connection.
//
// A process of the family that has the connection, too, comes for its end at its next call, by pidfd_getfd(2)
// (preload/pumped.h). So what has left the stack, and that nobody has read, lies in one place for all of them.
#pragma once

namespace bypass::socket {
struct File;
}

namespace bypass::runtime {

struct Process;

/// In a process of one thread, with no thread of ours: from here on a pump has the connection. Null; else why it has
/// not, and nothing has changed.
[[nodiscard]] const char* begin_pumping(socket::File& file);

/// Of one that is not: for the log.
void tell_unpumped(const char* problem);

/// Before rights are given up: `pump_numbers` has all connections of the process's pumped, where it has nothing else on
/// the wire. Whether the progress thread ran, and was ended for it.
[[nodiscard]] bool pump_connections(Process& process, void (*pump_numbers)());

/// Before an exec, or a spawn: `pump_numbers` has those pumped that the image is meant to use, where others of the
/// family keep the ports. Meanwhile the progress thread stops: only to be called where there are some.
void pump_before_exec(void (*pump_numbers)());

/// A descriptor of the program's end of a connection that is pumped. Where the pump has been killed it is one that is
/// reset. Below 0: it cannot be had now, as where the process can have no more descriptors; it is there.
[[nodiscard]] int fetch_pumped(socket::File& file);

}  // namespace bypass::runtime
