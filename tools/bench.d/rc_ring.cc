// rc_ring: a lane over one RC queue pair, as libbypass has it, without sockets: what verbs_wire's plain writes on the
// same device are the bound of.
//
//   rc_ring --role server --listen 18516 --address 10.9.0.1 --peer 10.9.0.2 --cpu 0 &
//   rc_ring --role client --listen 18516 --address 10.9.0.2 --peer 10.9.0.1 --cpu 1 --mode latency --size 64
//
// Everything is the product's own: the plugin, the set-up of the link, link end, lane and ring. Bytes are copied into
// the send buffer and out of the ring. latency: half a round trip of messages that each end answers. bandwidth: the
// client writes as fast as there is room. The ends talk by TCP on this machine, as framed TCP would have them talk. The
// device is soft0 (BYPASS_SOFT) if no --device is given. The client prints one JSON object.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "fastpath/lane/lane.h"
#include "fastpath/link/link_device.h"
#include "fastpath/link/link_end.h"
#include "rc_peers.h"
#include "two_ends.h"

namespace {

using namespace bypass;
using namespace bypass::fastpath;
using bypass::bench::die;
using bypass::bench::need;
using Clock = std::chrono::steady_clock;

constexpr std::uint8_t kRingLog2 = 20;
constexpr std::uint64_t kRing = 4096;  // where it begins in the link's memory
constexpr std::size_t kBuffer = std::size_t{2} << 20;
constexpr std::uint16_t kLane = 0;
constexpr std::uint32_t kLink = 1;

struct Options : bench::EndOptions {
  std::string device = "soft0";
  IpAddress address, peer;
};

Instant now() {
  return Instant{std::chrono::duration_cast<Duration>(Clock::now().time_since_epoch())};
}

// --- One end

// Before the ends meet: the wire is up by then.
LinkDevice* open_device(const Options& options, Backend& backend) {
  LinkDeviceSpec spec;
  spec.address = options.address;
  spec.timeout = 14;  // as verbs_wire: how soon it gives up is not what is measured
  spec.retries = 7;
  std::string problem;
  LinkDevice* const device = backend.open_links(options.device, spec, problem);
  if (device == nullptr) die(problem);
  return device;
}

class End {
 public:
  End(const Options& options, Backend& backend)
      : options_(options),
        memory_(kRing + (1U << kRingLog2)),
        buffer_(kBuffer),
        device_(open_device(options, backend)),
        line_(bench::meet(options).front()),
        lane_({.opens = options.client()}) {
    const char* why = nullptr;
    if (!device_->add_memory(buffer_, why)) die(std::string("the send buffer: ") + why);
    if (options.client()) setup_ = device_->request(kLink, memory_, options.peer, now());
    set_up_link();
    set_up_lane();
  }

  /// Copies `bytes` in, as far as there is room.
  std::size_t write(std::span<const std::byte> bytes) {
    lane_.look(memory_);
    const std::size_t n = std::min<std::size_t>(bytes.size(), kBuffer - (lane_.end() - lane_.una()));
    if (n == 0) lane_.wait_for_buffer();
    const std::size_t at = lane_.end() & (kBuffer - 1), first = std::min(n, kBuffer - at);
    std::memcpy(&buffer_[at], bytes.data(), first);
    std::memcpy(buffer_.data(), bytes.data() + first, n - first);
    lane_.write(n);
    turn();
    return n;
  }
  /// Copies out what has come, up to all of `room`. Looks for more if there is nothing, as recv() does.
  std::size_t read(std::span<std::byte> room) {
    Table table{*this};
    if (lane_.readable().bytes == 0) end_.poll(setup_->link(), table);
    std::size_t n = 0;
    for (auto next = lane_.readable(); next.bytes != 0 && n < room.size(); next = lane_.readable()) {
      const std::size_t some = std::min<std::size_t>(next.bytes, room.size() - n);
      std::memcpy(&room[n], &memory_[kRing + next.position], some);
      lane_.consume(some);
      n += some;
    }
    if (n != 0)
      turn();
    else
      end_.flush(setup_->link(), table);
    if (end_.state() != fastpath::LinkState::kUp) die(std::string("the link: ") + to_string(end_.reason()));
    return n;
  }
  [[nodiscard]] bool all_placed() {
    lane_.look(memory_);
    if (lane_.una() == lane_.end()) return true;
    lane_.wait_for_buffer();  // the reader tells of the rest if it is asked
    turn();
    return false;
  }
  void serve_until_the_other_ends() {
    std::array<std::byte, 64> room;
    for (int i = 0; !line_.ended(); i++) {
      (void)read(room);
      if (i % 1024 == 0) line_.hear([](const Record&, auto) {});
    }
  }

 private:
  /// LinkEnd's view of the one lane.
  struct Table {
    End& end;
    Lane* find(std::uint16_t number) { return number == kLane ? &end.lane_ : nullptr; }
    ByteSource source(std::uint16_t) { return {end.buffer_.data(), 0, kBuffer}; }
    template <typename F>
    void for_each(F&& f) {
      f(end.lane_);
    }
  };

  void turn() {
    Table table{*this};
    end_.enqueue(kLane, table);
    end_.flush(setup_->link(), table);
  }

  // The other end may be a step ahead.
  void hear() {
    line_.hear([&](const Record& record, std::span<const std::byte> body) {
      if (record.type < RecordType::kLinkHello)
        lane_.on_record(record);
      else if (setup_ == nullptr)
        setup_ = device_->answer(body, Reason::kNone, memory_, options_.peer, now());
      else
        setup_->on_record(record.type, body);
    });
  }

  void set_up_link() {
    std::array<std::byte, kMaxLinkBody> body;
    while (setup_ == nullptr || setup_->state() == SetupState::kUnderWay) {
      device_->attend();
      hear();
      if (setup_ == nullptr) continue;
      setup_->poll(now());
      for (Record record; setup_->next_record(record, body);) line_.say(record, std::span(body).first(record.length));
    }
    if (setup_->state() != SetupState::kUp) die(std::string("no link: ") + to_string(setup_->reason()));
    end_ = LinkEnd(setup_->window());
    for (Record record; setup_->next_record(record, body);) line_.say(record, std::span(body).first(record.length));
  }

  void set_up_lane() {
    const LaneAddress here{.ring = kRing, .credit = sizeof(LinkBlock), .lane = kLane, .ring_log2 = kRingLog2};
    if (options_.client()) lane_.offer(kLink, here, setup_->peer_memory());
    while (lane_.tx_path() != TxPath::kLane || lane_.rx_path() != RxPath::kLane) {
      hear();
      if (lane_.offered()) lane_.accept(here, setup_->peer_memory());
      if (lane_.can_cut()) lane_.cut();
      for (Record record; lane_.next_record(record);) line_.say(record);
      if (lane_.broken()) die(std::string("no lane: ") + to_string(lane_.reason()));
    }
  }

  const Options& options_;
  std::vector<std::byte> memory_, buffer_;
  LinkDevice* device_;
  bench::RecordLine line_;
  LinkSetup* setup_ = nullptr;
  LinkEnd end_;
  Lane lane_;
};

// --- What is measured

void read_all(End& end, std::span<std::byte> room) {
  for (std::size_t n = 0; n < room.size();) n += end.read(room.subspan(n));
}
void write_all(End& end, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t n = end.write(bytes);
    bytes = bytes.subspan(n);
    std::byte nothing[1];
    if (n == 0 && end.read(std::span(nothing).first(0)) != 0) die("bytes from nowhere");
  }
}

void run_latency(const Options& options, End& end) {
  std::vector<std::byte> room(options.size);
  std::vector<double> us;
  us.reserve(options.count);
  for (std::uint64_t i = 0; i < options.count; i++) {
    const auto begin = Clock::now();
    if (options.client()) write_all(end, room);
    read_all(end, room);
    if (!options.client()) write_all(end, room);
    us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / 2);
  }
  if (!options.client()) return;
  std::printf("{\"size\":%u,%s}\n", options.size, bench::percentiles(us).c_str());
}

void run_bandwidth(const Options& options, End& end) {
  std::vector<std::byte> room(options.size);
  const auto begin = Clock::now();
  for (std::uint64_t i = 0; i < options.count; i++) options.client() ? write_all(end, room) : read_all(end, room);
  if (!options.client()) return;
  std::byte nothing[1];
  while (!end.all_placed()) (void)end.read(std::span(nothing).first(0));
  const double took = std::chrono::duration<double>(Clock::now() - begin).count();
  std::printf("{\"size\":%u,%s}\n", options.size, bench::rates(options, took).c_str());
}

Options parse(int argc, char** argv) {
  constexpr const char* kUsage =
      "rc_ring --role server|client --address IP --peer IP --mode latency|bandwidth --size BYTES --count N "
      "--listen PORT --device NAME --cpu N";
  Options options;
  bench::read_options(argc, argv, options, kUsage, [&](std::string_view name, const std::string& value) {
    if (name == "--device") options.device = value;
    if (name == "--address") options.address = bench::read_address(value);
    if (name == "--peer") options.peer = bench::read_address(value);
    return name == "--device" || name == "--address" || name == "--peer";
  });
  if (!options.good() || options.address.is_any() || options.peer.is_any()) bench::explain(kUsage);
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  End end(options, bench::load_verbs_plugin());
  bench::pin(options.cpu);  // the device's own threads stay on every core
  options.mode == "latency" ? run_latency(options, end) : run_bandwidth(options, end);
  if (!options.client()) end.serve_until_the_other_ends();
  std::fflush(stdout);
  _exit(0);
}
