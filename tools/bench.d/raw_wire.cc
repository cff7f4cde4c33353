// raw_wire: what a wire can do without a stack: frame round trips, and frames a second one way, through
// exactly the plugin that libbypass uses. The bound that every figure of the stack is held against.
//
//   raw_wire --role server --port vhost:/run/w.sock --cpu 0 &
//   raw_wire --role client --port virtio:/run/w.sock --cpu 1 --mode pingpong --size 60 --count 1000000
//
// Over an interface (af_packet:veth-a, with --plugin) the ends have the MAC addresses that their frames name, and what
// came over is what the server says.
//
// pingpong: the server sends every frame back. stream: the client sends, the server takes. start: the port opens,
// plugin and DPDK with it, and closes; nothing is sent. Either role may have either end of the wire. The server says
// "ready"; each prints one JSON object at its end. Round trips include reading the time stamp counter (10 ns).
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/plain_host.h"
#include "softverbs/engine/wire/crc32.h"
#include "stack/copy.h"

namespace {

using bypass::Packet;
using bypass::Port;

constexpr std::size_t kBurst = 64;
constexpr std::size_t kHeader = 54;  // Ethernet, IPv4, TCP

struct Options {
  std::string role, mode = "pingpong", port, plugin;
  std::uint32_t size = 60;  // bytes of a frame, the card's 4-byte check sum left out
  std::uint64_t count = 1'000'000;
  std::uint32_t burst = 32;
  int cpu = -1;
  bool copy = false;         // sender: fill the payload, as a stack copies it in; taker: copy it out
  bool sum = false;          // both: a CRC-32 over the frame, as an RDMA device makes and checks it
  bool gather = false;       // sender: payload by reference where the port can
  bool yield = false;        // give the core away when nothing has arrived (both ends on one core)
  std::uint64_t window = 0;  // stream: so many frames under way at most, 0: any; the taker answers every half of them
  double patience = 20;      // seconds without a frame until giving up
};

std::uint64_t ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Maps ticks to nanoseconds by the two clocks' distance over the whole run.
class TickRate {
 public:
  [[nodiscard]] double ns_per_tick() const {
    return (seconds() - seconds_) * 1e9 / static_cast<double>(ticks() - ticks_);
  }

 private:
  double seconds_ = seconds();
  std::uint64_t ticks_ = ticks();
};

std::vector<std::byte>& payload() {
  static std::vector<std::byte> bytes(1 << 16, std::byte{0x5a});
  return bytes;
}

[[noreturn]] void die(const std::string& text) {
  std::fprintf(stderr, "raw_wire: %s\n", text.c_str());
  std::exit(1);
}

// --- Frames

constexpr bypass::MacAddress kServerMac{{2, 0, 0, 0, 0, 1}}, kClientMac{{2, 0, 0, 0, 0, 2}};

void write_header(const Options& options, std::byte* at) {
  static const unsigned char behind_macs[kHeader - 12] = {8, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6};
  const bool server = options.role == "server";
  std::memcpy(at, (server ? kClientMac : kServerMac).bytes.data(), 6);
  std::memcpy(at + 6, (server ? kServerMac : kClientMac).bytes.data(), 6);
  std::memcpy(at + 12, behind_macs, sizeof behind_macs);
}

// On an interface others speak, too.
bool is_from_peer(const Options& options, const Packet& frame) {
  const bypass::MacAddress& peer = options.role == "server" ? kClientMac : kServerMac;
  return frame.len >= 12 && std::memcmp(frame.data + 6, peer.bytes.data(), peer.bytes.size()) == 0;
}

void ask_for_offloads(const Options& options, const Port& port, Packet* head) {
  head->l2_len = 14;
  head->l3_len = 20;
  head->l4_len = 20;
  if (port.caps().tx_l4_checksum) head->flags |= bypass::kTxL4Checksum;
  if (options.size > port.caps().mtu + 14 && port.caps().tso) {
    head->flags |= bypass::kTxTso;
    head->tso_mss = static_cast<std::uint16_t>(port.caps().mtu - 40);
  }
}

void add_sum(const Packet& segment) {
  static volatile std::uint32_t sum;
  sum = bypass::rdma::crc32_update(sum, segment.data, segment.len);
}

// One frame of options.size bytes, or null when buffers have run out.
Packet* make_frame(const Options& options, Port& port) {
  const bool by_reference = options.gather && port.caps().gather && options.size > kHeader;
  const std::uint32_t inside = by_reference ? kHeader : std::max<std::uint32_t>(options.size, 1);
  const std::uint32_t room = port.caps().buffer_bytes - bypass::kTxHeadroom;
  Packet* parts[64];
  const std::size_t wanted = (inside + room - 1) / room;
  const std::size_t got = port.alloc(0, {parts, wanted});
  if (got != wanted) {
    port.free({parts, got});
    return nullptr;
  }
  std::uint32_t left = inside;
  for (std::size_t i = 0; i < wanted; i++) {
    parts[i]->len = std::min(left, room);
    if (options.copy && !by_reference)
      bypass::copy_bytes(parts[i]->data, payload().data() + (inside - left), parts[i]->len);
    if (options.sum) add_sum(*parts[i]);
    left -= parts[i]->len;
    parts[i]->next_segment = i + 1 < wanted ? parts[i + 1] : nullptr;
  }
  Packet* head = parts[0];
  head->frame_len = options.size;
  if (options.size >= kHeader) {
    write_header(options, head->data);
    ask_for_offloads(options, port, head);
  }
  if (by_reference) {
    head->external[0] = payload().data();
    head->external_len[0] = options.size - kHeader;
  }
  return head;
}

std::uint64_t copy_out(Packet* head) {
  static std::vector<std::byte> to(1 << 16);
  std::size_t at = 0;
  for (Packet* p = head; p != nullptr; p = p->next_segment) {
    bypass::copy_bytes(to.data() + at, p->data, p->len);
    at += p->len;
  }
  return at;
}

// --- Roles

class Patience {
 public:
  explicit Patience(const Options& options) : options_(options) {}
  void progress() { empty_ = 0; }
  // Called at each empty poll; looks at the clock every so often.
  [[nodiscard]] bool over() {
    if (options_.yield) sched_yield();
    if (empty_++ == 0) last_ = seconds();
    return empty_ % 4096 == 0 && seconds() - last_ > options_.patience;
  }

 private:
  const Options& options_;
  std::uint64_t empty_ = 0;
  double last_ = 0;
};

bool wait_for_link(const Options& options, Port& port) {
  Patience patience(options);
  while (port.link() != bypass::LinkState::kUp) {
    Packet* none[1];
    if (port.receive(0, {none, 1}) != 0) port.free({none, 1});
    if (patience.over()) return false;
  }
  return true;
}

void send_all(Port& port, Packet** frames, std::size_t n) {
  for (std::size_t sent = 0; sent < n;) sent += port.send(0, {frames + sent, n - sent});
}

void run_pong(const Options& options, Port& port) {
  Patience patience(options);
  Packet* frames[kBurst];
  std::uint64_t total = 0;
  bool was_up = false;  // frames may come before a vhost end counts its link as up
  for (;;) {
    const bool up = port.link() == bypass::LinkState::kUp;
    if (was_up && !up && total != 0) break;
    was_up |= up;
    const std::size_t n = port.receive(0, frames);
    if (n == 0) {
      if (patience.over()) break;
      continue;
    }
    patience.progress();
    send_all(port, frames, n);
    total += n;
  }
  std::printf("{\"role\":\"server\",\"port\":\"%s\",\"frames\":%llu}\n", options.port.c_str(),
              static_cast<unsigned long long>(total));
}

void run_ping(const Options& options, Port& port) {
  if (!wait_for_link(options, port)) die("no peer at " + options.port);
  const TickRate rate;
  Patience patience(options);
  std::vector<std::uint64_t> trips;
  trips.reserve(options.count);
  const double start = seconds();
  while (trips.size() < options.count) {
    Packet* frame = make_frame(options, port);
    if (frame == nullptr) die("no buffers");
    const std::uint64_t begin = ticks();
    send_all(port, &frame, 1);
    Packet* back[1];
    while (port.receive(0, back) == 0)
      if (patience.over()) die("the peer stopped answering");
    trips.push_back(ticks() - begin);
    port.free(back);
    patience.progress();
  }
  const double rate_s = static_cast<double>(options.count) / (seconds() - start);
  std::sort(trips.begin(), trips.end());
  const double ns = rate.ns_per_tick();
  const auto at = [&](double q) {
    return ns * static_cast<double>(trips[static_cast<std::size_t>(q * static_cast<double>(trips.size() - 1))]);
  };
  std::printf(
      "{\"role\":\"client\",\"port\":\"%s\",\"size\":%u,\"count\":%llu,\"min_ns\":%.0f,\"p50_ns\":%.0f,\"p99_ns\":%.0f,"
      "\"p999_ns\":%.0f,\"round_trips_per_s\":%.0f}\n",
      options.port.c_str(), options.size, static_cast<unsigned long long>(options.count), at(0), at(0.5), at(0.99),
      at(0.999), rate_s);
}

void run_send(const Options& options, Port& port) {
  if (!wait_for_link(options, port)) die("no peer at " + options.port);
  Patience patience(options);
  const double start = seconds();
  std::uint64_t sent = 0, answered = 0;
  Packet* frames[kBurst];
  std::size_t held = 0;
  while (sent < options.count) {
    while (held < options.burst && (frames[held] = make_frame(options, port)) != nullptr) held++;
    const std::size_t most = options.window == 0 ? held : std::min(held, options.window - (sent - answered));
    const std::size_t n = port.send(0, {frames, most});
    std::copy(frames + n, frames + held, frames);
    held -= n;
    sent += n;
    Packet* answers[kBurst];
    const std::size_t got = port.receive(0, answers);
    for (const Packet* each : std::span(answers, got))
      if (is_from_peer(options, *each)) answered += options.window / 2;
    port.free({answers, got});
    if (n != 0)
      patience.progress();
    else if (patience.over())
      die("the peer stopped taking frames");
  }
  port.free({frames, held});
  const double elapsed = seconds() - start;
  std::printf(
      "{\"role\":\"client\",\"port\":\"%s\",\"size\":%u,\"frames\":%llu,\"frames_per_s\":%.0f,\"gbit_per_s\":%.2f}\n",
      options.port.c_str(), options.size, static_cast<unsigned long long>(sent), static_cast<double>(sent) / elapsed,
      static_cast<double>(sent) * options.size * 8e-9 / elapsed);
  // Leaving takes the frames in the ring along: let the sink have them.
  for (int i = 0; i < 200 && port.link() == bypass::LinkState::kUp; i++) usleep(1000);
}

// A small frame for each half window.
void answer(Options options, Port& port, std::uint64_t before, std::uint64_t now) {
  const std::uint64_t half = options.window / 2;
  options.size = 60;
  for (std::uint64_t due = now / half - before / half; due != 0; due--) {
    Packet* frame = make_frame(options, port);
    if (frame != nullptr) send_all(port, &frame, 1);
  }
}

void run_sink(const Options& options, Port& port) {
  Patience patience(options);
  std::uint64_t frames = 0, bytes = 0;
  double first = 0, last = 0;
  Packet* batch[kBurst];
  double down_since = 0;
  while (frames < options.count) {
    const std::size_t n = port.receive(0, batch);
    if (n == 0) {
      const bool up = port.link() == bypass::LinkState::kUp;
      if (up || frames == 0) down_since = 0;
      if (!up && frames != 0 && down_since == 0) down_since = seconds();
      // A link that is set up may go down once more on its way; the peer's leaving is for good.
      constexpr double kGone = 0.5;
      if ((down_since != 0 && seconds() - down_since > kGone) || patience.over()) break;
      continue;
    }
    patience.progress();
    if (frames == 0) first = seconds();
    std::size_t taken = 0;
    for (std::size_t i = 0; i < n; i++) {
      if (options.window != 0 && !is_from_peer(options, *batch[i])) continue;
      taken++;
      bytes += batch[i]->frame_len;
      for (const Packet* p = batch[i]; options.sum && p != nullptr; p = p->next_segment) add_sum(*p);
      if (options.copy) copy_out(batch[i]);
    }
    port.free({batch, n});
    if (options.window != 0) answer(options, port, frames, frames + taken);
    frames += taken;
    if (frames % 1024 < taken) last = seconds();
  }
  if (frames >= options.count) last = seconds();
  const double elapsed = std::max(last - first, 1e-9);
  std::printf("{\"role\":\"server\",\"port\":\"%s\",\"frames\":%llu,\"frames_per_s\":%.0f,\"gbit_per_s\":%.2f}\n",
              options.port.c_str(), static_cast<unsigned long long>(frames), static_cast<double>(frames) / elapsed,
              static_cast<double>(bytes) * 8e-9 / elapsed);
}

// --- Command line

bool take_flag(Options& options, std::string_view name) {
  if (name == "--copy")
    options.copy = true;
  else if (name == "--sum")
    options.sum = true;
  else if (name == "--gather")
    options.gather = true;
  else if (name == "--yield")
    options.yield = true;
  else
    return false;
  return true;
}

bool take_value(Options& options, std::string_view name, const std::string& value) {
  if (name == "--role")
    options.role = value;
  else if (name == "--mode")
    options.mode = value;
  else if (name == "--port")
    options.port = value;
  else if (name == "--plugin")
    options.plugin = value;
  else if (name == "--size")
    options.size = static_cast<std::uint32_t>(std::stoul(value));
  else if (name == "--count")
    options.count = std::stoull(value);
  else if (name == "--burst")
    options.burst = std::clamp<std::uint32_t>(static_cast<std::uint32_t>(std::stoul(value)), 1, kBurst);
  else if (name == "--cpu")
    options.cpu = std::stoi(value);
  else if (name == "--window")
    options.window = std::stoull(value);
  else if (name == "--patience")
    options.patience = std::stod(value);
  else
    return false;
  return true;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i++) {
    const std::string word = argv[i];
    if (take_flag(options, word)) continue;
    if (i + 1 < argc && take_value(options, word, argv[i + 1]))
      i++;
    else
      die(word +
          ": accepted are --role server|client --mode pingpong|stream|start --port KIND:TARGET --plugin FILE --size "
          "BYTES "
          "--count N --burst N --window N --cpu N --patience SECONDS --copy --sum --gather --yield");
  }
  return options;
}

std::string plugin_of(const Options& options) {
  if (!options.plugin.empty()) return options.plugin;
  char self[4096] = {};
  if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) die("/proc/self/exe cannot be read; use --plugin");
  const std::string folder = std::string(self).substr(0, std::string_view(self).rfind('/'));
  return folder + "/../libbypass-dpdk.so";  // build/bin/raw_wire
}

void pin(int cpu) {
  if (cpu < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) die("cannot run on core " + std::to_string(cpu));
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const std::size_t colon = options.port.find(':');
  if (colon == std::string::npos) die("--port KIND:TARGET is needed, as in --port vhost:/run/w.sock");
  if (options.role != "server" && options.role != "client") die("--role server or --role client is needed");
  if (options.mode != "pingpong" && options.mode != "stream" && options.mode != "start")
    die(options.mode + ": accepted modes are pingpong, stream and start");
  if (options.window % 2 != 0) die("--window " + std::to_string(options.window) + ": accepted is an even number, or 0");
  const double begin = seconds();
  std::string problem;
  bypass::Backend* backend = bypass::PlainHost::load(plugin_of(options), problem);
  if (backend == nullptr) die(problem);
  bypass::PortSpec spec;
  spec.kind = options.port.substr(0, colon);
  spec.target = options.port.substr(colon + 1);
  spec.mac = options.role == "server" ? kServerMac : kClientMac;
  Port* port = backend->open(spec, problem);
  if (port == nullptr) die(problem);
  if (options.mode == "start") {
    std::printf("{\"start_ms\": %.3f}\n", (seconds() - begin) * 1e3);
    backend->close(port);
    return 0;
  }
  pin(options.cpu);  // after open: the driver's threads stay on every core
  const bool server = options.role == "server";
  if (server) {
    std::puts("ready");
    std::fflush(stdout);
  }
  if (options.mode == "pingpong")
    server ? run_pong(options, *port) : run_ping(options, *port);
  else
    server ? run_sink(options, *port) : run_send(options, *port);
  backend->close(port);
}
