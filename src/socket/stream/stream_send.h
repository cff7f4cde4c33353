// Sending: moves bytes from a source into a connection's send ring. send() and sendfile() differ in the source.
// Tests: tests/socket/stream_test.cc, tests/socket/long_copy_test.cc.
#pragma once

#include <cstddef>

#include "os/io_cursor.h"
#include "socket/wait/socket_wait.h"

namespace bypass::socket {

class Sending : public SocketCondition {
 public:
  Sending(Socket& socket, std::size_t total, bool more) : SocketCondition(socket, kOut), total_(total), more_(more) {}

  long attempt(Guard& guard) final;
  [[nodiscard]] std::size_t done() const { return done_; }
  [[nodiscard]] bool has_transferred() const final { return done_ != 0; }
  /// True if the failure comes with SIGPIPE.
  [[nodiscard]] bool is_pipe() const { return pipe_; }

 protected:
  ~Sending() = default;
  /// Fills the first `bytes` of the room. Returns how many, 0 at the source's end, or a failure. Called without the
  /// lock if there are many bytes or slow_source() is true.
  virtual long copy_in(const tcp::Room& room, std::size_t bytes) = 0;
  [[nodiscard]] virtual bool slow_source() const { return false; }

 private:
  long refusal();
  long full(Context& ctx);
  long broken(Error error);
  long pipe();
  long fill(Guard& guard, const tcp::Room& room);

  std::size_t total_, done_ = 0;
  bool more_;
  bool pipe_ = false;
};

/// Reads a piece of sendfile's source, from *offset (which it advances) or from the file's own position. Returns what
/// sendfile would.
long read_file(int in_fd, off_t* offset, std::byte* to, std::size_t bytes);

/// Attempts, then waits as the socket's flags and timeouts say.
long run_sending(Socket& socket, Sending& sending, int flags);

}  // namespace bypass::socket
