#include "fastpath/shm/carrier_switch.h"

namespace bypass::fastpath::shm {
namespace {

/// The value of SideBlock::resumed: how many RESUMEs were sent, and in the low bit whether one more is being asked for.
constexpr std::uint32_t said_word(std::uint32_t said) {
  return said << 1;
}
constexpr std::uint32_t asking_word(std::uint32_t said) {
  return said_word(said) | 1U;
}

}  // namespace

bool claim_resume(const RingView& out, std::uint32_t said) {
  out.own->resumed.store(asking_word(said), std::memory_order_seq_cst);
  const bool mine = out.peer->stopped.load(std::memory_order_seq_cst) == 0;
  out.own->resumed.store(said_word(mine ? said + 1 : said), std::memory_order_seq_cst);
  return mine;
}

void take_back_resume(const RingView& out, std::uint32_t said) {
  out.own->resumed.store(said_word(said), std::memory_order_seq_cst);
}

void take_back_stop(const RingView& in) {
  in.own->stopped.store(0, std::memory_order_seq_cst);
}

bool claim_stop(const RingView& in, std::uint32_t heard) {
  // A writer asks only for the time of two stores. If it is off the processor between them, or lies, this end does not
  // wait.
  constexpr int kLooks = 10'000;
  in.own->stopped.store(1, std::memory_order_seq_cst);
  for (int i = 0; i < kLooks; i++) {
    const std::uint32_t word = in.peer->resumed.load(std::memory_order_seq_cst);
    if (word == said_word(heard)) return true;
    if (word != asking_word(heard)) break;
    __builtin_ia32_pause();
  }
  take_back_stop(in);
  return false;
}

}  // namespace bypass::fastpath::shm
