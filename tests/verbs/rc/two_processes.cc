// One of two processes with an RC link between them, over a real wire: checked bytes both ways over some connections'
// lanes, and a queue pair that is made to fail now and then. The connections go on over TCP, and over the next link.
//
//   two_processes --role server --listen 18517 --address 10.9.0.1 --peer 10.9.0.2 --size 4000000 --count 3
//
// --device: soft0 if it is not named. --size: bytes a connection and direction; --count: links that die, at either end
// in turn. A part of the bytes is for each link and begins over TCP, at most a quarter of it: a link dies only once it
// has carried enough. Everything but the sockets is the product's own: plugin, setting up, link, link end, lanes,
// records. TCP is the kernel's, on this machine. The one that has nothing to do sleeps, so a wake-up that is lost ends
// nowhere. Prints one JSON object.
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "two_processes.h"

namespace bypass::two_processes {
namespace {

constexpr std::uint64_t kPiece = 20'000;       // a write or read of the program's, at most
constexpr std::uint64_t kTcpBytes = 200'000;   // that it writes at most while there is no lane: the rest waits for one
constexpr std::size_t kMostUnsent = 1U << 18;  // bytes of records
constexpr Duration kQuiet = std::chrono::milliseconds{1};  // then credits are told, though they are few

std::byte byte_at(std::size_t connection, bool of_client, std::uint64_t offset) {
  std::uint64_t x = offset * 0x9e3779b97f4a7c15 + connection * 2 + (of_client ? 1 : 0);
  x ^= x >> 29;
  return static_cast<std::byte>(x * 0xbf58476d1ce4e5b9 >> 56);
}

LaneAddress place_of(std::size_t i) {
  return {.ring = kRings + (i << kRingLog2),
          .credit = sizeof(LinkBlock) + i * sizeof(CreditBlock),
          .lane = static_cast<std::uint16_t>(i),
          .ring_log2 = kRingLog2};
}

}  // namespace

End::End(const Options& options, Backend& backend)
    : options_(options), backend_(backend), memory_(kMemory), buffers_(kConnections * kBuffer) {
  LinkDeviceSpec spec;
  spec.address = options.address;
  std::string problem;
  device_ = backend.open_links(options.device, spec, problem);
  if (device_ == nullptr) die(problem);
  const char* why = nullptr;
  if (!device_->add_memory(buffers_, why)) die(std::string("the send buffers: ") + why);
  const std::vector<int> met = bench::meet(options, kConnections + 1);
  for (std::size_t i = 0; i < kConnections; i++)
    connections_.push_back(
        std::make_unique<Connection>(options.client(), met[i], std::span(buffers_).subspan(i * kBuffer, kBuffer)));
  line_ = std::make_unique<bench::RecordLine>(met[kConnections]);
}

// --- Connections

void End::write(std::size_t i) {
  Connection& c = *connections_[i];
  if (c.shut) return;
  if (up_) c.lane.look(memory_);
  // A part of the bytes for each link.
  const std::uint64_t part = options_.size * std::min(deaths_ + 1, options_.count + 1) / (options_.count + 1);
  const std::uint64_t left = part - std::min(part, c.lane.end());
  std::uint64_t n = std::min({kPiece, kBuffer - (c.lane.end() - c.lane.una()), left});
  if (c.lane.tx_path() == TxPath::kTcp) {
    n = std::min(n, std::min(kTcpBytes, options_.part() / 4) - c.over_tcp);
    c.over_tcp += n;
  }
  for (std::uint64_t k = 0; k < n; k++)
    c.buffer[(c.lane.end() + k) & (kBuffer - 1)] = byte_at(i, options_.client(), c.lane.end() + k);
  c.lane.write(n);
  moved_ += n;
  if (n == 0 && left != 0) c.lane.wait_for_buffer();
  if (c.lane.end() != options_.size) return;
  c.shut = true;
  c.lane.shutdown_send();
}

void End::read(std::size_t i) {
  Connection& c = *connections_[i];
  const auto next = c.lane.readable();
  const std::uint64_t n = std::min(next.bytes, kPiece);
  for (std::uint64_t k = 0; k < n; k++) {
    const bool ring = next.from == Lane::From::kRing;
    const std::byte byte = ring ? memory_[c.lane.local().ring + next.position + k] : c.data[k];
    if (byte != byte_at(i, !options_.client(), c.read + k))
      die("connection " + std::to_string(i) + ": byte " + std::to_string(c.read + k) + " is another one");
  }
  if (n == 0) return;
  if (next.from == Lane::From::kTcp) {
    c.data.erase(c.data.begin(), c.data.begin() + static_cast<std::ptrdiff_t>(n));
    over_tcp_ += n;
  } else {
    per_link_.back() += n;
  }
  c.lane.consume(n);
  c.read += n;
  moved_ += n;
}

// If the link is up, a connection of the client offers its lane, and the server accepts it.
void End::attach(std::size_t i) {
  Connection& c = *connections_[i];
  const bool good = up_ && end_.state() == fastpath::LinkState::kUp;
  const auto clear = [&] { std::memset(&memory_[place_of(i).credit], 0, sizeof(CreditBlock)); };
  if (good && c.lane.opens() && c.lane.detached() && !c.end_sent && c.tried_link != setup_->id()) {
    c.tried_link = setup_->id();
    c.listed = true;
    clear();
    c.lane.offer(setup_->id(), place_of(i), setup_->peer_memory());
  }
  if (!c.lane.offered()) return;
  const bool is_this = setup_ != nullptr && c.lane.link() == setup_->id();
  if (is_this && !up_) return;  // its last word is still on the way
  if (!is_this || !good) return c.lane.decline(Reason::kLinkError);
  c.listed = true;
  clear();
  c.lane.accept(place_of(i), setup_->peer_memory());
}

void End::on_record(std::size_t i, const Record& record, std::span<const std::byte> body) {
  Connection& c = *connections_[i];
  moved_++;
  if (record.type == RecordType::kData) c.data.insert(c.data.end(), body.begin(), body.end());
  c.lane.on_record(record);
  if (!c.lane.link_suspect() || !up_ || c.lane.link() != setup_->id()) return;
  Table table{*this};
  end_.fail(Reason::kPeerLinkDown, table);
  setup_->link().fail();
}

void End::say_records(std::size_t i) {
  Connection& c = *connections_[i];
  std::size_t unsent = 0;
  for (Record record; !c.end_sent && unsent < kMostUnsent && c.line.flush() && c.lane.next_record(record); moved_++) {
    std::vector<std::byte> body;
    if (record.type == RecordType::kData)
      for (std::uint32_t k = 0; k < record.length; k++) body.push_back(c.buffer[(record.value + k) & (kBuffer - 1)]);
    c.line.say(record, body);
    unsent += body.size();
    if (!body.empty()) c.lane.on_tcp_acked(record.value + record.length);  // the kernel has them, or the line
  }
  if (c.end_sent || !c.lane.finished() || !c.line.flush()) return;
  c.end_sent = true;
  c.line.end();
  moved_++;
}

void End::detach(std::size_t i) {
  Connection& c = *connections_[i];
  if (!c.listed || !c.lane.detached()) return;
  Table table{*this};
  end_.dequeue(static_cast<std::uint16_t>(i), table);
  c.listed = false;
}

void End::turn(std::size_t i) {
  Connection& c = *connections_[i];
  c.line.hear([&](const Record& record, std::span<const std::byte> body) { on_record(i, record, body); });
  if (c.line.ended() && !c.end_come) {
    c.end_come = true;
    if (!c.lane.peer_ended()) die("connection " + std::to_string(i) + ": the other process has ended too early");
    c.lane.on_tcp_end();
    moved_++;
  }
  attach(i);
  write(i);
  read(i);
  if (c.lane.can_cut()) c.lane.cut(), moved_++;
  say_records(i);
  detach(i);
  if (c.lane.aborted()) die("connection " + std::to_string(i) + ": " + to_string(c.lane.reason()));
  Table table{*this};
  if (up_) end_.enqueue(static_cast<std::uint16_t>(i), table);
}

// --- All of it

// Waits until something comes. Credits that were not announced are announced after a while.
void End::sleep() {
  std::vector<pollfd> fds{{device_->descriptor(), POLLIN, 0}, {line_->descriptor(), POLLIN, 0}};
  const bool news = std::any_of(connections_.begin(), connections_.end(), [](auto& c) { return c->lane.has_news(); });
  if (up_ && setup_->link().arm()) return;
  if (setup_ != nullptr && setup_->wait_descriptor() >= 0) fds.push_back({setup_->wait_descriptor(), POLLIN, 0});
  for (auto& each : connections_) {
    const bool says = !each->line.flush();
    fds.push_back(
        {each->end_come ? -1 : each->line.descriptor(), static_cast<short>(POLLIN | (says ? POLLOUT : 0)), 0});
  }
  Instant until = setup_ != nullptr ? setup_->next_timeout() : kNever;
  if (news) until = std::min(until, now() + kQuiet);
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now()).count();
  const int got =
      poll(fds.data(), fds.size(), until == kNever ? -1 : static_cast<int>(std::max<std::int64_t>(left, 0)));
  for (auto& each : connections_)
    if (got == 0 && news) each->lane.tell();
}

bool End::over() const {
  return std::all_of(connections_.begin(), connections_.end(), [](const auto& each) { return each->over(); });
}

void End::run() {
  while (!over()) {
    const std::uint64_t before = moved_;
    look_after_link();
    for (std::size_t i = 0; i < kConnections; i++) turn(i);
    if (up_) poll_link();
    if (moved_ == before) sleep();
  }
  report();
  if (setup_ != nullptr) close_link();
  while (!device_->gone(memory_)) {
    pollfd one{device_->descriptor(), POLLIN, 0};
    poll(&one, 1, -1);
    device_->attend();
  }
}

void End::report() const {
  std::uint64_t all = 0;
  for (const auto& each : connections_) all += each->read;
  std::printf("{\"deaths\":%llu,\"failures\":%llu,\"bytes\":%llu,\"over_tcp\":%llu,\"over_lanes\":[",
              static_cast<unsigned long long>(deaths_), static_cast<unsigned long long>(failures_),
              static_cast<unsigned long long>(all), static_cast<unsigned long long>(over_tcp_));
  for (std::size_t i = 0; i < per_link_.size(); i++)
    std::printf("%s%llu", i != 0 ? "," : "", static_cast<unsigned long long>(per_link_[i]));
  std::puts("]}");
  std::fflush(stdout);
}

}  // namespace bypass::two_processes

int main(int argc, char** argv) {
  using namespace bypass;
  using namespace bypass::two_processes;
  constexpr const char* kUsage =
      "two_processes --role server|client --listen PORT --address IP --peer IP --size BYTES --count N [--device NAME]";
  Options options;
  bench::read_options(argc, argv, options, kUsage, [&](std::string_view name, const std::string& value) {
    if (name == "--address") options.address = bench::read_address(value);
    if (name == "--peer") options.peer = bench::read_address(value);
    if (name == "--device") options.device = value;
    return name == "--address" || name == "--peer" || name == "--device";
  });
  if (!options.good() || options.address.is_any() || options.peer.is_any()) bench::explain(kUsage);
  End end(options, bench::load_verbs_plugin());
  end.run();
}
