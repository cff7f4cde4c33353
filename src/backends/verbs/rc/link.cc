#include "backends/verbs/rc/link.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "fastpath/lane/ring.h"

namespace bypass::verbs {

using fastpath::Arrival;
using fastpath::LinkBlock;
using fastpath::LinkState;
using fastpath::Write;

// --- Setting up

int RcLink::make(std::uint32_t window, std::uint64_t random) {
  if (memory_.size() < sizeof(LinkBlock)) return EINVAL;
  std::memset(memory_.data(), 0, std::min(memory_.size(), sizeof(LinkBlock) + kMostPacketBytes));
  wanted_receives_ = window + fastpath::MessageCredits::kUncounted + RcQueuePair::kRefill;
  depth_ = context_.depth;
  if (const int error = pair_.make(memory_, wanted_receives_, random, this); error != 0) return error;
  inline_bytes_ = pair_.inline_bytes();
  refill();
  return failed_ ? EIO : 0;
}

int RcLink::connect(const fastpath::RcEnd& peer, std::uint32_t psn) {
  remote_ = peer.address;
  remote_bytes_ = peer.size;
  remote_key_ = peer.key;
  return pair_.connect(peer, psn);
}

void RcLink::post_full_packet() {
  const std::size_t room = std::min<std::uint64_t>(memory_.size(), remote_bytes_);
  const std::size_t bytes = std::min<std::size_t>(pair_.packet_bytes(), room - std::min(room, sizeof(LinkBlock)));
  ibv_sge zeros{pair_.address() + sizeof(LinkBlock), static_cast<std::uint32_t>(bytes), pair_.own_key()};
  ibv_send_wr request{};
  request.wr_id = posted_ + 1;
  request.sg_list = &zeros;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_WRITE;
  request.wr.rdma.remote_addr = remote_ + sizeof(LinkBlock);
  request.wr.rdma.rkey = remote_key_;
  ibv_send_wr* refused = nullptr;
  if (failed_ || ibv_post_send(pair_.pair(), &request, &refused) != 0) return fail();
  posted_++;
  unsignalled_++;
}

// --- Writing

std::size_t RcLink::room() const {
  return failed_ ? 0 : depth_ - static_cast<std::size_t>(posted_ - completed_);
}

// `inside`: the bytes are copied into the request as it is posted, so they may lie anywhere.
std::size_t RcLink::describe(const Write& write, std::span<ibv_sge> out, bool inside) const {
  if (write.from[0].empty() && write.from[1].empty()) {
    if (write.small_length != 0) out[0] = {reinterpret_cast<std::uintptr_t>(write.small.data()), write.small_length, 0};
    return write.small_length != 0 ? 1 : 0;
  }
  std::size_t n = 0;
  for (const std::span<const std::byte> part : write.from) {
    if (part.empty()) continue;
    if (inside) {
      out[n++] = {reinterpret_cast<std::uintptr_t>(part.data()), static_cast<std::uint32_t>(part.size()), 0};
      continue;
    }
    const std::size_t more = buffers_.describe(part, out.subspan(n));
    if (more == 0) return 0;
    n += more;
  }
  return n;
}

// False: the device may not read some of the bytes.
bool RcLink::build(const Write& write, std::size_t i) {
  const std::size_t size = write.size();
  const bool inside = size <= inline_bytes_;
  ibv_send_wr& to = requests_[i];
  const std::size_t pieces = describe(write, pieces_[i], inside);
  if (pieces == 0 && size != 0) return false;
  to.wr_id = posted_ + i + 1;
  to.next = &requests_[(i + 1) % kBurst];  // the last request's pointer is cleared later
  to.sg_list = pieces_[i].data();
  to.num_sge = static_cast<int>(pieces);
  to.opcode = write.notify ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
  to.imm_data = htonl(write.immediate);
  to.send_flags = write.notify ? IBV_SEND_SOLICITED : 0;
  if (inside && size != 0) to.send_flags |= IBV_SEND_INLINE;
  const bool last = write.last_of != fastpath::kNoLane;
  if (last) {
    to.wr_id |= std::uint64_t{write.last_of + 1U} << kLaneShift;
    last_writes_++;
  }
  if (++unsignalled_ == kSignalEvery || last) {
    to.send_flags |= IBV_SEND_SIGNALED;
    unsignalled_ = 0;
  }
  to.wr.rdma.remote_addr = remote_ + write.to;
  to.wr.rdma.rkey = remote_key_;
  unlooked_bytes_ += size;
  return true;
}

// Posts with one doorbell. Returns how many were posted.
std::size_t RcLink::post_some(std::span<const Write> batch) {
  std::size_t n = 0;
  while (n < batch.size() && build(batch[n], n)) n++;
  const bool unreadable = n < batch.size();
  if (n != 0) {
    requests_[n - 1].next = nullptr;
    ibv_send_wr* refused = nullptr;
    if (ibv_post_send(pair_.pair(), requests_.data(), &refused) != 0) {
      if (refused != nullptr) posted_ += static_cast<std::uint64_t>(refused - requests_.data());
      fail();
      return n;
    }
    posted_ += n;
  }
  if (unreadable) fail();
  return n;
}

void RcLink::post(std::span<const Write> batch) {
  while (!batch.empty() && !failed_) batch = batch.subspan(post_some(batch.first(std::min(batch.size(), kBurst))));
  if (posted_ - looked_ >= kLookEvery || unlooked_bytes_ >= kLookEveryBytes) look();
}

// --- Reading

// A receive has no buffer: a write brings its own address.
void RcLink::refill() {
  if (receives_ + RcQueuePair::kRefill > wanted_receives_) return;
  std::array<ibv_recv_wr, RcQueuePair::kRefill> list{};
  for (std::size_t i = 0; i < list.size(); i++) {
    list[i].wr_id = kReceive;
    list[i].next = i + 1 < list.size() ? &list[i + 1] : nullptr;
  }
  while (!failed_ && receives_ + list.size() <= wanted_receives_) {
    ibv_recv_wr* refused = nullptr;
    if (ibv_post_recv(pair_.pair(), list.data(), &refused) == 0) {
      receives_ += list.size();
      continue;
    }
    if (refused != nullptr) receives_ += static_cast<std::uint32_t>(refused - list.data());
    fail();
  }
}

void RcLink::on_receive(const ibv_wc& wc, std::span<Arrival> out, std::size_t& n) {
  receives_--;
  if (wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM)
    out[n++] = {ntohl(wc.imm_data), wc.byte_len};
  else
    fail();  // or the peer sends, which no link does
}

void RcLink::on_sent(const ibv_wc& wc, std::span<Arrival> out, std::size_t& n) {
  completed_ = wc.wr_id & kPostedMask;
  if (const std::uint64_t lane = wc.wr_id >> kLaneShift; lane != 0) {
    last_writes_--;
    if (wc.status == IBV_WC_SUCCESS) out[n++] = {.done_of = static_cast<std::uint16_t>(lane - 1)};
  }
}

// `more`: there may be more completions.
std::size_t RcLink::take_completions(std::span<Arrival> out, bool& more) {
  std::array<ibv_wc, kBurst> found;
  std::size_t n = 0;
  more = false;
  if (gone_ || out.empty()) return 0;
  looked_ = posted_;
  unlooked_bytes_ = 0;
  const int got = ibv_poll_cq(pair_.completions(), static_cast<int>(std::min(out.size(), found.size())), found.data());
  for (int i = 0; i < got; i++) {
    const ibv_wc& wc = found[static_cast<std::size_t>(i)];
    if (wc.wr_id == kReceive) {
      on_receive(wc, out, n);
      continue;
    }
    if (wc.wr_id == kLast)
      last_done_ = true;
    else
      on_sent(wc, out, n);
    if (wc.status != IBV_WC_SUCCESS) fail();
  }
  more = got > 0;
  if (got < 0) give_up();
  if (got <= 0 && giving_up_) finish_giving_up();
  if (!failed_) refill();
  return n;
}

std::size_t RcLink::take_stash(std::span<Arrival> out) {
  const std::size_t n = std::min(out.size(), stashed_ - unstashed_);
  std::copy_n(stash_.begin() + static_cast<std::ptrdiff_t>(unstashed_), n, out.begin());
  unstashed_ += n;
  return n;
}

// Stores completions; their messages wait for poll().
void RcLink::look() {
  if (unstashed_ != stashed_) return;
  bool more = false;
  unstashed_ = 0;
  stashed_ = take_completions(stash_, more);
}

std::size_t RcLink::poll(std::span<Arrival> out) {
  std::size_t n = 0;
  if (unstashed_ != stashed_) [[unlikely]]
    n = take_stash(out);
  bool more = true;
  do n += take_completions(out.subspan(n), more);
  while (failed_ && more && n < out.size());  // flushed completions come in hundreds
  return n;
}

// --- Waiting

bool RcLink::arm() {
  const LinkState before = state();
  if (gone_) return unstashed_ != stashed_;
  if (armed_ != Armed::kNo) {
    pair_.fetch();  // it may have been signalled
    armed_ = Armed::kNo;
  }
  const Armed wanted = room() != 0 && last_writes_ == 0 ? Armed::kMessages : Armed::kAll;
  if (pair_.arm(wanted == Armed::kMessages) != 0) return true;
  armed_ = wanted;
  look();
  return unstashed_ != stashed_ || state() != before;
}

// --- The end

LinkState RcLink::state() const {
  if (!failed_) return LinkState::kUp;
  const bool quiet = gone_ || (last_done_ && receives_ == 0);
  return quiet && unstashed_ == stashed_ ? LinkState::kDrained : LinkState::kFailed;
}

bool RcLink::post_last() {
  ibv_send_wr last{};
  last.wr_id = kLast;
  last.opcode = IBV_WR_RDMA_WRITE;
  last.send_flags = IBV_SEND_SIGNALED;
  last.wr.rdma.remote_addr = remote_;
  last.wr.rdma.rkey = remote_key_;
  ibv_send_wr* refused = nullptr;
  return ibv_post_send(pair_.pair(), &last, &refused) == 0;
}

void RcLink::fail() {
  if (failed_) return;
  failed_ = true;
  if (pair_.end() != 0 || !post_last()) giving_up_ = true;
}

void RcLink::give_up() {
  failed_ = giving_up_ = true;
}

// Called only once the completion queue is empty: devices remove a queue pair's completions together with it.
void RcLink::finish_giving_up() {
  pair_.destroy_pair();
  gone_ = true;
}

}  // namespace bypass::verbs
