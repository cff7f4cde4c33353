#include "stack/stateful/fuzzer.h"

#include <cstdio>
#include <cstdlib>

#include "stack/tcp/flow_table.h"

namespace bypass::test {
namespace {

constexpr std::size_t kArena = std::size_t{16} << 20;

// Small limits are reached often.
HostConfig host_config(std::uint64_t seed) {
  sim::Random random{seed ^ 0x5eed};
  HostConfig config;
  config.arena_bytes = kArena;
  config.buffers = 96 + random.below(160);
  if (random.chance(0.5)) config.caps = offloading_caps();
  if (random.chance(0.3)) config.rx_segment = 64 + random.below(500);
  auto& tcp = config.stack.tcp;
  tcp.secret[0] = random.next();
  tcp.secret[1] = random.next();
  tcp.timestamps = random.chance(0.7);
  tcp.sack = random.chance(0.8);
  tcp.window_scaling = random.chance(0.8);
  tcp.syn_queue = 1 + static_cast<std::uint32_t>(random.below(6));
  tcp.max_time_wait = 1 + static_cast<std::uint32_t>(random.below(6));
  tcp.send_buffer = 4096U << random.below(6);
  tcp.receive_buffer = 4096U << random.below(6);
  tcp.receive_initial = std::min(tcp.receive_buffer, 16384U);
  tcp.port_first = 5000;
  tcp.port_last = static_cast<std::uint16_t>(5001 + random.below(6));
  if (random.chance(0.3)) tcp.congestion = tcp::Congestion::kNewReno;
  return config;
}

}  // namespace

Fuzzer::Fuzzer(std::uint64_t seed)
    : seed_(seed),
      random_(seed),
      world_(seed),
      host_(world_.add_host(host_config(seed))),
      probe_(world_.add_probe(99)),
      tracing_(std::getenv("BYPASS_TEST_TRACE") != nullptr) {
  // The peer may choose the first listener's initial number: near 2^32 its numbers wrap.
  now_ = Instant{} + std::chrono::hours(below(2000));
  if (chance(0.3)) world_.wire().set_impairment(0, {.bits_per_second = 2'000'000});
  if (chance(0.3)) host_.memory().keep_back(std::size_t{256} << 10);
  pump();
}

void Fuzzer::trace(const char* what) {
  std::fprintf(stderr, "%u at %.6f s: %s\n", step_, static_cast<double>((now_ - Instant{}).count()) / 1e9, what);
}

std::string Fuzzer::run(unsigned steps) {
  for (step_ = 1; step_ <= steps && failure_.empty(); step_++) step();
  if (failure_.empty()) end();
  return failure_;
}

void Fuzzer::step() {
  const std::uint64_t kind = below(1000);
  if (kind < 450) {
    send_segments();
  } else if (kind < 850) {
    call();
  } else if (kind < 960) {
    pass_time();
  } else if (kind < 985) {
    change_memory();
  } else if (kind < 997) {
    send_icmp();
  } else {
    rebuild();
  }
  check();
  if (chance(0.7)) {
    pump();
    check();
  }
}

void Fuzzer::fail(const std::string& what) {
  if (failure_.empty()) failure_ = "seed " + std::to_string(seed_) + ", step " + std::to_string(step_) + ": " + what;
}

void Fuzzer::check() {
  const char* broken = engine().violated();
  if (broken != nullptr) fail(broken);
}

void Fuzzer::pass_time() {
  note("time");
  static constexpr Duration kLongest[] = {50us, 5ms, 50ms, 300ms, 2s, 30s, 200s};
  Duration most = kLongest[below(std::size(kLongest))];
  if (chance(0.01)) most = std::chrono::hours(3);
  const Instant next = host_.next_turn(now_);
  now_ += Duration{static_cast<std::int64_t>(below(static_cast<std::uint64_t>(most.count())))};
  if (chance(0.5) && next > now_ - most && next < now_ + most) now_ = std::max(now_, next);  // to the very moment
  pump();
}

// Leaves little memory, none, or all of it again.
void Fuzzer::change_memory() {
  note("memory");
  Memory& memory = host_.memory();
  switch (below(6)) {
    case 0:
      return memory.set_budget(memory.stats().used_bytes + below(64) * 1024);
    case 1:
      if (void* block = memory.allocate(256U << below(10))) hogs_.push_back(block);
      return;
    case 2: {
      std::vector<Packet*> taken(below(host_.port().buffers_out() + 64));
      taken.resize(host_.port().alloc(0, taken));
      frames_.insert(frames_.end(), taken.begin(), taken.end());
      return;
    }
    case 3:
      answers_ = !answers_;
      return;
    default:
      memory.set_budget(kArena);
      for (void* block : hogs_) memory.release(block);
      hogs_.clear();
      if (!frames_.empty()) host_.port().free(frames_);
      frames_.clear();
  }
}

// A process has died inside the lock while it changed one of the connections, or nothing. The queued frames belong to
// the living owner of the port, and leave unchanged.
void Fuzzer::rebuild() {
  note("rebuild");
  ctx().now = now_;
  void* broken = nullptr;
  if (chance(0.5) && !sockets_.empty()) broken = sockets_[below(sockets_.size())].tcb;
  engine().impl().current = broken;
  Memory& memory = host_.memory();
  memory.begin_rebuild();
  host_.stack().rebuild(ctx());
  for (void* block : hogs_)
    if (!memory.mark_in_use(block)) fail("a block has two owners");
  memory.finish_rebuild();
}

// The peers answer no more, and everything is closed.
void Fuzzer::end() {
  note("end");
  for (Socket& socket : sockets_) close(socket, chance(0.3));
  sockets_.clear();
  for (tcp::Listener* listener : listeners_) engine().close_listener(ctx(), *listener);
  listeners_.clear();
  Memory& memory = host_.memory();
  memory.set_budget(kArena);
  for (void* block : hogs_) memory.release(block);
  if (!frames_.empty()) host_.port().free(frames_);
  answers_ = false;
  const auto& core = engine().impl();
  const Instant latest = now_ + std::chrono::hours(24);
  while (failure_.empty() && now_ < latest) {
    pump();
    check();
    const Instant next = host_.next_turn(now_);
    if (next == kNever) break;
    now_ = std::max(next, now_ + 10us);
  }
  host_.take_events(&sockets_);
  ctx().queue(0).drain();
  if (core.tcbs.size() != 0) fail(std::to_string(core.tcbs.size()) + " connections are left");
  if (core.time_waits.count != 0) fail("TIME-WAIT is left");
  if (core.flows.size() != 0) fail("the flow table is not empty");
  if (engine().next_timeout() != kNever) fail("a timer is left");
  if (engine().output_pending()) fail("output is left");
  if (!host_.stack().events().empty()) fail("an event of nobody's is left");
  if (host_.port().buffers_out() != 0) fail(std::to_string(host_.port().buffers_out()) + " frames are left");
  // A rebuild keeps everything that has an owner.
  const std::size_t used = memory.stats().used_bytes;
  hogs_.clear();
  rebuild();
  const std::size_t owned = memory.stats().used_bytes;
  if (used != owned) fail(std::to_string(used - owned) + " bytes have no owner");
}

}  // namespace bypass::test
