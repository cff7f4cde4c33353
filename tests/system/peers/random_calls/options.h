// The options of sockets that sequences read and set. Each has the same value in any two runs on one machine.
// Left out: SO_PEEK_OFF (a connection that several processes have takes none), SO_TIMESTAMP (the library has times also
// of bytes that came before), TCP_QUICKACK (its value depends on times),
// SO_DONTROUTE and SO_MARK (the socket is the kernel's then).
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>

namespace random_calls {

struct Option {
  int level, name;
  const char* label;
};

#define OPTION(level, name) \
  Option {                  \
    level, name, #name      \
  }

inline constexpr std::array kOptions{
    OPTION(SOL_SOCKET, SO_REUSEADDR),
    OPTION(SOL_SOCKET, SO_KEEPALIVE),
    OPTION(SOL_SOCKET, SO_LINGER),
    OPTION(SOL_SOCKET, SO_LINGER),
    OPTION(SOL_SOCKET, SO_ERROR),
    OPTION(SOL_SOCKET, SO_TYPE),
    OPTION(SOL_SOCKET, SO_DOMAIN),
    OPTION(SOL_SOCKET, SO_PROTOCOL),
    OPTION(SOL_SOCKET, SO_ACCEPTCONN),
    OPTION(SOL_SOCKET, SO_RCVLOWAT),
    OPTION(SOL_SOCKET, SO_OOBINLINE),
    OPTION(SOL_SOCKET, SO_BROADCAST),
    OPTION(SOL_SOCKET, SO_REUSEPORT),
    OPTION(SOL_SOCKET, SO_PRIORITY),
    OPTION(SOL_SOCKET, SO_RCVTIMEO),

    OPTION(SOL_SOCKET, SO_SNDLOWAT),
    OPTION(SOL_SOCKET, SO_NO_CHECK),

    OPTION(IPPROTO_TCP, TCP_NODELAY),
    OPTION(IPPROTO_TCP, TCP_CORK),
    OPTION(IPPROTO_TCP, TCP_KEEPIDLE),
    OPTION(IPPROTO_TCP, TCP_KEEPINTVL),
    OPTION(IPPROTO_TCP, TCP_KEEPCNT),
    OPTION(IPPROTO_TCP, TCP_SYNCNT),
    OPTION(IPPROTO_TCP, TCP_DEFER_ACCEPT),

    OPTION(IPPROTO_TCP, TCP_USER_TIMEOUT),
    OPTION(IPPROTO_TCP, TCP_LINGER2),
    OPTION(IPPROTO_TCP, TCP_NOTSENT_LOWAT),
    OPTION(IPPROTO_IP, IP_TOS),
    OPTION(IPPROTO_IP, IP_TTL),
    OPTION(IPPROTO_IP, IP_RECVTOS),
    OPTION(IPPROTO_IP, IP_PKTINFO),
    OPTION(IPPROTO_IP, IP_MTU_DISCOVER),
    OPTION(IPPROTO_IP, IP_FREEBIND),
    OPTION(IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT),
};

#undef OPTION

}  // namespace random_calls
