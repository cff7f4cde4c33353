#include "socket/options/option_kinds.h"

#include <linux/tcp.h>
#include <linux/udp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

namespace bypass::socket {

namespace {

using enum OptionKind;

// Some may be newer than the headers of this build.
enum : int {
  kSoRcvmark = 75,
  kSoPassPidfd = 76,
  kSoPeerPidfd = 77,
  kSoRcvPriority = 82,
  kIpLocalPortRange = 51,
  kIpProtocol = 52,
  kTcpAoAddKey = 38,
  kTcpAoRepair = 42,
  kTcpIsMptcp = 43,
  kTcpRtoMaxMs = 44,
  kTcpRtoMinUs = 45,
  kTcpDelackMaxUs = 46,
};

#define BYPASS_OPTION(level, name) level, name, #name

constexpr OptionName kNames[] = {
    {BYPASS_OPTION(SOL_SOCKET, SO_ACCEPTCONN), kBuilt, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_ATTACH_BPF), kRefused, kRefused},
    {BYPASS_OPTION(SOL_SOCKET, SO_ATTACH_FILTER), kRefused, kRefused},  // to be read: SO_GET_FILTER
    {BYPASS_OPTION(SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF), kRefused, kRefused},
    {BYPASS_OPTION(SOL_SOCKET, SO_ATTACH_REUSEPORT_EBPF), kRefused, kRefused},
    {BYPASS_OPTION(SOL_SOCKET, SO_BINDTODEVICE), kRefused, kRefused},
    {BYPASS_OPTION(SOL_SOCKET, SO_BINDTOIFINDEX), kRefused, kRefused},
    {BYPASS_OPTION(SOL_SOCKET, SO_BROADCAST), kBuilt, kBuilt},
    {BYPASS_OPTION(SOL_SOCKET, SO_BSDCOMPAT), kHarmless, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_BUF_LOCK), kHarmless, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_BUSY_POLL), kHarmless, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_BUSY_POLL_BUDGET), kHarmless, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_CNX_ADVICE), kHarmless, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_COOKIE), kHarmless, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_DEBUG), kHarmless, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_DETACH_FILTER), kHarmless, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_DETACH_REUSEPORT_BPF), kHarmless, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_DOMAIN), kBuilt, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_DONTROUTE), kKernels, kKernels},
    {BYPASS_OPTION(SOL_SOCKET, SO_ERROR), kBuilt, kBuilt},
    {BYPASS_OPTION(SOL_SOCKET, SO_INCOMING_CPU), kHarmless, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_INCOMING_NAPI_ID), kHarmless, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_KEEPALIVE), kBuilt, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_LINGER), kBuilt, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_LOCK_FILTER), kHarmless, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_MARK), kKernels, kKernels},
    {BYPASS_OPTION(SOL_SOCKET, SO_MAX_PACING_RATE), kRefused, kRefused},
    {BYPASS_OPTION(SOL_SOCKET, SO_MEMINFO), kHarmless, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_NETNS_COOKIE), kHarmless, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_NOFCS), kHarmless, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_NO_CHECK), kHarmless, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_OOBINLINE), kHarmless, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_PASSCRED), kHarmless, kHarmless},
    {SOL_SOCKET, kSoPassPidfd, "SO_PASSPIDFD", kHarmless, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_PASSSEC), kHarmless, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_PEEK_OFF), kBuilt, kRefused},
    {BYPASS_OPTION(SOL_SOCKET, SO_PEERCRED), kHarmless, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_PEERGROUPS), kHarmless, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_PEERNAME), kBuilt, kBuilt},
    {SOL_SOCKET, kSoPeerPidfd, "SO_PEERPIDFD", kHarmless, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_PEERSEC), kHarmless, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_PREFER_BUSY_POLL), kHarmless, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_PRIORITY), kHarmless, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_PROTOCOL), kBuilt, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_RCVBUF), kBuilt, kBuilt},
    {BYPASS_OPTION(SOL_SOCKET, SO_RCVBUFFORCE), kBuilt, kBuilt},
    {BYPASS_OPTION(SOL_SOCKET, SO_RCVLOWAT), kBuilt, kHarmless},
    {SOL_SOCKET, kSoRcvmark, "SO_RCVMARK", kHarmless, kRefused},
    {SOL_SOCKET, kSoRcvPriority, "SO_RCVPRIORITY", kHarmless, kRefused},
    {BYPASS_OPTION(SOL_SOCKET, SO_RCVTIMEO), kBuilt, kBuilt},
    {BYPASS_OPTION(SOL_SOCKET, SO_RESERVE_MEM), kHarmless, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_REUSEADDR), kBuilt, kBuilt},
    {BYPASS_OPTION(SOL_SOCKET, SO_REUSEPORT), kBuilt, kBuilt},
    {BYPASS_OPTION(SOL_SOCKET, SO_RXQ_OVFL), kHarmless, kRefused},
    {BYPASS_OPTION(SOL_SOCKET, SO_SELECT_ERR_QUEUE), kHarmless, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_SNDBUF), kBuilt, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_SNDBUFFORCE), kBuilt, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_SNDLOWAT), kBuilt, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_SNDTIMEO), kBuilt, kBuilt},
    {BYPASS_OPTION(SOL_SOCKET, SO_TIMESTAMP), kBuilt, kBuilt},
    {BYPASS_OPTION(SOL_SOCKET, SO_TIMESTAMPNS), kBuilt, kBuilt},
    {BYPASS_OPTION(SOL_SOCKET, SO_TIMESTAMPING), kBuilt, kBuilt},
    {BYPASS_OPTION(SOL_SOCKET, SO_TIMESTAMP_NEW), kRefused, kRefused},
    {BYPASS_OPTION(SOL_SOCKET, SO_TIMESTAMPNS_NEW), kRefused, kRefused},
    {BYPASS_OPTION(SOL_SOCKET, SO_TIMESTAMPING_NEW), kRefused, kRefused},
    {BYPASS_OPTION(SOL_SOCKET, SO_TXREHASH), kHarmless, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_TXTIME), kKernels, kKernels},
    {BYPASS_OPTION(SOL_SOCKET, SO_TYPE), kBuilt, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_WIFI_STATUS), kHarmless, kHarmless},
    {BYPASS_OPTION(SOL_SOCKET, SO_ZEROCOPY), kBuilt, kRefused},

    {BYPASS_OPTION(IPPROTO_TCP, TCP_NODELAY), kBuilt, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_MAXSEG), kBuilt, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_CORK), kBuilt, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_KEEPIDLE), kBuilt, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_KEEPINTVL), kBuilt, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_KEEPCNT), kBuilt, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_SYNCNT), kBuilt, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_LINGER2), kBuilt, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_DEFER_ACCEPT), kBuilt, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_WINDOW_CLAMP), kRefused, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_INFO), kBuilt, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_QUICKACK), kBuilt, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_CONGESTION), kBuilt, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_MD5SIG), kRefused, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_MD5SIG_EXT), kRefused, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS), kRefused, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_THIN_DUPACK), kHarmless, kHarmless},  // since Linux 4.18
    {BYPASS_OPTION(IPPROTO_TCP, TCP_USER_TIMEOUT), kBuilt, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_REPAIR), kRefused, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_REPAIR_QUEUE), kRefused, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_QUEUE_SEQ), kRefused, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_REPAIR_OPTIONS), kRefused, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_REPAIR_WINDOW), kRefused, kHarmless},
    // For servers; net.ipv4.tcp_fastopen has it off by default.
    {BYPASS_OPTION(IPPROTO_TCP, TCP_FASTOPEN), kHarmless, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_FASTOPEN_KEY), kHarmless, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE), kHarmless, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_FASTOPEN_CONNECT), kRefused, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_TIMESTAMP), kRefused, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_NOTSENT_LOWAT), kBuilt, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_CC_INFO), kHarmless, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_SAVE_SYN), kRefused, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_SAVED_SYN), kRefused, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_ULP), kRefused, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_INQ), kBuilt, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_TX_DELAY), kRefused, kHarmless},
    {BYPASS_OPTION(IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE), kRefused, kHarmless},
    {IPPROTO_TCP, kTcpAoAddKey, "TCP_AO_ADD_KEY", kRefused, kHarmless},
    {IPPROTO_TCP, kTcpAoAddKey + 1, "TCP_AO_DEL_KEY", kRefused, kHarmless},
    {IPPROTO_TCP, kTcpAoAddKey + 2, "TCP_AO_INFO", kRefused, kHarmless},
    {IPPROTO_TCP, kTcpAoAddKey + 3, "TCP_AO_GET_KEYS", kRefused, kHarmless},
    {IPPROTO_TCP, kTcpAoRepair, "TCP_AO_REPAIR", kRefused, kHarmless},
    {IPPROTO_TCP, kTcpIsMptcp, "TCP_IS_MPTCP", kHarmless, kHarmless},
    {IPPROTO_TCP, kTcpRtoMaxMs, "TCP_RTO_MAX_MS", kRefused, kHarmless},
    {IPPROTO_TCP, kTcpRtoMinUs, "TCP_RTO_MIN_US", kRefused, kHarmless},
    {IPPROTO_TCP, kTcpDelackMaxUs, "TCP_DELACK_MAX_US", kRefused, kHarmless},

    {BYPASS_OPTION(IPPROTO_IP, IP_TOS), kBuilt, kBuilt},
    {BYPASS_OPTION(IPPROTO_IP, IP_TTL), kBuilt, kBuilt},
    {BYPASS_OPTION(IPPROTO_IP, IP_HDRINCL), kHarmless, kHarmless},
    {BYPASS_OPTION(IPPROTO_IP, IP_OPTIONS), kRefused, kRefused},
    {BYPASS_OPTION(IPPROTO_IP, IP_ROUTER_ALERT), kHarmless, kHarmless},
    {BYPASS_OPTION(IPPROTO_IP, IP_RECVOPTS), kHarmless, kRefused},
    {BYPASS_OPTION(IPPROTO_IP, IP_RETOPTS), kHarmless, kRefused},
    {BYPASS_OPTION(IPPROTO_IP, IP_PKTINFO), kHarmless, kBuilt},
    {BYPASS_OPTION(IPPROTO_IP, IP_PKTOPTIONS), kHarmless, kHarmless},
    {BYPASS_OPTION(IPPROTO_IP, IP_MTU_DISCOVER), kHarmless, kBuilt},
    {BYPASS_OPTION(IPPROTO_IP, IP_RECVERR), kRefused, kBuilt},
    {BYPASS_OPTION(IPPROTO_IP, IP_RECVERR_RFC4884), kRefused, kRefused},
    {BYPASS_OPTION(IPPROTO_IP, IP_RECVTTL), kHarmless, kBuilt},
    {BYPASS_OPTION(IPPROTO_IP, IP_RECVTOS), kHarmless, kBuilt},
    {BYPASS_OPTION(IPPROTO_IP, IP_MTU), kBuilt, kBuilt},
    {BYPASS_OPTION(IPPROTO_IP, IP_FREEBIND), kHarmless, kHarmless},
    {BYPASS_OPTION(IPPROTO_IP, IP_IPSEC_POLICY), kRefused, kRefused},
    {BYPASS_OPTION(IPPROTO_IP, IP_XFRM_POLICY), kRefused, kRefused},
    {BYPASS_OPTION(IPPROTO_IP, IP_PASSSEC), kHarmless, kHarmless},
    {BYPASS_OPTION(IPPROTO_IP, IP_TRANSPARENT), kRefused, kRefused},
    {BYPASS_OPTION(IPPROTO_IP, IP_RECVORIGDSTADDR), kHarmless, kBuilt},
    {BYPASS_OPTION(IPPROTO_IP, IP_MINTTL), kRefused, kRefused},
    {BYPASS_OPTION(IPPROTO_IP, IP_NODEFRAG), kHarmless, kHarmless},
    {BYPASS_OPTION(IPPROTO_IP, IP_CHECKSUM), kHarmless, kRefused},
    {BYPASS_OPTION(IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT), kHarmless, kHarmless},
    {BYPASS_OPTION(IPPROTO_IP, IP_RECVFRAGSIZE), kHarmless, kRefused},
    {IPPROTO_IP, kIpLocalPortRange, "IP_LOCAL_PORT_RANGE", kRefused, kHarmless},
    {IPPROTO_IP, kIpProtocol, "IP_PROTOCOL", kHarmless, kHarmless},
    // Only the kernel half does multicast.
    {BYPASS_OPTION(IPPROTO_IP, IP_MULTICAST_IF), kHarmless, kHarmless},
    {BYPASS_OPTION(IPPROTO_IP, IP_MULTICAST_TTL), kHarmless, kBuilt},
    {BYPASS_OPTION(IPPROTO_IP, IP_MULTICAST_LOOP), kHarmless, kHarmless},
    {BYPASS_OPTION(IPPROTO_IP, IP_MULTICAST_ALL), kHarmless, kHarmless},
    {BYPASS_OPTION(IPPROTO_IP, IP_ADD_MEMBERSHIP), kHarmless, kHarmless},
    {BYPASS_OPTION(IPPROTO_IP, IP_DROP_MEMBERSHIP), kHarmless, kHarmless},
    {BYPASS_OPTION(IPPROTO_IP, IP_BLOCK_SOURCE), kHarmless, kHarmless},
    {BYPASS_OPTION(IPPROTO_IP, IP_UNBLOCK_SOURCE), kHarmless, kHarmless},
    {BYPASS_OPTION(IPPROTO_IP, IP_ADD_SOURCE_MEMBERSHIP), kHarmless, kHarmless},
    {BYPASS_OPTION(IPPROTO_IP, IP_DROP_SOURCE_MEMBERSHIP), kHarmless, kHarmless},
    {BYPASS_OPTION(IPPROTO_IP, IP_MSFILTER), kHarmless, kHarmless},
    {BYPASS_OPTION(IPPROTO_IP, MCAST_JOIN_GROUP), kHarmless, kHarmless},
    {BYPASS_OPTION(IPPROTO_IP, MCAST_LEAVE_GROUP), kHarmless, kHarmless},
    {BYPASS_OPTION(IPPROTO_IP, MCAST_JOIN_SOURCE_GROUP), kHarmless, kHarmless},
    {BYPASS_OPTION(IPPROTO_IP, MCAST_LEAVE_SOURCE_GROUP), kHarmless, kHarmless},
    {BYPASS_OPTION(IPPROTO_IP, MCAST_BLOCK_SOURCE), kHarmless, kHarmless},
    {BYPASS_OPTION(IPPROTO_IP, MCAST_UNBLOCK_SOURCE), kHarmless, kHarmless},
    {BYPASS_OPTION(IPPROTO_IP, MCAST_MSFILTER), kHarmless, kHarmless},
    {BYPASS_OPTION(IPPROTO_IP, IP_UNICAST_IF), kKernels, kKernels},

    {BYPASS_OPTION(IPPROTO_UDP, UDP_CORK), kHarmless, kBuilt},
    {BYPASS_OPTION(IPPROTO_UDP, UDP_ENCAP), kHarmless, kRefused},
    {BYPASS_OPTION(IPPROTO_UDP, UDP_NO_CHECK6_TX), kHarmless, kHarmless},
    {BYPASS_OPTION(IPPROTO_UDP, UDP_NO_CHECK6_RX), kHarmless, kHarmless},
    {BYPASS_OPTION(IPPROTO_UDP, UDP_SEGMENT), kHarmless, kBuilt},
    {BYPASS_OPTION(IPPROTO_UDP, UDP_GRO), kHarmless, kBuilt},  // nothing is coalesced, which is allowed

    // The wire has only IPv4. These options concern IPv6, which goes by the kernel. Options that IPv4 has, too, are
    // built.
    {BYPASS_OPTION(IPPROTO_IPV6, IPV6_V6ONLY), kBuilt, kBuilt},
    {BYPASS_OPTION(IPPROTO_IPV6, IPV6_TCLASS), kBuilt, kBuilt},
    {BYPASS_OPTION(IPPROTO_IPV6, IPV6_UNICAST_HOPS), kBuilt, kBuilt},
    {BYPASS_OPTION(IPPROTO_IPV6, IPV6_RECVPKTINFO), kHarmless, kBuilt},
    {BYPASS_OPTION(IPPROTO_IPV6, IPV6_ADDRFORM), kRefused, kRefused},
};
#undef BYPASS_OPTION

}  // namespace

std::span<const OptionName> option_names() {
  return kNames;
}

const OptionName* find_option_name(int level, int name) {
  for (const OptionName& each : kNames)
    if (each.level == level && each.name == name) return &each;
  return nullptr;
}

OptionKind option_kind(FileKind of, int level, int name) {
  if (const OptionName* const known = find_option_name(level, name)) return known->kind(of);
  return level == IPPROTO_IPV6 ? kHarmless : kRefused;
}

bool turns_off(std::span<const std::byte> value) {
  return value.size() <= sizeof(int) && std::ranges::all_of(value, [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace bypass::socket
