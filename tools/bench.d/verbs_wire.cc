// verbs_wire: latency and bandwidth of an RDMA device's reliable connections, as an unmodified verbs program sees them:
// what raw_wire is for frames. It links libibverbs; which device it finds is the preload's business.
//
//   verbs_wire --role server --listen 18515 --cpu 0 &
//   verbs_wire --role client --listen 18515 --cpu 1 --mode latency --operation write --size 2 --count 100000
//
// latency of send and write: half a round trip of messages that each end answers; both ends poll their completion queue
// while they wait, so that nobody's thread but the program's has work. latency of read: of one read. bandwidth: a
// window of requests under way, every sixteenth signalled. The ends find each other by TCP on this machine. The client
// prints one JSON object.
#include <infiniband/verbs.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "two_ends.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kGid = 1;
constexpr std::uint32_t kWindow = 64, kSignalEvery = 16;

using bypass::bench::need;

struct Options : bypass::bench::EndOptions {
  std::string operation = "write";
};

// --- What the ends tell each other

struct Contact {
  ibv_gid gid;
  std::uint32_t qpn, rkey, mtu;
  std::uint64_t address;
};

class Line {
 public:
  explicit Line(const Options& options) : fd_(bypass::bench::meet(options).front()) {}
  template <typename T>
  T swap(const T& ours) const {
    T theirs;
    need(write(fd_, &ours, sizeof ours) == sizeof ours &&
             recv(fd_, &theirs, sizeof theirs, MSG_WAITALL) == sizeof theirs,
         "the other end");
    return theirs;
  }
  [[nodiscard]] int descriptor() const { return fd_; }

 private:
  int fd_;
};

// --- The device

class Connection {
 public:
  Connection(const Options& options, const Line& line) : options_(options), memory_(2 * std::size_t{options.size}) {
    ibv_device** const list = ibv_get_device_list(nullptr);
    need(list != nullptr && list[0] != nullptr, "no RDMA device");
    context_ = ibv_open_device(list[0]);
    need(context_ != nullptr, "opening the device");
    pd_ = ibv_alloc_pd(context_);
    constexpr unsigned kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    mr_ = ibv_reg_mr(pd_, memory_.data(), memory_.size(), kAccess);
    cq_ = ibv_create_cq(context_, 4 * kWindow, nullptr, nullptr, 0);
    need(pd_ != nullptr && mr_ != nullptr && cq_ != nullptr, "memory and queues");
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq_;
    init.cap = {kWindow, kWindow, 1, 1, 64};
    init.qp_type = IBV_QPT_RC;
    qp_ = ibv_create_qp(pd_, &init);
    need(qp_ != nullptr, "a queue pair");
    inline_bytes_ = init.cap.max_inline_data;
    start(line);
  }

  void post(unsigned flags = IBV_SEND_SIGNALED) {
    ibv_sge sge = half(0);
    ibv_send_wr wr{}, *bad = nullptr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.send_flags = flags;
    wr.opcode = IBV_WR_RDMA_WRITE;
    if (options_.operation == "send") wr.opcode = IBV_WR_SEND;
    if (options_.operation == "read") wr.opcode = IBV_WR_RDMA_READ;
    if (wr.opcode != IBV_WR_RDMA_READ && options_.size <= inline_bytes_) wr.send_flags |= IBV_SEND_INLINE;
    wr.wr.rdma.remote_addr = peer_.address + options_.size;
    wr.wr.rdma.rkey = peer_.rkey;
    need((errno = ibv_post_send(qp_, &wr, &bad)) == 0, "posting");
  }
  void post_receive() {
    ibv_sge sge = half(1);
    ibv_recv_wr wr{0, nullptr, &sge, 1}, *bad = nullptr;
    need((errno = ibv_post_recv(qp_, &wr, &bad)) == 0, "posting a receive");
  }
  /// Looks at the completion queue once; counts what was sent and what has come.
  void look() {
    ibv_wc wc[16];
    const int n = ibv_poll_cq(cq_, 16, wc);
    for (int i = 0; i < n; i++) {
      if (wc[i].status != IBV_WC_SUCCESS) {
        std::fprintf(stderr, "verbs_wire: a completion failed: %d\n", wc[i].status);
        std::exit(1);
      }
      (wc[i].opcode == IBV_WC_RECV ? received : sent)++;
    }
  }
  // A write says that it is there by its last byte; what goes out and what comes lie side by side.
  void mark(std::uint8_t value) { memory_[options_.size - 1] = value; }
  [[nodiscard]] bool is_marked(std::uint8_t value) {
    return *const_cast<volatile std::uint8_t*>(&memory_[2 * std::size_t{options_.size} - 1]) == value;
  }
  [[nodiscard]] std::uint32_t mtu() const { return 128U << mtu_; }

  std::uint64_t sent = 0, received = 0;

 private:
  ibv_sge half(unsigned which) {
    return {reinterpret_cast<std::uintptr_t>(memory_.data()) + std::uint64_t{which} * options_.size, options_.size,
            mr_->lkey};
  }

  void start(const Line& line) {
    ibv_port_attr port{};
    need(ibv_query_port(context_, 1, &port) == 0, "the port");
    Contact own{};
    need(ibv_query_gid(context_, 1, kGid, &own.gid) == 0, "the address");
    own.qpn = qp_->qp_num;
    own.rkey = mr_->rkey;
    own.mtu = port.active_mtu;
    own.address = reinterpret_cast<std::uintptr_t>(memory_.data());
    peer_ = line.swap(own);
    mtu_ = std::min(own.mtu, peer_.mtu);
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    change(attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    for (std::uint32_t i = 0; i < kWindow; i++) post_receive();
    attr = {};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = static_cast<ibv_mtu>(mtu_);
    attr.dest_qp_num = peer_.qpn;
    attr.max_dest_rd_atomic = 16;
    attr.min_rnr_timer = 1;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.dgid = peer_.gid;
    attr.ah_attr.grh.sgid_index = kGid;
    attr.ah_attr.grh.hop_limit = 64;
    attr.ah_attr.port_num = 1;
    change(attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    attr = {};
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = attr.rnr_retry = 7;
    attr.max_rd_atomic = 16;
    change(attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                     IBV_QP_MAX_QP_RD_ATOMIC);
    line.swap('r');
  }
  void change(ibv_qp_attr& attr, int mask) {
    need((errno = ibv_modify_qp(qp_, &attr, mask)) == 0, "starting the queue pair");
  }

  const Options& options_;
  std::vector<std::uint8_t> memory_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_mr* mr_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_qp* qp_ = nullptr;
  Contact peer_{};
  std::uint32_t mtu_ = 0, inline_bytes_ = 0;
};

// --- Roles

// One request is out at most when the next is posted: its acknowledgement comes with or before the peer's answer.
void post_next(Connection& c, std::uint64_t n, bool is_send) {
  while (c.sent + kWindow / 2 < n) c.look();
  if (is_send) {
    c.post();
    return;
  }
  c.mark(static_cast<std::uint8_t>(n % 255 + 1));
  c.post();
}

void await(Connection& c, std::uint64_t n, bool is_send) {
  if (!is_send) {
    while (!c.is_marked(static_cast<std::uint8_t>(n % 255 + 1))) c.look();
    return;
  }
  while (c.received <= n) c.look();
  c.post_receive();
}

void report(const Options& options, const Connection& c, const std::string& figures) {
  std::printf("{\"operation\":\"%s\",\"size\":%u,\"mtu\":%u,%s}\n", options.operation.c_str(), options.size, c.mtu(),
              figures.c_str());
}

void run_latency(const Options& options, Connection& c) {
  const bool client = options.client(), is_send = options.operation == "send", is_read = options.operation == "read";
  std::vector<double> us;
  us.reserve(options.count);
  for (std::uint64_t n = 0; n < options.count && (client || !is_read); n++) {
    const auto begin = Clock::now();
    if (is_read) {
      c.post();
      while (c.sent <= n) c.look();
    } else if (client) {
      post_next(c, n, is_send);
      await(c, n, is_send);
    } else {
      await(c, n, is_send);
      post_next(c, n, is_send);
    }
    us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / (is_read ? 1 : 2));
  }
  if (client) report(options, c, bypass::bench::percentiles(us));
}

void run_bandwidth(const Options& options, Connection& c) {
  if (!options.client()) {
    for (std::uint64_t n = 0; options.operation == "send" && n < options.count; n++) await(c, n, true);
    return;
  }
  const auto begin = Clock::now();
  for (std::uint64_t posted = 0; c.sent * kSignalEvery < options.count;) {
    if (posted < options.count && posted - c.sent * kSignalEvery < kWindow) {
      posted++;
      c.post(posted % kSignalEvery == 0 ? IBV_SEND_SIGNALED : 0);
    } else {
      c.look();
    }
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  report(options, c, bypass::bench::rates(options, seconds));
}

// Until the client is done: what it asks for is answered by the one that polls.
void serve(Connection& c, const Line& line) {
  char end;
  while (recv(line.descriptor(), &end, 1, MSG_DONTWAIT) < 0)
    for (int i = 0; i < 1000; i++) c.look();
}

Options parse(int argc, char** argv) {
  constexpr const char* kUsage =
      "verbs_wire --role server|client --mode latency|bandwidth --operation send|write|read --size BYTES --count N "
      "--listen PORT --cpu N";
  Options options;
  bypass::bench::read_options(argc, argv, options, kUsage, [&](std::string_view name, const std::string& value) {
    if (name == "--operation") options.operation = value;
    return name == "--operation";
  });
  options.count = (options.count + kSignalEvery - 1) / kSignalEvery * kSignalEvery;
  const bool known = options.operation == "send" || options.operation == "write" || options.operation == "read";
  if (!known || !options.good()) bypass::bench::explain(kUsage);
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const Line line(options);
  Connection connection(options, line);
  bypass::bench::pin(options.cpu);  // the device's own thread stays on every core
  if (options.mode == "latency")
    run_latency(options, connection);
  else
    run_bandwidth(options, connection);
  if (!options.client()) serve(connection, line);
}
