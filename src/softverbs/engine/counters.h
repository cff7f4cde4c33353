// What the device counts: one row a name, for statistics and tests.
#pragma once

#include <cstdint>

namespace bypass::rdma {

struct Counters {
  std::uint64_t rx_packets = 0, tx_packets = 0;  // RoCE
  std::uint64_t rx_raw = 0, tx_raw = 0;          // of raw-packet queue pairs
  // Received and dropped in silence
  std::uint64_t rx_malformed = 0;
  std::uint64_t rx_bad_icrc = 0;
  std::uint64_t rx_unknown_qp = 0;
  std::uint64_t rx_wrong_peer = 0;  // not from the address the queue pair is connected to
  std::uint64_t rx_wrong_state = 0;
  std::uint64_t rx_bad_qkey = 0;
  std::uint64_t rx_no_receive = 0;  // datagrams, UC messages and raw frames without a receive request
  std::uint64_t rx_unsteered = 0;   // other frames that no rule takes
  // The responder
  std::uint64_t duplicate_request = 0;
  std::uint64_t out_of_sequence = 0;  // packets ahead of the expected one
  std::uint64_t rx_held = 0;          // … and answers ahead of theirs, kept until their turn
  std::uint64_t tx_nak = 0, tx_rnr_nak = 0;
  // The requester
  std::uint64_t rx_nak = 0, rx_rnr_nak = 0;
  std::uint64_t timeouts = 0;
  std::uint64_t retransmitted = 0;  // packets
  std::uint64_t rx_late_response = 0;
  // Sending
  std::uint64_t no_buffer = 0;     // the port had none: tried again
  std::uint64_t tx_too_long = 0;   // raw frames that the wire has no room for
  std::uint64_t no_neighbour = 0;  // datagrams dropped because nobody answered
};

}  // namespace bypass::rdma
