#include "fastpath/shm/switch.h"

namespace bypass::fastpath::shm {
namespace {

enum Resumed : std::uint32_t { kNot, kAsks, kSaid };

}  // namespace

bool claim_resume(const RingView& out) {
  out.own->resumed.store(kAsks, std::memory_order_seq_cst);
  const bool mine = out.peer->stopped.load(std::memory_order_seq_cst) == 0;
  out.own->resumed.store(mine ? kSaid : kNot, std::memory_order_seq_cst);
  return mine;
}

void end_resume(const RingView& out) {
  out.own->resumed.store(kNot, std::memory_order_seq_cst);
}

bool claim_stop(const RingView& in) {
  // A writer asks for the time of two stores. One that is off the processor between them, or lies, is not waited for.
  constexpr int kLooks = 10'000;
  in.own->stopped.store(1, std::memory_order_seq_cst);
  for (int i = 0; i < kLooks; i++) {
    const std::uint32_t resumed = in.peer->resumed.load(std::memory_order_seq_cst);
    if (resumed == kNot) return true;
    if (resumed != kAsks) break;
    __builtin_ia32_pause();
  }
  in.own->stopped.store(0, std::memory_order_seq_cst);
  return false;
}

}  // namespace bypass::fastpath::shm
