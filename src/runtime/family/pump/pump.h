// Pump: carries the bytes of one connection between the stack and one end of a pair of Unix sockets. The program has
// the other end (pump_process.h).
//
// When one side ends, the pump ends the other side behind the last byte. When the connection is reset, the pump resets
// the program's end, and the other way round. A Unix socket reports ECONNRESET when the other end is closed with bytes
// unread. So one byte from the program always stays unread here: first a byte that was never sent, then the last byte
// that was carried on. The pump reads it when both sides have ended well. If the pump is killed, the unread byte resets
// the program's end.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "os/message.h"
#include "socket/api.h"

namespace bypass::runtime {

class Pump {
 public:
  /// `connection`: only this process has it. `old`: the object by which other processes know the connection. `end`: our
  /// end of the pair. `programs`: the program's end, for processes that come for it; it is closed here when no process
  /// can come any more. Both descriptors are taken over.
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
  int edges_ = -1;                                  // an epoll set that tells each change of our end
  Pool in_, out_;                                   // from the wire, and to the wire
  bool wire_ended_ = false, told_program_ = false;  // the wire has ended, and the program's end knows it
  bool program_ended_ = false, told_wire_ = false;  // the program has ended, and the wire knows it
  // both directions of the program's end have ended; it left bytes unread
  bool program_gone_ = false, program_reset_ = false;
  bool failed_ = false;  // the connection has failed
  bool over_ = false;
};

}  // namespace bypass::runtime
