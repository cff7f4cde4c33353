#include "backends/verbs/send_queue.h"

namespace bypass::verbs {
namespace {

unsigned flag_if(bool on, ibv_send_flags flag) {
  return on ? static_cast<unsigned>(flag) : 0U;
}

unsigned offloads_of(const Packet& frame) {
  return flag_if((frame.flags & (kTxIpChecksum | kTxL4Checksum)) != 0, IBV_SEND_IP_CSUM);
}

}  // namespace

void SendQueue::use(ibv_qp* queue, ibv_qp_ex* extended, std::uint32_t memory_key, const Limits& limits) {
  queue_ = queue;
  extended_ = extended;
  key_ = memory_key;
  limits_ = limits;
}

// False: the frame is in more pieces than a request holds.
bool SendQueue::describe(const Packet& frame, Request& out) const {
  const bool large = (frame.flags & kTxTso) != 0;
  out.headers = large ? static_cast<std::uint16_t>(frame.l2_len + frame.l3_len + frame.l4_len) : 0;
  out.copied = !large && frame.frame_len <= limits_.inline_bytes;
  out.count = 0;
  std::uint32_t skipped = out.headers;  // the headers lie in the head, and are given separately
  for (const Packet* piece = &frame; piece != nullptr; piece = piece->next_segment, skipped = 0) {
    if (piece->len <= skipped) continue;
    if (out.count == limits_.pieces) return false;
    out.pieces[out.count++] = {reinterpret_cast<std::uint64_t>(piece->data + skipped), piece->len - skipped, key_};
  }
  return true;
}

SendQueue::Posted SendQueue::post(std::span<Packet* const> frames, std::uint64_t first) {
  std::size_t n = 0;
  while (n < frames.size() && describe(*frames[n], requests_[n])) n++;
  if (n == 0) return {0, 1, true};
  Posted posted = extended_ != nullptr ? post_extended(frames.first(n), first) : post_list(frames.first(n), first);
  if (posted.refused == 0 && n < frames.size()) posted.refused = 1;
  return posted;
}

SendQueue::Posted SendQueue::post_list(std::span<Packet* const> frames, std::uint64_t first) {
  for (std::size_t i = 0; i < frames.size(); i++) {
    Request& from = requests_[i];
    ibv_send_wr& to = list_[i];
    to.wr_id = first + i;
    to.next = i + 1 < frames.size() ? &list_[i + 1] : nullptr;
    to.sg_list = from.pieces.data();
    to.num_sge = static_cast<int>(from.count);
    to.opcode = from.headers != 0 ? IBV_WR_TSO : IBV_WR_SEND;
    to.send_flags = offloads_of(*frames[i]) | flag_if(from.copied, IBV_SEND_INLINE);
    if (from.headers != 0) to.tso = {frames[i]->data, from.headers, frames[i]->tso_mss};
  }
  list_[frames.size() - 1].send_flags |= IBV_SEND_SIGNALED;
  ibv_send_wr* refused = nullptr;
  if (ibv_post_send(queue_, list_.data(), &refused) == 0) return {frames.size(), 0, true};
  if (refused == nullptr) return {frames.size(), 0, false};  // nobody says which frame: any of them may be on its way
  const auto taken = static_cast<std::size_t>(refused - list_.data());
  return {taken, 1, taken == 0};
}

// Takes all or nothing. The library does not say which request was wrong.
SendQueue::Posted SendQueue::post_extended(std::span<Packet* const> frames, std::uint64_t first) {
  ibv_wr_start(extended_);
  for (std::size_t i = 0; i < frames.size(); i++) {
    extended_->wr_id = first + i;
    extended_->wr_flags = offloads_of(*frames[i]) | flag_if(i + 1 == frames.size(), IBV_SEND_SIGNALED);
    build(*frames[i], requests_[i]);
  }
  if (ibv_wr_complete(extended_) == 0) return {frames.size(), 0, true};
  return {0, frames.size(), true};
}

void SendQueue::build(const Packet& frame, const Request& request) {
  if (request.headers != 0)
    ibv_wr_send_tso(extended_, frame.data, request.headers, frame.tso_mss);
  else
    ibv_wr_send(extended_);
  const ibv_sge& head = request.pieces[0];
  if (!request.copied) return ibv_wr_set_sge_list(extended_, request.count, request.pieces.data());
  if (request.count == 1) return ibv_wr_set_inline_data(extended_, frame.data, head.length);
  std::array<ibv_data_buf, kMostSegments> buffers;
  for (std::size_t i = 0; i < request.count; i++)
    buffers[i] = {reinterpret_cast<void*>(request.pieces[i].addr), request.pieces[i].length};
  ibv_wr_set_inline_data_list(extended_, request.count, buffers.data());
}

}  // namespace bypass::verbs
