// UD queue pairs with one completion queue. Each batch of packets is one list of postings, and so is each batch of
// receives.
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "../../../../tools/bench.d/two_ends.h"
#include "transport.h"

namespace request_loop {
namespace {

using bypass::bench::need;

constexpr std::uint32_t kQueueKey = 0x11223344;
constexpr int kGid = 1;
constexpr std::size_t kHeader =
    40;  // bytes of a received datagram's first part, which tells its sender (ibv_create_ah)
constexpr std::uint32_t kDepth = 256;

/// Buffers in registered memory.
class Buffers {
 public:
  Buffers(ibv_pd* pd, std::size_t size) : size_(size), bytes_(kDepth * size) {
    mr_ = ibv_reg_mr(pd, bytes_.data(), bytes_.size(), IBV_ACCESS_LOCAL_WRITE);
    need(mr_ != nullptr, "registering memory");
  }
  std::byte* at(std::uint64_t index) { return &bytes_[index % kDepth * size_]; }
  ibv_sge sge(std::uint64_t index, std::size_t bytes) {
    return {reinterpret_cast<std::uintptr_t>(at(index)), static_cast<std::uint32_t>(bytes), mr_->lkey};
  }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  std::size_t size_;
  std::vector<std::byte> bytes_;
  ibv_mr* mr_ = nullptr;
};

/// Work requests that are posted as one list.
template <typename Request>
class List {
 public:
  Request& add(const ibv_sge& sge) {
    Request& request = requests_[count_];
    sges_[count_] = sge;
    request = {};
    request.sg_list = &sges_[count_];
    request.num_sge = 1;
    if (count_++ > 0) requests_[count_ - 2].next = &request;
    return request;
  }
  [[nodiscard]] bool is_full() const { return count_ == kBatch; }
  /// The first of the list, which is empty then; nullptr if it was before.
  Request* take() { return std::exchange(count_, 0) == 0 ? nullptr : requests_.data(); }

 private:
  std::array<Request, kBatch> requests_;
  std::array<ibv_sge, kBatch> sges_;
  unsigned count_ = 0;
};

struct Endpoint {
  ibv_qp* qp;
  std::uint32_t inline_bytes;
  Buffers out, in;
  List<ibv_send_wr> sends;
  List<ibv_recv_wr> receives;
  std::uint64_t added = 0, completed = 0;  // sends
};

void change(ibv_qp* qp, ibv_qp_state state, int mask) {
  ibv_qp_attr attr{};
  attr.qp_state = state;
  attr.port_num = 1;
  attr.qkey = kQueueKey;
  need((errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | mask)) == 0, "starting a queue pair");
}

class QueuePairs : public Transport {
 public:
  QueuePairs(unsigned endpoints, std::size_t most) {
    ibv_device** const list = ibv_get_device_list(nullptr);
    need(list != nullptr && list[0] != nullptr, "no RDMA device");
    context_ = ibv_open_device(list[0]);
    need(context_ != nullptr, "opening the device");
    pd_ = ibv_alloc_pd(context_);
    cq_ = ibv_create_cq(context_, static_cast<int>(2 * kDepth * endpoints), nullptr, nullptr, 0);
    need(pd_ != nullptr && cq_ != nullptr, "a domain and a completion queue");
    ibv_port_attr port{};
    need(ibv_query_port(context_, 1, &port) == 0, "the port");
    if (most > 128U << port.active_mtu) bypass::bench::die("a packet would be larger than the path's MTU");
    for (unsigned i = 0; i < endpoints; i++) add(most, i);
  }

  [[nodiscard]] Contact contact() const override {
    Contact ours;
    need(ibv_query_gid(context_, 1, kGid, &ours.gid) == 0, "the device's address");
    for (std::size_t i = 0; i < endpoints_.size(); i++) ours.queue_pairs[i] = endpoints_[i].qp->qp_num;
    return ours;
  }

  void reach(const Contact& peer) override {
    peer_ = peer;
    ibv_ah_attr attr{};
    attr.is_global = 1;
    attr.grh.dgid = peer.gid;
    attr.grh.sgid_index = kGid;
    attr.grh.hop_limit = 64;
    attr.port_num = 1;
    route_ = ibv_create_ah(pd_, &attr);
    need(route_ != nullptr, "a route to the other end");
  }

  void send(unsigned from, unsigned to, std::span<const std::byte> packet) override {
    Endpoint& e = endpoints_[from];
    if (e.added >= kDepth - kBatch) make_room(e);
    std::memcpy(e.out.at(e.added), packet.data(), packet.size());
    ibv_send_wr& wr = e.sends.add(e.out.sge(e.added, packet.size()));
    wr.wr_id = ++e.added;
    wr.opcode = IBV_WR_SEND;
    if (packet.size() <= e.inline_bytes) wr.send_flags |= IBV_SEND_INLINE;
    if (e.added % kBatch == 0) wr.send_flags |= IBV_SEND_SIGNALED;
    wr.wr.ud = {route_, peer_.queue_pairs[to], kQueueKey};
    if (e.sends.is_full()) post(e);
  }

  void flush() override {
    for (Endpoint& e : endpoints_) post(e);
  }

  std::span<const std::span<const std::byte>> receive() override {
    for (const auto& [number, buffer] : taken_) give_back(endpoints_[number], number, buffer);
    for (Endpoint& e : endpoints_) post_receives(e);
    taken_.clear();
    if (came_.empty()) look();
    const std::size_t count = std::min<std::size_t>(came_.size(), kBatch);
    for (std::size_t i = 0; i < count; i++) {
      const auto& [number, buffer, bytes] = came_.front();
      packets_[i] = {endpoints_[number].in.at(buffer) + kHeader, bytes - kHeader};
      taken_.push_back({number, buffer});
      came_.pop_front();
    }
    return std::span(packets_).first(count);
  }

 private:
  struct Buffer {
    unsigned endpoint;
    std::uint32_t index;
  };
  struct Arrival {
    unsigned endpoint;
    std::uint32_t index;
    std::size_t bytes;
  };

  void add(std::size_t most, unsigned number) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq_;
    init.cap = {kDepth, kDepth, 1, 1, 64};
    init.qp_type = IBV_QPT_UD;
    ibv_qp* const qp = ibv_create_qp(pd_, &init);
    need(qp != nullptr, "a queue pair");
    Endpoint& e = endpoints_.emplace_back(
        Endpoint{qp, init.cap.max_inline_data, Buffers(pd_, most), Buffers(pd_, most + kHeader), {}, {}});
    change(qp, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
    for (std::uint32_t i = 0; i < kDepth; i++) give_back(e, number, i);
    post_receives(e);
    change(qp, IBV_QPS_RTR, 0);
    change(qp, IBV_QPS_RTS, IBV_QP_SQ_PSN);
  }

  void post(Endpoint& e) {
    ibv_send_wr *const first = e.sends.take(), *bad = nullptr;
    if (first != nullptr) need((errno = ibv_post_send(e.qp, first, &bad)) == 0, "posting sends");
  }
  void give_back(Endpoint& e, unsigned number, std::uint32_t buffer) {
    e.receives.add(e.in.sge(buffer, e.in.size())).wr_id = std::uint64_t{number} << 32 | buffer;
    if (e.receives.is_full()) post_receives(e);
  }
  void post_receives(Endpoint& e) {
    ibv_recv_wr *const first = e.receives.take(), *bad = nullptr;
    if (first != nullptr) need((errno = ibv_post_recv(e.qp, first, &bad)) == 0, "posting receives");
  }
  /// Until the send that used the next buffer before has been completed.
  void make_room(Endpoint& e) {
    while (e.completed + kDepth - kBatch <= e.added) {
      post(e);
      look();
    }
  }
  void look() {
    ibv_wc done[kBatch];
    const int count = ibv_poll_cq(cq_, kBatch, done);
    need(count >= 0, "polling");
    for (const ibv_wc& wc : std::span(done, static_cast<std::size_t>(count))) {
      if (wc.status != IBV_WC_SUCCESS) bypass::bench::die(std::string("a completion: ") + ibv_wc_status_str(wc.status));
      if (wc.opcode == IBV_WC_RECV) {
        came_.push_back({static_cast<unsigned>(wc.wr_id >> 32), static_cast<std::uint32_t>(wc.wr_id), wc.byte_len});
        continue;
      }
      for (Endpoint& e : endpoints_)
        if (e.qp->qp_num == wc.qp_num) e.completed = wc.wr_id;
    }
  }

  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_ah* route_ = nullptr;
  Contact peer_;
  std::vector<Endpoint> endpoints_;
  std::deque<Arrival> came_;
  std::vector<Buffer> taken_;
  std::array<std::span<const std::byte>, kBatch> packets_;
};

}  // namespace

std::unique_ptr<Transport> make_queue_pairs(unsigned endpoints, std::size_t most) {
  return std::make_unique<QueuePairs>(endpoints, most);
}

}  // namespace request_loop
