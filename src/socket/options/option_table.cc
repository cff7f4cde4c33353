// The options of setsockopt(2) that the stack has. option_kinds.cc lists all others.
#include <netinet/in.h>

#include "socket/options/option_rows.h"
#include "socket/options/options.h"
#include "socket/stream/stream_calls.h"
#include "stack/tcp/open/listener.h"

namespace bypass::socket {

std::array<std::span<const OptionRow>, 3> option_rows() {
  return {option::socket_level_rows(), option::tcp_level_rows(), option::ip_level_rows()};
}

const OptionRow* find_option(const Socket& socket, int level, int name) {
  if (level == IPPROTO_IPV6 && socket.domain != AF_INET6) return nullptr;  // the kernel says so
  for (const auto rows : option_rows())
    for (const OptionRow& row : rows)
      if (row.level == level && row.name == name) return &row;
  return nullptr;
}

tcp::Options tcp_options(const Socket& socket) {
  if (connection_of(socket) != nullptr) return tcp_engine().options(*socket.tcb);
  return socket.details != nullptr ? socket.details->tcp : tcp::Options{};
}

void set_tcp_options(Guard& guard, Socket& socket, const tcp::Options& options) {
  if (socket.details != nullptr) socket.details->tcp = options;
  if (socket.kind == FileKind::kListener) {
    if (socket.listener != nullptr) socket.listener->options = options;
  } else if (connection_of(socket) != nullptr) {
    stream::set_options(guard.context(), *socket.tcb, options);
  }
}

}  // namespace bypass::socket
