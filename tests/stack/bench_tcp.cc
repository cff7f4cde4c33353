// What a segment costs in the engine, without a wire: header prediction's input, output of small and large
// writes, and a whole ping-pong. Built and run by hand, as bench_stack.
#include <benchmark/benchmark.h>

#include <memory>
#include <vector>

#include "stack/frame/wire.h"
#include "stack/tcp/core.h"
#include "stack/tcp/input/segment.h"
#include "stack/world.h"

namespace bypass::test {
namespace {

// A port that takes every frame and delivers none. Its frames come back when they are sent.
class NullPort final : public Port {
 public:
  explicit NullPort(PortCaps caps) : caps_(caps) {
    for (int i = 0; i < 512; i++) {
      slots_.push_back(std::make_unique<Slot>());
      slots_.back()->packet.buffer = slots_.back()->bytes;
      slots_.back()->packet.capacity = sizeof slots_.back()->bytes;
      free_.push_back(&slots_.back()->packet);
    }
  }
  [[nodiscard]] const PortCaps& caps() const override { return caps_; }
  [[nodiscard]] MacAddress mac() const override { return test::mac(1); }
  [[nodiscard]] LinkState link() const override { return LinkState::kUp; }
  std::size_t receive(std::uint16_t, std::span<Packet*>) override { return 0; }
  std::size_t send(std::uint16_t, std::span<Packet* const> frames) override {
    sent += frames.size();
    free(frames);
    return frames.size();
  }
  std::size_t alloc(std::uint16_t, std::span<Packet*> out) override {
    std::size_t n = 0;
    for (; n < out.size() && !free_.empty(); n++) {
      out[n] = free_.back();
      free_.pop_back();
      out[n]->reset(kTxHeadroom);
    }
    return n;
  }
  void free(std::span<Packet* const> frames) override {
    for (Packet* p : frames) {
      for (Packet* next = nullptr; p != nullptr; p = next) {
        next = p->next_segment;
        free_.push_back(p);
      }
    }
  }
  [[nodiscard]] int wait_descriptor(std::uint16_t) const override { return -1; }
  [[nodiscard]] std::uint32_t wait_generation() const override { return 0; }
  bool arm(std::uint16_t) override { return true; }
  void disarm(std::uint16_t) override {}
  [[nodiscard]] PortStats stats() const override { return {}; }
  std::uint64_t sent = 0;

 private:
  struct alignas(64) Slot {
    Packet packet{};
    alignas(64) std::byte bytes[2048];
  };
  PortCaps caps_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<Packet*> free_;
};

// One host with established connections. This program computes what their peer would send.
class Bench {
 public:
  explicit Bench(std::size_t connections, PortCaps caps = {}) : port_(caps), arena_(std::size_t{64} << 20) {
    void* base =
        reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(arena_.data()) + 4095) & ~std::uintptr_t{4095});
    memory_ = Memory::create(base, arena_.size() - 4096, arena_.size() - 4096);
    stack_ = Stack::create(*memory_, {});
    const Prefix prefix{ip("10.9.0.1"), 24};
    InterfaceConfig config;
    config.mac = port_.mac();
    config.addresses = {&prefix, 1};
    (void)stack_->set_interface(0, config);
    ctx_.queues[0] = PortQueue{&port_, 0, 0};
    ctx_.ports = 1;
    ctx_.memory = memory_;
    feed(arp_frame({.to_mac = test::mac(1)}));
    listener_ = *stack_->tcp().listen({ip("10.9.0.1"), 80}, 100000, {}, nullptr);
    for (std::size_t i = 0; i < connections; i++) open(static_cast<std::uint16_t>(1000 + i));
  }

  void open(std::uint16_t port) {
    peer_.push_back({port, 1, 0});
    segment(peer_.back(), tcp::kSyn, 0, 0);
    tcp::Tcb* tcb = nullptr;
    stack_->tcp().impl().tcbs.for_each([&](tcp::Tcb& t) { tcb = t.flow.remote_port == port ? &t : tcb; });
    peer_.back().ack = tcb->seq_base.v;
    segment(peer_.back(), tcp::kAck, 1, 0);
    tcb = *stack_->tcp().accept(ctx_, *listener_, this);
    tcb->quick_acks = 0;
    tcbs.push_back(tcb);
  }

  struct Peer {
    std::uint16_t port;
    std::uint32_t seq, ack;
  };
  void segment(Peer& peer, std::uint8_t flags, std::uint32_t seq, std::size_t payload) {
    Packet* frame = ctx_.queue(0).alloc();
    build(*frame, peer, flags, seq, payload);
    one_[0] = frame;
    stack_->on_frames(ctx_, 0, one_);
    ctx_.flush();
  }
  void data(std::size_t i, std::size_t payload) {
    segment(peer_[i], tcp::kAck | tcp::kPsh, peer_[i].seq, payload);
    peer_[i].seq += static_cast<std::uint32_t>(payload);
  }
  void read(std::size_t i) {
    std::span<const std::byte> spans[4];
    tcp::Tcb& tcb = *tcbs[i];
    const std::size_t n = stack_->tcp().peek(tcb, spans);
    std::size_t total = 0;
    for (std::size_t k = 0; k < n; k++) total += spans[k].size();
    stack_->tcp().consume(ctx_, tcb, total);
  }
  std::size_t write(std::size_t i, std::size_t bytes) {
    auto room = stack_->tcp().reserve(*tcbs[i], bytes);
    if (!room.ok()) return 0;
    const std::size_t n = room->size();
    stack_->tcp().commit(ctx_, *tcbs[i], n, false);
    return n;
  }
  void ack_all(std::size_t i) { peer_[i].ack = tcbs[i]->seq_of(tcbs[i]->snd_nxt).v; }
  void tick(Duration d = std::chrono::microseconds(5)) {
    ctx_.now += d;
    stack_->resume_output(ctx_);
    stack_->on_timers(ctx_);
    while (EventNode* node = stack_->events().take()) node->events = 0;
    ctx_.flush();
    stack_->on_flushed(ctx_);
  }
  std::vector<tcp::Tcb*> tcbs;
  NullPort& port() { return port_; }
  Peer& peer(std::size_t i) { return peer_[i]; }

 private:
  void build(Packet& frame, const Peer& peer, std::uint8_t flags, std::uint32_t seq, std::size_t payload) {
    const std::size_t options = (flags & tcp::kSyn) != 0 ? 4 : 0;
    const std::size_t l4 = 20 + options + payload;
    frame.flags = kRxIpChecksumGood | kRxL4ChecksumGood;
    frame.len = frame.frame_len = static_cast<std::uint32_t>(34 + l4);
    auto& ethernet = wire::at<wire::Ethernet>(frame, 0);
    ethernet.destination = test::mac(1);
    ethernet.source = test::mac(2);
    ethernet.type = wire::kEtherTypeIpv4;
    auto& ip4 = wire::at<wire::Ipv4>(frame, 14);
    ip4 = {};
    ip4.version_ihl = 0x45;
    ip4.total_len = static_cast<std::uint16_t>(20 + l4);
    ip4.ttl = 64;
    ip4.protocol = 6;
    ip4.source = ip_peer_;
    ip4.destination = ip_own_;
    auto& h = wire::at<tcp::TcpHeader>(frame, 34);
    h = {};
    h.source = peer.port;
    h.destination = 80;
    h.seq = seq;
    h.ack = peer.ack;
    h.data_offset = static_cast<std::uint8_t>((20 + options) / 4 << 4);
    h.flags = flags;
    h.window = 65535;
    if (options != 0) {
      const std::uint8_t mss[] = {2, 4, 1460 >> 8, 1460 & 255};
      std::memcpy(frame.data + 54, mss, 4);
    }
  }
  void feed(const sim::Bytes& bytes) {
    Packet* frame = ctx_.queue(0).alloc();
    std::memcpy(frame->data, bytes.data(), bytes.size());
    frame->len = frame->frame_len = static_cast<std::uint32_t>(bytes.size());
    one_[0] = frame;
    stack_->on_frames(ctx_, 0, one_);
    tick();
  }

  NullPort port_;
  std::vector<std::byte> arena_;
  Memory* memory_;
  Stack* stack_;
  Context ctx_;
  tcp::Listener* listener_;
  std::vector<Peer> peer_;
  std::array<Packet*, 1> one_{};
  std::uint32_t ip_peer_ = ip("10.9.0.2").v4(), ip_own_ = ip("10.9.0.1").v4();
};

PortCaps checksumming() {
  PortCaps caps;
  caps.tx_l4_checksum = caps.tx_ip_checksum = caps.rx_checksum = true;
  return caps;
}

// Building the frame is part of the loop: about 20 ns.
void input_data(benchmark::State& state) {
  Bench bench(static_cast<std::size_t>(state.range(0)), checksumming());
  std::size_t i = 0;
  for (auto _ : state) {
    bench.data(i, 64);
    bench.read(i);
    bench.tick();
    i = i + 1 == bench.tcbs.size() ? 0 : i + 1;
  }
}
BENCHMARK(input_data)->Arg(1)->Arg(1000);

void output_small(benchmark::State& state) {
  Bench bench(1, checksumming());
  for (auto _ : state) {
    bench.write(0, 64);
    bench.ack_all(0);
    bench.segment(bench.peer(0), tcp::kAck, bench.peer(0).seq, 0);
    bench.tick();
  }
}
BENCHMARK(output_small);

// A server's turn: a question comes in, is read and answered. The ACK comes with the next question.
void ping_pong(benchmark::State& state) {
  Bench bench(static_cast<std::size_t>(state.range(0)), checksumming());
  std::size_t i = 0;
  for (auto _ : state) {
    bench.data(i, 64);
    bench.read(i);
    bench.write(i, 64);
    bench.ack_all(i);
    bench.tick();
    i = i + 1 == bench.tcbs.size() ? 0 : i + 1;
  }
}
BENCHMARK(ping_pong)->Arg(1)->Arg(1000);

void output_bulk(benchmark::State& state) {
  PortCaps caps = checksumming();
  caps.tso = caps.gather = state.range(0) != 0;
  caps.tso_max_bytes = 60000;
  Bench bench(1, caps);
  std::int64_t bytes = 0;
  for (auto _ : state) {
    bytes += static_cast<std::int64_t>(bench.write(0, 65536));
    bench.tick();
    bench.ack_all(0);
    bench.segment(bench.peer(0), tcp::kAck, bench.peer(0).seq, 0);
    bench.tick();
  }
  state.SetBytesProcessed(bytes);
}
BENCHMARK(output_bulk)->Arg(0)->Arg(1);

}  // namespace
}  // namespace bypass::test

BENCHMARK_MAIN();
