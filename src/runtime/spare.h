// The spare: memory that the children of a process with rights inherit, unmapped, for those of them that give rights
// up.
//
// The first that does makes an arena of it, a copy of its own; the others of the same standing map that, so that they
// stay one family (docs/trust.md). A process that keeps the rights never maps it. A process without the rights of its
// parent has no descriptor of it.
//
// A lock of the file (fcntl(2), F_OFD_SETLK) says that a driver serves that family (driver.h). The kernel gives it up
// with the last of the driver's processes.
#pragma once

namespace bypass::runtime::spare {

/// Before a fork, where the process may give rights up that matter and has none yet: a memfd and some system calls,
/// once. A child of a process without one has none.
void make();
/// Its descriptor; -1: there is none.
int descriptor();
/// Around the closing of all that was the parent's own, in a child.
void hide();
void show();
/// This process has it no longer.
void drop();

/// Whether the family of fewer rights has a driver, or that is not to be seen from here. A system call.
bool is_driven();
/// In a driver: takes the lock, under a descriptor of its own, which takes the place of the inherited one. False: it is
/// another's.
bool begin_driving();

}  // namespace bypass::runtime::spare
