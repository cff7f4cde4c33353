// Pump: carries the bytes of one connection between the stack and one end of a pair of Unix sockets, whose other end is
// the program's (pump_process.h).
//
// What one side ends, the other side ends behind the last byte. A connection that is reset resets the program's end,
// and the other way round. A Unix socket reports ECONNRESET when the other end is closed with bytes unread. So one byte
// of the program's side always stays unread here: first one that was never sent, then the last that was carried on. The
// pump takes it when both sides have ended well. Where it is killed, the program's end is reset by that.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "os/message.h"
#include "socket/api.h"

namespace bypass::runtime {

class Pump {
 public:
  /// `connection`: this process's alone. `old`: what the others know it as. `end`: ours of the pair. `programs`: the
  /// program's, for who comes for it; closed here when nobody can come any more. Both are taken over.
  Pump(socket::File& connection, socket::File& old, int end, int programs)
      : connection_(connection), old_(old), end_(end), programs_(programs) {}

  /// Before the connection is here: what can fail. False: it has.
  [[nodiscard]] bool prepare();
  /// Until both sides have ended and nobody can come. False: the connection is to be reset.
  bool run();

 private:
  /// Bytes on their way in one direction.
  class Pool {
   public:
    [[nodiscard]] bool empty() const { return at_ == end_; }
    [[nodiscard]] std::span<std::byte> room() { return bytes_; }
    [[nodiscard]] std::span<std::byte> left() { return std::span(bytes_).subspan(at_, end_ - at_); }
    void fill(std::size_t from, std::size_t to) { at_ = from, end_ = to; }
    void take(std::size_t bytes) { at_ += bytes; }
    void clear() { at_ = end_; }

   private:
    std::array<std::byte, std::size_t{64} << 10> bytes_;
    std::size_t at_ = 0, end_ = 0;
  };

  bool from_wire();
  bool receive();
  bool to_program();
  bool to_wire();
  bool read_program();
  bool send();
  [[nodiscard]] bool is_over() const;
  void finish();
  void let_program_go();
  void wait();

  socket::File &connection_, &old_;
  int end_, programs_;
  int edges_ = -1;                                     // an epoll set that tells of each change of our end
  Pool in_, out_;                                      // from the wire, and to it
  bool wire_ended_ = false, told_program_ = false;     // … and the program's end has been told so
  bool program_ended_ = false, told_wire_ = false;     // … and the wire
  bool program_gone_ = false, program_reset_ = false;  // both its directions have ended; without having read all
  bool failed_ = false;                                // the connection
  bool over_ = false;
};

}  // namespace bypass::runtime
