// Which process has an abstract Unix socket's name.
//
// A connection to it would say so, too (SO_PEERCRED), but takes a place of the holder's queue, which nobody empties; a
// queue that is full says nothing. So the kernel is asked for its list of such sockets.
#pragma once

#include <sys/types.h>

#include <string_view>

namespace bypass::packet {

struct ClaimHolder {
  enum class Is : unsigned char { kUnknown, kGone, kThere } is = Is::kUnknown;
  uid_t user = 0;  // when kThere
  pid_t pid = 0;   // … 0: not to be seen from here (another pid namespace, no right to look)
};

/// `name`: of a stream socket, with the zero byte in front.
ClaimHolder holder_of(std::string_view name);

}  // namespace bypass::packet
