#include "fastpath/link/link_end.h"

namespace bypass::fastpath {

Write LinkEnd::own_message(Op op) {
  Write write;
  write.notify = true;
  write.immediate = to_immediate({op, 0, kNoLane});
  return write;
}

/// Credits that are due go before everything else: they use no credit.
bool LinkEnd::next_own_write(Write& out) {
  if (credits_.has_much_news() || (owes_credit_ && credits_.has_news())) {
    const std::uint64_t returned = credits_.tell();
    out = {};
    out.to = offsetof(LinkBlock, messages_returned);
    out.small_length = sizeof returned;
    std::memcpy(out.small.data(), &returned, sizeof returned);
    return true;
  }
  if (owes_credit_) {
    owes_credit_ = false;
    out = own_message(Op::kLinkCredit);
    return true;
  }
  if (!owes_pong_) return false;
  owes_pong_ = false;
  out = own_message(Op::kLinkPong);
  return true;
}

Reason LinkEnd::look(std::span<const std::byte> memory) {
  if (memory.size() < sizeof(LinkBlock)) return Reason::kNone;
  return credits_.on_returned(read_counter(memory.data() + offsetof(LinkBlock, messages_returned)));
}

void LinkEnd::on_own_message(Op op) {
  if (op == Op::kLinkBlocked) owes_credit_ = true;
  if (op == Op::kLinkCredit) blocked_told_ = false;
  if (op == Op::kLinkPing) owes_pong_ = true;
}

}  // namespace bypass::fastpath
