#include "stack/sim/transfer.h"

#include <cstring>

namespace bypass::test {
namespace {

// The byte at a stream offset. Any shift, loss or repetition shows.
std::byte byte_at(std::uint64_t offset, unsigned stream) {
  const std::uint64_t x = (offset + 1) * 0x9e3779b97f4a7c15U + stream;
  return static_cast<std::byte>(x >> 56 ^ x >> 24);
}

class Program {
 public:
  Program(Host& host, unsigned number, const TransferConfig& config)
      : host_(host), number_(number), config_(config), random_(config.seed * 2 + number) {}

  tcp::Tcb* tcb = nullptr;
  std::string problem;

  [[nodiscard]] bool done() const { return closed_; }
  /// True: there is something to read, so it needs a turn although nothing happens on the wire.
  [[nodiscard]] bool busy() const { return tcb != nullptr && !closed_ && host_.tcp().readable(*tcb) != 0; }
  [[nodiscard]] std::string progress() const {
    return "host " + std::to_string(number_) + " sent " + std::to_string(sent_) + " received " +
           std::to_string(received_);
  }

  /// What a program does in one turn: reads, writes, ends.
  void step(Instant now) {
    if (tcb == nullptr || closed_) return;
    host_.ctx().now = now;
    if (const Error error = host_.tcp().error(*tcb); error != Error::kNone) {
      problem = "error " + std::to_string(static_cast<int>(error));
      return;
    }
    read();
    write();
    if (!shut_ && sent_ == config_.bytes) {
      host_.tcp().shutdown_send(host_.ctx(), *tcb);
      shut_ = true;
    }
    if (shut_ && host_.tcp().at_eof(*tcb)) {
      if (received_ != config_.bytes) problem = "the stream ended early";
      host_.tcp().close(host_.ctx(), *tcb);
      closed_ = true;
    }
  }

 private:
  void read() {
    std::span<const std::byte> spans[4];
    std::size_t left = 1 + random_.below(config_.largest_read);
    const std::size_t n = host_.tcp().peek(*tcb, spans);
    std::size_t taken = 0;
    for (std::size_t i = 0; i < n && left != 0; i++) {
      const std::size_t part = std::min(left, spans[i].size());
      for (std::size_t b = 0; b < part; b++)
        if (spans[i][b] != byte_at(received_ + b, 1 - number_))
          problem = "wrong byte at " + std::to_string(received_ + b);
      received_ += part;
      taken += part;
      left -= part;
    }
    if (taken != 0) host_.tcp().consume(host_.ctx(), *tcb, taken);
  }

  void write() {
    if (shut_ || sent_ == config_.bytes) return;
    const std::size_t want = std::min<std::size_t>(1 + random_.below(config_.largest_write), config_.bytes - sent_);
    auto room = host_.tcp().reserve(*tcb, want);
    if (!room.ok()) return;
    std::size_t written = 0;
    for (auto& part : room->part) {
      for (std::byte& b : part) b = byte_at(sent_ + written++, number_);
    }
    sent_ += written;
    host_.tcp().commit(host_.ctx(), *tcb, written, random_.chance(0.1));
  }

  Host& host_;
  unsigned number_;
  const TransferConfig& config_;
  sim::Random random_;
  std::size_t sent_ = 0, received_ = 0;
  bool shut_ = false, closed_ = false;
};

double up_to(sim::Random& random, double most) {
  return most * static_cast<double>(random.below(1001)) / 1000;
}

void roll_host(sim::Random& random, HostConfig& host, tcp::Options& options) {
  auto& tcp = host.stack.tcp;
  if (random.chance(0.5)) host.caps = offloading_caps();
  host.caps.gather = random.chance(0.5);
  tcp.sack = !random.chance(0.25);
  tcp.timestamps = !random.chance(0.25);
  tcp.window_scaling = !random.chance(0.2);
  tcp.congestion = options.congestion = random.chance(0.5) ? tcp::Congestion::kCubic : tcp::Congestion::kNewReno;
  tcp.secret[0] = random.next();
  tcp.secret[1] = random.next();
  if (random.chance(0.2)) options.receive_buffer = static_cast<std::uint32_t>(2000 + random.below(20000));
  if (random.chance(0.3)) options.send_buffer = static_cast<std::uint32_t>(4096 + random.below(60000));
  if (random.chance(0.2)) options.max_segment = static_cast<std::uint16_t>(100 + random.below(1200));
  options.no_delay = random.chance(0.5);
  host.buffers = 4096;
}

}  // namespace

TransferConfig transfer_of(std::uint64_t seed, std::size_t bytes) {
  sim::Random random(seed * 1000003);
  TransferConfig config;
  config.seed = seed;
  config.bytes = bytes;
  auto& wire = config.wire;
  if (seed % 4 != 0) {  // every fourth: a clean wire
    wire.loss = up_to(random, 0.1);
    wire.duplicate = up_to(random, 0.05);
    wire.corrupt = up_to(random, 0.02);
    wire.reorder = up_to(random, 0.1);
  }
  wire.delay = std::chrono::microseconds(random.below(20000));
  wire.jitter = std::chrono::microseconds(random.below(2000));
  wire.reorder_delay = std::chrono::microseconds(random.below(5000));
  if (random.chance(0.3)) {
    wire.bits_per_second = 10'000'000 + random.below(1'000'000'000);
    wire.queue_frames = 20 + random.below(200);
  }
  for (unsigned i = 0; i < 2; i++) roll_host(random, config.host[i], config.options[i]);
  config.host[1].address = "10.9.0.2";
  config.text = "loss " + std::to_string(wire.loss) + " delay us " + std::to_string(wire.delay.count() / 1000);
  return config;
}

std::string run_transfer(const TransferConfig& config) {
  World world(config.seed);
  Host& client_host = world.add_host(config.host[0]);
  Host& server_host = world.add_host(config.host[1]);
  world.wire().set_impairment(config.wire);
  Program client(client_host, 0, config), server(server_host, 1, config);
  auto listener = server_host.tcp().listen({server_host.address(), 80}, 4, config.options[1], &server);
  if (!listener.ok()) return "listen";
  client_host.ctx().now = world.now();
  auto connected =
      client_host.tcp().connect(client_host.ctx(), {}, {server_host.address(), 80}, config.options[0], &client);
  if (!connected.ok()) return "connect";
  client.tcb = *connected;
  std::string problem;
  const auto turn = [&] {
    if (server.tcb == nullptr) {
      auto accepted = server_host.tcp().accept(server_host.ctx(), **listener, &server);
      if (accepted.ok()) server.tcb = *accepted;
    }
    client.step(world.now());
    server.step(world.now());
    for (Host* host : {&client_host, &server_host})
      if (const char* rule = host->tcp().violated()) problem = std::string("broken rule: ") + rule;
    if (problem.empty()) problem = client.problem + server.problem;
  };
  const Instant end = world.now() + std::chrono::hours(8);
  const auto ended = [&] { return !problem.empty() || (client.done() && server.done()); };
  while (!ended() && world.now() < end) {
    const auto busy = [&] { return client.busy() || server.busy(); };
    if (busy()) world.run_for(10us);  // a program that leaves bytes unread comes back for them
    world.run_until([&] { return turn(), ended() || busy(); }, end - world.now());
  }
  if (!ended()) problem = "no end: " + client.progress() + ", " + server.progress();
  if (!problem.empty()) return problem + " at " + std::to_string((world.now() - Instant{}).count() / 1000) + " us";
  world.run_for(std::chrono::minutes(10));
  for (Host* host : {&client_host, &server_host}) {
    if (host->tcp().next_timeout() != kNever) return "a timer is left";
    host->ctx().queue(0).drain();
    if (host->port().buffers_out() != 0) return std::to_string(host->port().buffers_out()) + " buffers leaked";
  }
  return {};
}

}  // namespace bypass::test
