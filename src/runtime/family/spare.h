// The spare: memory that the children of a process with rights inherit, unmapped, for those of them that give rights
// up.
//
// The first that does makes an arena of it, a copy of its own; the others of the same standing map that, so that they
// stay one family (docs/trust.md). A process that keeps the rights never maps it. A process without the rights of its
// parent has no descriptor of it.
//
// Locks of the file (fcntl(2), F_OFD_SETLK) say that a driver serves that family (driver.h): one that it has the ports,
// one that an heir waits for that one, one that it lets others in. Another one, of a process (F_SETLK), says that a
// member of the family that keeps the rights has the ports. The kernel gives each up with the last of the processes
// that have it.
//
// Beside the memory there is an epoll set on which nobody waits. A process that gives rights up puts its listeners
// there. The kernel takes a socket out when the last descriptor of it is closed, in whatever process. So the driver,
// which has none of them, reads in /proc/self/fdinfo which of them are open (proc(5), epoll(7)).
#pragma once

#include <cstdint>
#include <vector>

namespace bypass::runtime::spare {

/// Before a fork, where the process may give rights up that matter and has none yet: a memfd and some system calls,
/// once. A child of a process without one has none.
void make();
/// Its descriptors: of the memory, of the set and of what recall() writes to; -1: there is none.
int descriptor();
int sockets_descriptor();
int recall_descriptor();
/// Around the closing of all that was the parent's own, in a child.
void hide();
void show();
/// This process has it no longer.
void drop();

/// Whether a driver or an heir has the ports, or that is not to be seen from here. A system call.
bool is_driven();
/// Whether it serves, and lets others in. A system call.
bool takes_members();
/// In a driver: takes the lock of the ports, under a descriptor of its own, which takes the place of the inherited one.
/// False: it is another's.
bool begin_driving();
/// In an heir, a process of one thread: waits until no process of the driver is left and the lock of the ports is its
/// own. False: that cannot be waited for.
bool inherit_driving();
/// In a driver: whether it lets others in. False: another one does.
bool take_members(bool on);

/// Before a member opens the ports, or has them where there has been no spare. False: a driver has them. System calls,
/// where there is a spare.
bool claim_ports();
/// It has them no longer.
void leave_ports();
/// In a driver: whether a member of the family that keeps the rights has the ports. A system call.
bool are_ports_claimed();

/// Of a process for which a driver waits: by this descriptor it is called. Its forked children have it, too. The keeper
/// is that driver's, and may not be the one that the family knows of: each process may have one that waits for it.
void keep_call(int fd, std::uint32_t keeper, std::uint64_t start_time);
/// Does not need it any more. The driver ends when nobody does.
void drop_call();
/// Calls it. False: none waits, or it has been called from here.
bool call_driver();
/// Whether the one that was to be called lives. Some system calls.
bool called_lives();

/// A process that keeps the rights waits for what the driver's family has the ports for: asks that one for them
/// (hand_back.h). Nothing, where there is no spare. A system call, which does not wait.
void recall();
/// Whether it has asked a moment ago: for the next 100 calls.
[[nodiscard]] bool is_recalling();
/// In a driver: until somebody asks. False: that cannot be waited for.
[[nodiscard]] bool await_recall();
/// Before ports are lent: who has asked until now meant an earlier driver, which has ended. A system call.
void forget_recalls();

/// Puts a socket into the set, before its process asks whether there is a driver.
void note(int fd);
/// In a driver, while it has rights: what open_sockets() reads.
[[nodiscard]] bool open_list();
/// The inodes of those sockets that are open in any process. Some system calls.
[[nodiscard]] std::vector<std::uint64_t> open_sockets();

}  // namespace bypass::runtime::spare
