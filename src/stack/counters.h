// The stack's counters and drop reasons: one table (field, unit, help). Plain integers, written by the
// holder of the shard's lock; `observe` copies them out with relaxed stores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace bypass {

// X(name, unit, help). Every drop reason begins with drop_ and has a test.
#define BYPASS_STACK_COUNTERS(X)                                                    \
  X(rx_frames, "frames", "frames taken from the ports")                             \
  X(tx_frames, "frames", "frames handed to the ports")                              \
  X(drop_eth_short, "frames", "shorter than an Ethernet header")                    \
  X(drop_eth_type, "frames", "neither IPv4 nor ARP")                                \
  X(drop_eth_not_ours, "frames", "unicast to another MAC address")                  \
  X(drop_arp_malformed, "frames", "ARP that does not parse")                        \
  X(drop_arp_conflict, "frames", "ARP from a stranger that claims our address")     \
  X(drop_arp_ignored, "frames", "ARP that is not addressed to us")                  \
  X(arp_requests, "frames", "ARP requests sent")                                    \
  X(arp_replies, "frames", "ARP replies sent")                                      \
  X(arp_failed, "neighbours", "neighbours that did not answer")                     \
  X(drop_arp_queue, "packets", "packets that waited for a neighbour in vain")       \
  X(drop_ip_malformed, "packets", "IPv4 header wrong: version, length, checksum")   \
  X(drop_ip_not_ours, "packets", "to an address that is not ours")                  \
  X(drop_ip_source, "packets", "from an address that no other host can have")       \
  X(ip_fragments_in, "fragments", "fragments taken")                                \
  X(ip_reassembled, "packets", "packets put together from fragments")               \
  X(ip_fragmented, "packets", "packets sent in fragments")                          \
  X(ip_fragments_out, "fragments", "fragments sent")                                \
  X(drop_ip_fragment, "fragments", "length, offset or total wrong")                 \
  X(drop_ip_fragment_duplicate, "fragments", "received before")                     \
  X(drop_ip_fragment_overlap, "fragments", "of packets whose fragments overlap")    \
  X(drop_ip_fragment_timeout, "fragments", "waited 30 s for the others")            \
  X(drop_ip_fragment_memory, "fragments", "given up: no room for all that wait")    \
  X(drop_ip_fragment_ecn, "fragments", "of packets that are ECN-capable in part")   \
  X(drop_ip_fragment_device, "fragments", "not sent: the device's ring is full")    \
  X(drop_ip_protocol, "packets", "a protocol that is not TCP, UDP or ICMP")         \
  X(drop_no_route, "packets", "sent to an address no port routes to")               \
  X(drop_no_frame, "packets", "not sent: the port has no empty frame")              \
  X(drop_no_memory, "frames", "no memory to show them to a family (BYPASS_MEMORY)") \
  X(drop_loop_full, "packets", "to ourselves, with too many of them waiting")       \
  X(drop_icmp_malformed, "packets", "ICMP that does not parse or sums wrong")       \
  X(drop_icmp_ignored, "packets", "ICMP of a type that asks nothing of us")         \
  X(drop_icmp_rate, "packets", "ICMP answers withheld by the rate limit")           \
  X(icmp_echo, "packets", "echo requests answered")                                 \
  X(icmp_errors_in, "packets", "ICMP errors taken")                                 \
  X(icmp_errors_out, "packets", "ICMP errors sent")                                 \
  X(drop_udp_malformed, "datagrams", "UDP length or checksum wrong")                \
  X(drop_udp_no_socket, "datagrams", "to a port nobody has")                        \
  X(drop_udp_queue_full, "datagrams", "the socket's receive buffer was full")       \
  X(drop_udp_device, "datagrams", "not sent: the device's ring stayed full")        \
  X(udp_in, "datagrams", "datagrams delivered")                                     \
  X(udp_out, "datagrams", "datagrams sent")                                         \
  BYPASS_TCP_COUNTERS(X)

// TCP's own part of the table.
#define BYPASS_TCP_COUNTERS(X)                                                               \
  X(tcp_segments_in, "segments", "segments taken")                                           \
  X(tcp_segments_out, "segments", "segments sent, retransmissions included")                 \
  X(tcp_retransmits, "segments", "segments sent again")                                      \
  X(tcp_rto, "events", "retransmission timers expired")                                      \
  X(tcp_fast_retransmits, "events", "recoveries entered by duplicate ACKs or SACK")          \
  X(tcp_zero_window_probes, "segments", "probes of a closed window")                         \
  X(tcp_delayed_acks, "segments", "ACKs sent by the delayed-ACK timer")                      \
  X(tcp_resets_in, "segments", "RST accepted")                                               \
  X(tcp_resets_out, "segments", "RST sent")                                                  \
  X(tcp_resets_forgotten, "segments", "RST that a wire lost just then would lose for good")  \
  X(tcp_memory_waits, "writes", "found no memory for their bytes (BYPASS_MEMORY), and wait") \
  X(tcp_announcement_walks, "walks", "looks at all connections for hosts that announced")    \
  X(tcp_challenge_acks, "segments", "challenge ACKs sent (RFC 5961)")                        \
  X(tcp_active_opens, "connections", "connects started")                                     \
  X(tcp_passive_opens, "connections", "connections accepted from the wire")                  \
  X(tcp_orphans_dropped, "connections", "closed ones reset: too many, or memory used up")    \
  X(tcp_cookies_out, "segments", "SYN cookies sent: a listener's SYN queue was full")        \
  X(tcp_cookies_in, "connections", "made of a SYN cookie that came back")                    \
  X(tcp_cookies_bad, "segments", "ACK that might have held a SYN cookie, and did not")       \
  X(tcp_established, "connections", "connections that became established")                   \
  X(tcp_timeouts, "connections", "connections given up after unanswered retransmissions")    \
  X(tcp_time_wait_reused, "connections", "TIME_WAIT ended early by a new SYN")               \
  X(steer_lost, "flows", "could not be steered to us: the kernel keeps them")                \
  X(numbers_lost, "numbers", "given back to the kernel before their connection was over")    \
  X(drop_tcp_malformed, "segments", "header or option length wrong")                         \
  X(drop_tcp_checksum, "segments", "checksum wrong")                                         \
  X(drop_tcp_no_connection, "segments", "no connection and no listener: answered with RST")  \
  X(drop_tcp_out_of_window, "segments", "outside of the receive window")                     \
  X(drop_tcp_paws, "segments", "timestamp older than the last (RFC 7323 §5)")                \
  X(drop_tcp_bad_ack, "segments", "acknowledges what was never sent")                        \
  X(drop_tcp_bad_syn, "segments", "SYN inside a connection")                                 \
  X(drop_tcp_bad_rst, "segments", "RST whose sequence number is not exact (RFC 5961)")       \
  X(drop_tcp_accept_queue, "segments", "the listener's accept queue was full")               \
  X(drop_tcp_syn_queue, "segments", "the listener's SYN queue was full")                     \
  X(drop_tcp_memory, "segments", "no memory for the connection or its bytes")                \
  X(drop_tcp_reassembly, "segments", "ahead of a hole, where no more of them may wait")      \
  X(drop_tcp_after_close, "segments", "data for a socket that is closed: answered with RST") \
  X(drop_tcp_duplicate, "segments", "wholly received before")

struct StackCounters {
#define BYPASS_COUNTER_FIELD(name, unit, help) std::uint64_t name = 0;
  BYPASS_STACK_COUNTERS(BYPASS_COUNTER_FIELD)
#undef BYPASS_COUNTER_FIELD
};

struct CounterInfo {
  const char* name;
  const char* unit;
  const char* help;
};

/// The table in the order of StackCounters' fields.
std::span<const CounterInfo> stack_counter_table();

}  // namespace bypass
