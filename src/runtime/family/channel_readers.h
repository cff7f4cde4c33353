// ChannelReaders: which processes have the other end of a Unix socket, and so may receive what is passed by it.
#pragma once

#include "socket/family/family.h"

namespace bypass::runtime {

/// Whether some process of the family has the other end, and no other process that this one can see. The kernel tells
/// nobody of descriptors in /proc but processes of the same rights, and root: others are not seen. A peer that has not
/// been accepted yet is that of the process which listens.
///
/// A yes is kept for as long as no process of the family forks or executes a program. Otherwise this looks at each
/// descriptor of each process. It allocates nothing.
[[nodiscard]] bool is_read_by(socket::Family& family, int channel);
/// Before an exec: whether it leaves a Unix socket open that a process of the family has made, and whose other end only
/// the family has, or that listens.
[[nodiscard]] bool exec_leaves_channel(socket::Family& family);

}  // namespace bypass::runtime
