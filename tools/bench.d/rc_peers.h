// What two processes that make RC links need without sockets: the plugin, and a line for the records that framed TCP
// would carry.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "fastpath/framed/control.h"
#include "stack/address.h"
#include "two_ends.h"

namespace bypass::bench {

/// Of an option; what is none ends the program.
IpAddress read_address(const std::string& text);

/// libbypass-verbs.so of this build, for a program in its folder bin.
Backend& load_verbs_plugin();

/// Records over a connected socket, as a connection in framed mode carries them. Never waits.
class RecordLine {
 public:
  explicit RecordLine(int fd) : fd_(fd) { need(fcntl(fd_, F_SETFL, O_NONBLOCK) == 0, "the line"); }
  RecordLine(const RecordLine&) = delete;
  RecordLine& operator=(const RecordLine&) = delete;
  ~RecordLine() { close(fd_); }

  /// `body`: of LINK_* and DATA.
  void say(const fastpath::Record& record, std::span<const std::byte> body = {});
  /// False: some of what was said waits for room.
  bool flush();
  /// Nothing more will be said.
  void end();
  /// Calls each(record, body) for what has come; the body of a DATA record in pieces of any size. False: nothing.
  template <typename Each>
  bool hear(Each&& each) {
    std::array<std::byte, 16384> room;
    const ssize_t got = read(fd_, room.data(), room.size());
    if (got == 0) ended_ = true;
    if (got <= 0) return false;
    for (std::span<const std::byte> rest(room.data(), static_cast<std::size_t>(got)); !rest.empty();) {
      const fastpath::Decoder::Step step = decoder_.next(rest);
      const std::span<const std::byte> data = rest.first(step.taken).last(step.data);
      rest = rest.subspan(step.taken);
      if (step.event == fastpath::Decoder::Event::kBad) die("the line says what is no record");
      if (step.event == fastpath::Decoder::Event::kRecord) each(step.record, decoder_.link_body());
      if (step.event == fastpath::Decoder::Event::kData)
        each(fastpath::Record{.type = fastpath::RecordType::kData, .length = step.data}, data);
    }
    return true;
  }
  [[nodiscard]] bool ended() const { return ended_; }
  [[nodiscard]] int descriptor() const { return fd_; }

 private:
  int fd_;
  bool ended_ = false;
  std::vector<std::byte> waiting_;
  fastpath::Decoder decoder_;
};

}  // namespace bypass::bench
