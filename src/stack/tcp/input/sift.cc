// Removes another protocol's records from the receive queue, in place: in each buffer the program's bytes become one
// run. Bytes that are already ready do not move: a thread may be reading them without the lock.
#include <algorithm>
#include <cstring>
#include <utility>

#include "stack/tcp/input/input.h"
#include "stack/tcp/input/receive_window.h"
#include "stack/tcp/output/output.h"
#include "stack/tcp/output/overlay.h"
#include "stack/tcp/state.h"

namespace bypass::tcp {
namespace {

class Sieve {
 public:
  explicit Sieve(const Sifter& sifter) : sifter_(sifter) {}

  std::uint32_t looked_at = 0;  // bytes that left rx_bytes
  std::uint32_t ready = 0;      // the part of them that is the program's
  [[nodiscard]] bool stopped() const { return stopped_; }

  /// Sifts a packet's payload from `done` bytes on. If `done` is not 0, the payload lies in one buffer.
  void sift(Packet& frame, std::uint32_t done);

 private:
  struct Run {  // a run of a buffer's bytes
    std::uint32_t begin, end;
    [[nodiscard]] std::uint32_t size() const { return end - begin; }
  };
  Run sift_buffer(std::byte* data, Run all, std::uint32_t done);
  static void join(std::byte* data, Run& kept, Run piece, bool fixed);

  const Sifter& sifter_;
  bool stopped_ = false;
};

// Makes the shorter of the two moves, unless the first run must stay.
void Sieve::join(std::byte* data, Run& kept, Run piece, bool fixed) {
  if (kept.size() == 0 && !fixed) {
    kept = piece;
  } else if (kept.end == piece.begin) {
    kept.end = piece.end;
  } else if (fixed || piece.size() <= kept.size()) {
    std::memmove(data + kept.end, data + piece.begin, piece.size());
    kept.end += piece.size();
  } else {
    std::memmove(data + piece.begin - kept.size(), data + kept.begin, kept.size());
    kept = {piece.begin - kept.size(), piece.end};
  }
}

Sieve::Run Sieve::sift_buffer(std::byte* data, Run all, std::uint32_t done) {
  Run kept{all.begin, all.begin + done};
  std::uint32_t at = kept.end;
  while (at != all.end && !stopped_) {
    const Sifted sifted = sifter_.next(sifter_.self, {data + at, all.end - at});
    stopped_ = sifted.as == Sifted::As::kRest || sifted.as == Sifted::As::kStop;
    if (stopped_) break;
    looked_at += sifted.bytes;
    if (sifted.as == Sifted::As::kProgram) {
      ready += sifted.bytes;
      join(data, kept, {at, at + sifted.bytes}, done != 0);
    }
    at += sifted.bytes;
  }
  if (at != all.end) join(data, kept, {at, all.end}, done != 0);
  return kept;
}

void Sieve::sift(Packet& frame, std::uint32_t done) {
  std::uint32_t skip = frame.offset, left = frame.payload_len;
  bool first = true;
  frame.payload_len = 0;
  for (Packet* p = &frame; p != nullptr && left != 0; p = p->next_segment) {
    const std::uint32_t begin = std::min(skip, p->len);
    const std::uint32_t n = std::min(p->len - begin, left);
    skip -= begin;
    left -= n;
    if (n == 0) continue;
    const Run kept = stopped_ ? Run{begin, begin + n} : sift_buffer(p->data, {begin, begin + n}, first ? done : 0);
    frame.payload_len += kept.size();
    // For the first buffer with payload, `offset` says where the payload begins; for later buffers, `data` does.
    if (first && kept.size() != 0) {
      frame.offset += kept.begin - begin;
      p->len = kept.end;
    } else if (first) {
      p->len = begin;
    } else {
      p->data += kept.begin;
      p->len = kept.size();
    }
    first = false;
  }
}

// How many bytes were gathered at the end of a packet after it was sifted.
std::uint32_t gathered_since(const Tcb& tcb, const Packet& frame) {
  std::uint32_t behind = 0;
  for (const Packet* p = frame.queue_next; p != nullptr; p = p->queue_next) behind += p->payload_len;
  return tcb.rx_bytes - behind;
}

void unlink_behind(Tcb& tcb, Packet* before, Packet* frame) {
  (before != nullptr ? before->queue_next : tcb.rx_head) = frame->queue_next;
  if (tcb.rx_tail == frame) tcb.rx_tail = before;
  frame->queue_next = nullptr;
}

}  // namespace

void sift(Engine& engine, Context& ctx, Tcb& tcb, const Sifter& sifter) {
  if (tcb.rx_bytes == 0) return;
  Env env{engine.impl(), ctx};
  Overlay& overlay = *tcb.overlay;
  Sieve sieve(sifter);
  if (overlay.sifted != nullptr) {
    Packet& frame = *overlay.sifted;
    const std::uint32_t since = gathered_since(tcb, frame);
    if (since != 0) sieve.sift(frame, frame.payload_len - since);
  }
  Packet* before = overlay.sifted;
  Packet* frame = before != nullptr ? before->queue_next : tcb.rx_head;
  while (frame != nullptr && !sieve.stopped()) {
    Packet* next = frame->queue_next;
    sieve.sift(*frame, 0);
    if (frame->payload_len == 0) {
      unlink_behind(tcb, before, frame);
      release_held(env, tcb, frame);
    } else {
      before = frame;
    }
    frame = next;
  }
  overlay.sifted = before;
  overlay.ready += sieve.ready;
  tcb.rx_bytes -= sieve.looked_at;
  tune_receive_limit(env, tcb, sieve.looked_at);
  if (receives(tcb.state) && update_due(tcb)) ack_soon(env, tcb);
}

}  // namespace bypass::tcp
