#include "backends/packet/frames/sender.h"

#include <cerrno>

#include "backends/packet/libc.h"

namespace bypass::packet {

Sender::Sender() {
  for (std::size_t i = 0; i < kBatch; i++) {
    pieces_[i][0] = {&headers_[i], sizeof headers_[i]};
    messages_[i].msg_hdr.msg_iov = pieces_[i].data();
  }
}

void Sender::describe(std::span<Packet* const> frames) {
  for (std::size_t i = 0; i < frames.size(); i++) {
    headers_[i] = header_of(*frames[i]);
    messages_[i].msg_hdr.msg_iovlen = 1 + gather(*frames[i], std::span(pieces_[i]).subspan(1));
  }
}

Sender::Outcome Sender::send(int socket, std::span<Packet* const> frames) {
  describe(frames);
  Outcome outcome;
  while (outcome.done < frames.size()) {
    const auto left = static_cast<unsigned>(frames.size() - outcome.done);
    const int sent = libc.sendmmsg(socket, &messages_[outcome.done], left, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) {
      for (int i = 0; i < sent; i++) outcome.bytes += frames[outcome.done++]->frame_len;
    } else if (errno == EAGAIN) {
      break;
    } else {
      outcome.done++;
      outcome.refused++;
    }
  }
  return outcome;
}

}  // namespace bypass::packet
