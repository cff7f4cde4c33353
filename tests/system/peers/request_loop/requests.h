// Requests and answers over a transport that loses packets, in the manner of eRPC (Kalia and others, "Datacenter RPCs
// can be General and Fast", NSDI 2019): sessions with a window of requests each, which the client sends again when no
// answer comes. The server runs each request once, and sends its last answer again when it is asked again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "transport.h"

namespace request_loop {

struct Shape {
  std::uint64_t count = 100'000;  // requests
  std::uint32_t size = 64;        // bytes of a packet, its header included
  unsigned endpoints = 1, sessions = 1, window = 1;
  std::uint64_t lose = 0;  // the server takes no notice of each so manieth packet, and answers as many requests in vain
};

/// First in each packet.
struct Header {
  std::uint32_t session, slot;  // a slot has one request at a time
  std::uint64_t number;         // of the slot's requests, from 1
};

/// What the server has to say at the end.
struct Totals {
  std::uint64_t run = 0, lost = 0, malformed = 0;
};

class Client {
 public:
  /// `transport` outlives the client.
  Client(Transport& transport, const Shape& shape);
  /// Until each request has its answer. A wrong answer ends the program.
  void run();
  /// Microseconds from a request's first posting to its answer.
  std::vector<double> us;
  std::uint64_t sent_again = 0;

 private:
  struct Slot {
    std::uint64_t number = 0;  // 0: none yet
    bool is_waiting = false;
    std::uint64_t begun_ns = 0, sent_ns = 0;
  };
  void ask(std::uint32_t place, std::uint64_t now_ns);
  void send(std::uint32_t place, std::uint64_t now_ns);
  void take(std::span<const std::byte> packet, std::uint64_t now_ns);
  void send_late_ones_again(std::uint64_t now_ns);

  Transport& transport_;
  const Shape& shape_;
  std::vector<Slot> slots_;  // sessions times window
  std::vector<std::byte> packet_;
  std::uint64_t asked_ = 0;
};

class Server {
 public:
  Server(Transport& transport, const Shape& shape);
  /// One batch of packets. False: none has come.
  bool serve();
  Totals totals;

 private:
  struct Slot {
    std::uint64_t number = 0;
    std::vector<std::byte> answer;
  };
  void take(std::span<const std::byte> packet);
  /// Whether this is one of the packets that get lost.
  bool loses();

  Transport& transport_;
  const Shape& shape_;
  std::vector<Slot> slots_;
  std::uint64_t packets_ = 0;
};

}  // namespace request_loop
