// Receiving: moves a connection's bytes, in order, into a sink. recv() and splice() differ in the sink.
// Tests: tests/socket/stream_test.cc, tests/socket/long_copy_test.cc.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "socket/wait/socket_wait.h"

namespace bypass::socket {

class Receiving : public SocketCondition {
 public:
  /// `least`: waits for so many bytes; 0: SO_RCVLOWAT's value. Of `flags` it uses MSG_PEEK and MSG_TRUNC.
  Receiving(Socket& socket, std::size_t total, std::size_t least, int flags)
      : SocketCondition(socket, kIn), total_(total), least_(least), flags_(flags) {}

  long attempt(Guard& guard) final;
  [[nodiscard]] std::size_t done() const { return done_; }
  /// The arrival of the last byte, once bytes were moved; unset: not known, or not asked for.
  [[nodiscard]] Instant arrived() const { return arrived_; }
  /// Moves SO_PEEK_OFF, if it is set, after bytes were peeked at or read. Lock held.
  void move_peek_offset(std::size_t forward, std::size_t back) const;
  [[nodiscard]] bool wants_nothing() const { return total_ == 0; }
  [[nodiscard]] bool has_transferred() const final { return done_ != 0; }

 protected:
  ~Receiving() = default;
  using Spans = std::span<const std::span<const std::byte>>;
  /// Moves the first `bytes` of the spans. Returns how many (all, unless the sink can take no more now), or a failure.
  /// Called without the lock if there are many bytes or slow_sink() is true.
  virtual long copy_out(Spans from, std::size_t bytes) = 0;
  [[nodiscard]] virtual bool slow_sink() const { return false; }
  /// MSG_PEEK starts again from the first byte.
  virtual void begin_again() {}

 private:
  [[nodiscard]] std::size_t target() const {
    const std::size_t least = least_ != 0 ? least_ : socket_.low_water;
    return std::clamp<std::size_t>(least, 1, std::max<std::size_t>(total_, 1));
  }
  long ended();
  long peek(Guard& guard, std::size_t readable);
  long take(Guard& guard, std::size_t bytes);
  long take_some(Guard& guard, std::size_t bytes, std::size_t skip = 0);
  void note_arrival(Guard& guard, std::size_t bytes);
  /// The offset at which MSG_PEEK begins (SO_PEEK_OFF).
  [[nodiscard]] std::size_t peek_offset() const;

  std::size_t total_, least_;
  int flags_;
  std::size_t done_ = 0;
  Instant arrived_{};
  bool stopped_ = false;  // the sink took less than there was
};

/// Attempts, then waits as the socket's flags and timeouts say.
long run_receiving(Socket& socket, Receiving& receiving, int flags);

}  // namespace bypass::socket
