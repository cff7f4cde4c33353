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
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "backends/plain_host.h"
#include "fastpath/lane.h"
#include "fastpath/link_device.h"
#include "fastpath/link_end.h"

namespace {

using namespace bypass;
using namespace bypass::fastpath;
using Clock = std::chrono::steady_clock;

constexpr std::uint8_t kRingLog2 = 20;
constexpr std::uint64_t kRing = 4096;  // where it begins in the link's memory
constexpr std::size_t kBuffer = std::size_t{2} << 20;
constexpr std::uint16_t kLane = 0;
constexpr std::uint32_t kLink = 1;

struct Options {
  std::string role, mode = "latency", device = "soft0";
  IpAddress address, peer;
  std::uint16_t listen = 18516;
  std::uint32_t size = 64;
  std::uint64_t count = 100'000;
  int cpu = -1;
  [[nodiscard]] bool client() const { return role == "client"; }
};

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "rc_ring: %s\n", what.c_str());
  std::exit(1);
}
void need(bool good, const std::string& what) {
  if (!good) die(what + ": " + std::strerror(errno));
}

Instant now() {
  return Instant{std::chrono::duration_cast<Duration>(Clock::now().time_since_epoch())};
}

// --- What framed TCP would carry

class Line {
 public:
  explicit Line(const Options& options) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(options.listen);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const auto* const where = reinterpret_cast<const sockaddr*>(&address);
    fd_ = socket(AF_INET, SOCK_STREAM, 0);
    if (options.client()) {
      need(connect(fd_, where, sizeof address) == 0, "connecting to the server");
    } else {
      const int on = 1;
      setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
      need(bind(fd_, where, sizeof address) == 0 && ::listen(fd_, 1) == 0, "listening");
      std::puts("ready");
      std::fflush(stdout);
      fd_ = accept(fd_, nullptr, nullptr);
      need(fd_ >= 0, "accepting");
    }
    need(fcntl(fd_, F_SETFL, O_NONBLOCK) == 0, "the line");
  }
  void say(const Record& record, std::span<const std::byte> body = {}) const {
    std::array<std::byte, kMaxControl> room;
    const std::size_t n = encode(record, room, body);
    need(write(fd_, room.data(), n) == static_cast<ssize_t>(n), "the line");
  }
  /// Calls each(record, body) for what has come.
  template <typename F>
  void hear(F&& each) {
    std::array<std::byte, 1024> room;
    const ssize_t got = read(fd_, room.data(), room.size());
    if (got == 0) ended_ = true;
    if (got <= 0) return;
    for (std::span<const std::byte> rest(room.data(), static_cast<std::size_t>(got)); !rest.empty();) {
      const Decoder::Step step = decoder_.next(rest);
      rest = rest.subspan(step.taken);
      if (step.event == Decoder::Event::kRecord) each(step.record, decoder_.link_body());
      if (step.event == Decoder::Event::kMore) break;
    }
  }
  [[nodiscard]] bool ended() const { return ended_; }

 private:
  int fd_;
  bool ended_ = false;
  Decoder decoder_;
};

// --- The plugin

std::string folder_of_build() {
  char self[4096] = {};
  need(readlink("/proc/self/exe", self, sizeof self - 1) > 0, "/proc/self/exe");
  const std::string program = self;
  const std::string bin = program.substr(0, program.rfind('/'));
  return bin.substr(0, bin.rfind('/')) + "/";
}

Backend& load_plugin() {
  static Host host = PlainHost::host();
  host.file_of_build = [](const char* name, char* path, std::size_t size) {
    const std::string file = folder_of_build() + name;
    return file.size() < size && access(std::strcpy(path, file.c_str()), R_OK) == 0;
  };
  void* const plugin = dlopen((folder_of_build() + "libbypass-verbs.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (plugin == nullptr) die(dlerror());
  const auto entry = reinterpret_cast<BackendEntry>(dlsym(plugin, "bypass_backend"));
  Backend* const backend = entry == nullptr ? nullptr : entry(&host);
  if (backend == nullptr) die("libbypass-verbs.so is not of this build");
  return *backend;
}

// --- One end

class End {
 public:
  End(const Options& options, Backend& backend)
      : options_(options),
        memory_(kRing + (1U << kRingLog2)),
        buffer_(kBuffer),
        line_(options),
        lane_({.opens = options.client()}) {
    LinkDeviceSpec spec;
    spec.address = options.address;
    spec.timeout = 14;  // as verbs_wire: how soon it gives up is not what is measured
    spec.retries = 7;
    std::string problem;
    device_ = backend.open_links(options.device, spec, problem);
    if (device_ == nullptr) die(problem);
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
  /// Copies out what has come, up to all of `room`.
  std::size_t read(std::span<std::byte> room) {
    Table table{*this};
    end_.poll(setup_->link(), table);
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
    return lane_.una() == lane_.end();
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
      hear();
      device_->attend();
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
  Line line_;
  LinkDevice* device_ = nullptr;
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
  std::sort(us.begin(), us.end());
  const auto at = [&](double q) { return us[static_cast<std::size_t>(q * static_cast<double>(us.size() - 1))] * 1e3; };
  std::printf("{\"size\":%u,\"min_ns\":%.0f,\"p50_ns\":%.0f,\"p99_ns\":%.0f}\n", options.size, at(0), at(0.5),
              at(0.99));
}

void run_bandwidth(const Options& options, End& end) {
  std::vector<std::byte> room(options.size);
  const auto begin = Clock::now();
  for (std::uint64_t i = 0; i < options.count; i++) options.client() ? write_all(end, room) : read_all(end, room);
  if (!options.client()) return;
  std::byte nothing[1];
  while (!end.all_placed()) (void)end.read(std::span(nothing).first(0));
  const double took = std::chrono::duration<double>(Clock::now() - begin).count();
  std::printf("{\"size\":%u,\"gbit_per_s\":%.5f,\"messages_per_s\":%.0f}\n", options.size,
              static_cast<double>(options.count) * options.size * 8e-9 / took,
              static_cast<double>(options.count) / took);
}

IpAddress read_address(const std::string& text) {
  in_addr v4{};
  if (inet_pton(AF_INET, text.c_str(), &v4) != 1) die(text + " is no IPv4 address");
  return IpAddress::from_v4(ntohl(v4.s_addr));
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    const std::string value = argv[i + 1];
    if (name == "--role") options.role = value;
    if (name == "--mode") options.mode = value;
    if (name == "--device") options.device = value;
    if (name == "--address") options.address = read_address(value);
    if (name == "--peer") options.peer = read_address(value);
    if (name == "--listen") options.listen = static_cast<std::uint16_t>(std::stoul(value));
    if (name == "--size") options.size = static_cast<std::uint32_t>(std::stoul(value));
    if (name == "--count") options.count = std::stoull(value);
    if (name == "--cpu") options.cpu = std::stoi(value);
  }
  const bool known = (options.role == "server" || options.role == "client") &&
                     (options.mode == "latency" || options.mode == "bandwidth") && options.size != 0;
  if (known && !options.address.is_any() && !options.peer.is_any()) return options;
  std::fputs(
      "rc_ring --role server|client --address IP --peer IP --mode latency|bandwidth --size BYTES --count N "
      "--listen PORT --device NAME --cpu N\n",
      stderr);
  std::exit(2);
}

void pin(int cpu) {
  if (cpu < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof set, &set);
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  End end(options, load_plugin());
  pin(options.cpu);  // the device's own threads stay on every core
  options.mode == "latency" ? run_latency(options, end) : run_bandwidth(options, end);
  if (!options.client()) end.serve_until_the_other_ends();
  std::fflush(stdout);
  _exit(0);
}
