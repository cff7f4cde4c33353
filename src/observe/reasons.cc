#include "observe/reasons.h"

#include <array>
#include <cstddef>

namespace bypass::observe {
namespace {

constexpr auto kReasons = std::to_array<ReasonInfo>({
    {"none", "no reason was recorded"},
    {"no_port_configured", "BYPASS_PORT names no port"},
    {"config_problem", "the configuration has a problem, so nothing is bypassed (`bypass config` shows it)"},
    {"no_route", "no port of the bypass routes to the address (BYPASS_ADDR, BYPASS_GATEWAY)"},
    {"rule_kernel", "a rule leaves it to the kernel"},
    {"rule_fail", "a rule forbids it"},
    {"loopback", "loopback addresses stay with the kernel"},
    {"dns", "DNS stays with the kernel unless the server's address is in a port's prefix"},
    {"af_unsupported", "the address family is not IPv4 (or IPv4 in IPv6)"},
    {"socket_type_unsupported", "the socket is neither a TCP nor a UDP socket"},
    {"option_unsupported", "the program set a socket option that only the kernel has"},
    {"flag_unsupported", "the program passed a flag that only the kernel has"},
    {"port_unavailable", "the port could not be opened"},
    {"port_not_open", "the port was not open yet when the socket had to be decided"},
    {"plugin_missing", "the plugin of this kind of port is not installed"},
    {"not_built", "this part of libbypass is not built yet"},
    {"address_not_ours", "the local address belongs to no port"},
    {"address_of_kernel", "the kernel owns the same address on the same interface: both would answer"},
    {"arena_unavailable", "the memory that processes share could not be set up"},
    {"rlimit_fsize", "the limit on file sizes (RLIMIT_FSIZE) forbids the memory that processes share"},
    {"no_memory", "the memory budget is used up (BYPASS_MEMORY)"},
    {"escaped_fdopen", "the program uses stdio on the socket, which reads past us"},
    {"escaped_exec", "the program ran another one that inherited the socket, and could not go on with it"},
    {"escaped_io_uring", "the program uses io_uring, which reads past us"},
    {"escaped_syscall", "the program made a system call by itself, which goes past us"},
    {"escaped_passed", "the program passed the socket to another process"},
    {"forked_child", "a forked process cannot share the stack yet"},
    {"stats_unavailable", "the stats file could not be made"},
    {"no_shared_memory", "the two ends of a connection within the host could not agree on shared memory"},
    {"shared_memory_lost",
     "a connection within the host had to end because of what its other end did in shared memory"},
    {"no_rdma", "no RDMA connection to a peer was made: its TCP connections carry the bytes"},
    {"rdma_lost", "an RDMA connection to a peer was lost; TCP carried the bytes until there was another"},
    {"no_shm_link", "no memory is shared with a peer on this host: its connections over the port carry the bytes"},
    {"shm_link_lost",
     "memory shared with a peer on this host was lost; its connections over the port carried the bytes until memory "
     "was shared "
     "again"},
    {"unguarded",
     "the kernel may refuse this process's connections when another process of its family ends, until a process has "
     "taken the port over"},
    {"local_after",
     "a connection within the host has not moved to shared memory: it has made too few calls yet "
     "(BYPASS_LOCAL_AFTER), or its other end has refused"},
    {"link_down", "a port's link is down and its connections wait: nothing answers at the other end of the wire"},
    {"peer_plain",
     "the other end of a connection is not on libbypass, or has no faster path in common with this one: another "
     "user's, another BYPASS_RUN_DIR, BYPASS_LOCAL=off, or no RDMA device (BYPASS_RDMA)"},
    {"no_lane",
     "the link to an accelerated peer has no room for more connections: TCP carries them over the port "
     "(BYPASS_MEMORY)"},
    {"syscall_filter",
     "the program is under a filter of system calls (seccomp) that refuses a call which the library needs, or kills "
     "a process that makes it: its sockets are the kernel's"},
    {"address_conflict", "another host claims the port's address: each peer reaches the host that it heard last"},
    {"in_handler",
     "a signal handler made a call that needs set-up, which is left to a later call: the handler may have interrupted "
     "malloc"},
    {"gave_up_rights",
     "the process has given up rights (setuid, capset): it left the memory that it shared with other processes, "
     "and its sockets there are the kernel's"},
    {"shares_with_less",
     "a process that has given up rights shares memory with processes that still have them, and can harm those"},
    {"syn_flood",
     "more connections are half-open than a listener keeps (tcp.syn_queue): SYN cookies are sent, and connections made "
     "from them stay on plain TCP"},
    {"run_dir_elsewhere",
     "another user has the usual name of the run directory, so another directory is used: processes that began before "
     "share no memory with this one"},
    {"port_lent",
     "the port serves the workers that have given up rights; the process that keeps its rights uses the kernel"},
    {"no_interrupts",
     "no receive interrupt of a port's card comes: a sleeping program looks at the card every 0.5 to 4 ms"},
    {"pumped",
     "processes that may not share memory use the connection, by a socket of the kernel's: the process bypass-pump "
     "carries its bytes to and from the port"},
    {"other_network",
     "the process has gone to another network namespace than the port's, and reaches what the kernel lets it reach "
     "there"},
    {"card_gone",
     "a port's card has been removed, or bound to another driver: its connections wait until it is back, as on an "
     "interface that the kernel has lost"},
    {"relayed",
     "the process has given up rights and its family keeps the port: the process bypass-relay listens and connects "
     "there for it, and processes named bypass-pump carry the bytes"},
});
static_assert(kReasons.size() == static_cast<std::size_t>(Reason::kCount), "one row a reason");

constexpr ReasonInfo kUnknown = {"unknown", "a reason that this build does not know"};

}  // namespace

std::span<const ReasonInfo> reasons() {
  return kReasons;
}

const ReasonInfo& reason_info(std::uint16_t reason) {
  return reason < kReasons.size() ? kReasons[reason] : kUnknown;
}

}  // namespace bypass::observe
