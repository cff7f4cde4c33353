// Tells which process has an abstract Unix socket's name.
//
// A connection to the socket would tell, too (SO_PEERCRED). But it takes a place in the holder's queue, which nobody
// empties, and a full queue tells nothing. So the kernel is asked for its list of such sockets.
#pragma once

#include <sys/types.h>

#include <string_view>

namespace bypass::packet {

struct ClaimHolder {
  enum class Is : unsigned char { kUnknown, kGone, kThere } is = Is::kUnknown;
  uid_t user = 0;  // for kThere
  pid_t pid = 0;   // … 0: not visible from here (another pid namespace, or no right to look)
};

/// `name`: of a stream socket, with the zero byte in front.
ClaimHolder holder_of(std::string_view name);

}  // namespace bypass::packet
