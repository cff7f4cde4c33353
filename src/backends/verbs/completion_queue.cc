#include "backends/verbs/completion_queue.h"

#include <algorithm>
#include <array>

namespace bypass::verbs {

bool CompletionQueue::create(const Verbs& verbs, ibv_context* context, Of kind, std::uint32_t depth,
                             ibv_comp_channel* channel, bool timed) {
  kind_ = kind;
  if ((timed && create_extended(context, depth, channel, true)) || create_extended(context, depth, channel, false))
    return true;
  queue_ = verbs.create_cq(context, static_cast<int>(depth), nullptr, channel, 0);
  return queue_ != nullptr;
}

// A device refuses what it does not have in different ways (EOPNOTSUPP, ENOSYS, EINVAL). If something else is wrong,
// the plain call fails, too.
bool CompletionQueue::create_extended(ibv_context* context, std::uint32_t depth, ibv_comp_channel* channel,
                                      bool timed) {
  ibv_cq_init_attr_ex wanted{};
  wanted.cqe = depth;
  wanted.channel = channel;
  if (kind_ == Of::kReceiving) wanted.wc_flags = IBV_WC_EX_WITH_BYTE_LEN;
  if (timed) wanted.wc_flags |= IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
  wanted.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
  wanted.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;  // the holder of the shard's lock alone uses the device
  extended_ = ibv_create_cq_ex(context, &wanted);
  if (extended_ == nullptr) return false;
  queue_ = ibv_cq_ex_to_cq(extended_);
  timed_ = timed;
  return true;
}

void CompletionQueue::destroy(const Verbs& verbs) {
  if (queue_ != nullptr) (void)verbs.destroy_cq(queue_);
  queue_ = nullptr;
  extended_ = nullptr;
  timed_ = false;
}

std::size_t CompletionQueue::poll(std::span<Completion> out) {
  return extended_ != nullptr ? poll_extended(out) : poll_plain(out);
}

std::size_t CompletionQueue::poll_plain(std::span<Completion> out) {
  std::array<ibv_wc, 64> found;
  const std::size_t most = std::min(out.size(), found.size());
  const int got = ibv_poll_cq(queue_, static_cast<int>(most), found.data());
  for (int i = 0; i < got; i++) {
    const ibv_wc& wc = found[static_cast<std::size_t>(i)];
    out[static_cast<std::size_t>(i)] = {wc.wr_id, wc.status, wc.byte_len, (wc.wc_flags & IBV_WC_IP_CSUM_OK) != 0, 0};
  }
  return static_cast<std::size_t>(std::max(got, 0));
}

Completion CompletionQueue::current() const {
  Completion c{extended_->wr_id, extended_->status, 0, false, 0};
  if (kind_ == Of::kSending || c.status != IBV_WC_SUCCESS) return c;
  c.bytes = ibv_wc_read_byte_len(extended_);
  c.checksums_good = (ibv_wc_read_wc_flags(extended_) & IBV_WC_IP_CSUM_OK) != 0;
  if (timed_) c.time = ibv_wc_read_completion_ts(extended_);
  return c;
}

std::size_t CompletionQueue::poll_extended(std::span<Completion> out) {
  ibv_poll_cq_attr all{};
  if (out.empty() || ibv_start_poll(extended_, &all) != 0) return 0;  // then no poll has begun
  std::size_t n = 0;
  do out[n++] = current();
  while (n < out.size() && ibv_next_poll(extended_) == 0);
  ibv_end_poll(extended_);
  return n;
}

}  // namespace bypass::verbs
