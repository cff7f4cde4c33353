// The spare: memory that the children of a process with rights inherit, unmapped, for the children that give rights up.
//
// The first child that gives rights up makes an arena in it, a copy of its own. Others of the same standing map that
// arena, so that they stay one family (docs/trust.md). A process that keeps the rights never maps it. A process without
// the rights of its parent has no descriptor for it.
//
// Locks of the file (fcntl(2), F_OFD_SETLK) say that a driver serves that family (driver.h): one that the driver has
// the ports, one that an heir waits for the first lock, one that the driver lets others in. Another lock, of a process
// (F_SETLK), says that a member of the family that keeps the rights has the ports, and one that a process makes the
// copy. The kernel releases each lock with the last process that has it.
//
// Beside the memory there is an epoll set on which nobody waits. A process that gives rights up puts its listeners
// there. The kernel takes a socket out when the last descriptor for it is closed, in any process. So the driver, which
// has none of these sockets, reads in /proc/self/fdinfo which of them are still open (proc(5), epoll(7)).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace bypass::runtime::spare {

/// Called before a fork, where the process may give up rights that matter and has no spare yet. It makes a memfd and
/// some system calls, once. A child of a process without a spare has none.
void make();
/// The descriptors of the memory, of the set, and of what recall() writes to; -1: there is no spare.
int descriptor();
int sockets_descriptor();
int recall_descriptor();
/// Called in a child, around the closing of everything that was the parent's own.
void hide();
void show();
/// This process does not have the spare any more.
void drop();
/// What the process's next image needs of it (life/next_image.h), and how that image takes it up. -1: there is no
/// spare.
[[nodiscard]] std::array<int, 3> descriptors();
void take_up(const std::array<int, 3>& descriptors);

/// Whether a driver or an heir has the ports. Also true if that cannot be seen from here. A system call.
bool is_driven();
/// Whether the driver serves and lets others in. A system call.
bool takes_members();
/// Called in a driver: takes the lock of the ports, under a descriptor of its own, which replaces the inherited one.
/// False: another driver has the lock.
bool begin_driving();
/// Called in an heir, a process of one thread: waits until no process of the driver is left and the heir has the lock
/// of the ports. False: it cannot wait for that.
bool inherit_driving();
/// Called in a driver: sets whether it lets others in. False: another driver does.
bool take_members(bool on);

/// Called before a member opens the ports, or by a member that has had them without a spare. False: a driver has the
/// ports. Makes system calls if there is a spare.
bool claim_ports();
/// This process does not have the ports any more.
void leave_ports();
/// Called in a driver: whether a member of the family that keeps the rights has the ports. A system call.
bool are_ports_claimed();

/// The process makes a copy in the spare, and holds it until it drops the spare or ends. A system call each.
void claim_copy();
[[nodiscard]] bool is_being_copied();

/// For a process for which a driver waits: keeps the descriptor by which the process calls that driver. Its forked
/// children have the descriptor, too. `keeper`: that driver's keeper. The family may know another one, since each
/// process may have a driver that waits for it.
void keep_call(int fd, std::uint32_t keeper, std::uint64_t start_time);
/// The process does not need the driver any more. The driver ends when no process does.
void drop_call();
/// Calls the driver. False: no driver waits, or this process has called it already.
bool call_driver();
/// Whether the driver that was to be called lives. Some system calls.
bool called_lives();

/// A process that keeps the rights waits for what the driver's family has the ports for: asks that one for them
/// (hand_back.h). Nothing, where there is no spare. A system call, which does not wait.
void recall();
/// Whether this process has asked a moment ago: true for the next 100 calls.
[[nodiscard]] bool is_recalling();
/// Called in a driver: waits until somebody asks. False: it cannot wait for that.
[[nodiscard]] bool await_recall();
/// Before ports are lent: who has asked until now meant an earlier driver, which has ended. A system call.
void forget_recalls();

/// Puts a socket into the set. Must come before the process asks whether there is a driver.
void note(int fd);
/// Called in a driver while it has rights: opens what open_sockets() reads.
[[nodiscard]] bool open_list();
/// The inodes of the sockets in the set that are open in any process. Some system calls.
[[nodiscard]] std::vector<std::uint64_t> open_sockets();

}  // namespace bypass::runtime::spare
