// A program that does everything that a reliable connection can do. Both ends work at once, at random, and everything
// is checked: bytes, lengths, immediates, what atomic operations found, and the order of completions.
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "softverbs/fabric.h"

namespace bypass::rdma::test {

struct ExchangeConfig {
  PairConfig pair{};
  bool late = false;       // receive requests come when the peer has been told to wait for them
  bool drains = false;     // send queues are drained now and then, and go on
  bool strangers = false;  // neither end takes the other for one of ours: lost packets are repaired by going back
};

class Exchange {
 public:
  Exchange(const sim::Impairment& impairment, std::uint64_t seed, const ExchangeConfig& config);
  /// Runs to its end, with that many operations of each side. Failures are failures of the test.
  void run(int operations);
  [[nodiscard]] int drained() const { return drained_; }

  Pair pair;

 private:
  struct Piece {  // bytes that are to be found at a place
    const std::byte* at;
    sim::Bytes bytes;
  };
  struct Request {
    ibv_wc_opcode opcode;
    std::size_t length = 0;
    std::vector<Piece> pieces{};
    bool signalled = false;
  };
  struct Message {  // that takes a receive request
    ibv_wc_opcode opcode;
    bool imm;
    sim::Bytes bytes;
    const std::byte* at;  // where a write has put it; null: it is in the receive request's elements
  };
  struct Side {
    Half& half;
    Half& peer;
    std::uint64_t salt;
    int left = 0;
    std::vector<Request> requests{};  // by wr_id
    std::vector<Message> messages{};  // in their order
    std::uint64_t done = 0, unsignalled = 0, posted = 0, received = 0, writes = 0;
    std::uint64_t sum = 0, word = 0;  // what the peer's words are to be
    std::vector<Piece> written{};     // the last of each place in the peer's memory
    Instant ready{};                  // for more receive requests, when they are to be late
    bool draining = false;
    std::uint64_t next_drain = 10, held_back = 0;  // requests from here on wait for the draining to be over
  };

  bool step(Side& side);
  void post_receives(Side& side);
  void check_receive(Side& side, const Side& other, const ibv_wc& wc);
  void check_send(Side& side, const ibv_wc& wc);
  void drain(Side& side);
  void post_operation(Side& side);
  void post_send(Side& side, bool gather);
  void post_inline(Side& side);
  void post_write(Side& side, bool imm);
  void post_read(Side& side);
  void post_forward(Side& side);
  void post_add(Side& side);
  void post_swap(Side& side);
  void post(Side& side, SendRequest request, std::span<const ibv_sge> sges, Request expected);
  sim::Bytes fill(Side& side, std::size_t length);
  std::size_t some_length();
  void check_end(Side& side);

  ExchangeConfig config_;
  sim::Random random_;
  Side a_, b_;
  int drained_ = 0;
};

}  // namespace bypass::rdma::test
