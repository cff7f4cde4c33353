// The device's counters: one row for each name, for statistics and tests.
#pragma once

#include <cstdint>

namespace bypass::rdma {

struct Counters {
  std::uint64_t rx_packets = 0, tx_packets = 0;  // RoCE
  std::uint64_t rx_raw = 0, tx_raw = 0;          // of raw-packet queue pairs
  // Received and dropped without an answer
  std::uint64_t rx_malformed = 0;
  std::uint64_t rx_bad_icrc = 0;
  std::uint64_t rx_unknown_qp = 0;
  std::uint64_t rx_wrong_peer = 0;  // not from the address that the queue pair is connected to
  std::uint64_t rx_wrong_state = 0;
  std::uint64_t rx_bad_qkey = 0;
  std::uint64_t rx_no_receive = 0;  // datagrams, UC messages and raw frames without a receive request
  std::uint64_t rx_unsteered = 0;   // other frames for which there is no rule
  // The responder
  std::uint64_t duplicate_request = 0;
  std::uint64_t out_of_sequence = 0;  // packets ahead of the expected one
  std::uint64_t rx_held = 0;          // those that were kept until their turn, and answers ahead of their turn
  std::uint64_t tx_nak = 0, tx_rnr_nak = 0;
  // The requester
  std::uint64_t rx_nak = 0, rx_rnr_nak = 0;
  std::uint64_t timeouts = 0;
  std::uint64_t retransmitted = 0;  // packets
  std::uint64_t rx_late_response = 0;
  // Sending
  std::uint64_t no_buffer = 0;     // the port had no buffer: tried again
  std::uint64_t tx_too_long = 0;   // raw frames that are too long for the wire
  std::uint64_t no_neighbour = 0;  // datagrams dropped because the neighbour did not answer
};

}  // namespace bypass::rdma
