// wire_driver: one end of a wire as a process of its own, told what to do on stdin, one command a line,
// one answer line each. The tests start it, stop it, kill it.
//
//   check KIND TARGET, open KIND TARGET   -> ok [MAC] | error TEXT
//   close
//   wait-link up|down
//   wait-peer here|gone  without a receive(): whether the link, which is down, is expected to come up
//   link                -> ok up|down
//   echo                 every frame goes back, until the next command comes
//   ping N SIZE          N frames there and back, contents checked -> ok GOOD LOST. Above 1514 bytes: TSO frames
//   gather N SIZE        the same, the payload outside of the frame's buffer
//   flood                pings until the next command; says "running" at the start and after each interruption
//                        of the link, once 10 frames in a row have come back -> ok GOOD LOST
//   sleep-echo, sleep-ping N   asleep on the wait descriptor whenever nothing has arrived -> ok WAKES
//   idle MS              asleep for that long -> ok CPU-MICROSECONDS WAKES
//   flags                -> ok FLAGS FLAGS   of a frame with its checksum left out and of one without, echoed
//   fill PORTS BYTES     opens so many and takes frames until each port's buffers have grown to BYTES
//   stats                -> ok RX TX REOPENED UP DOWN FREE TOTAL
//   poll                 one receive
//   said                 -> ok TEXT  warnings of the plugin's
//   libraries           -> ok NAMES  of the files that are mapped executable
//   process, resident, getopt, rand   what opening a port must not change or may cost
//   hold-in-child        -> ok PID   a forked child drops the descriptors and lives on
#include <dirent.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "backends/plain_host.h"

namespace {

using bypass::LinkState;
using bypass::Packet;
using bypass::Port;

constexpr std::size_t kHeader = 54;  // Ethernet, IPv4, TCP

bypass::Backend* backend = nullptr;
Port* port = nullptr;

bool command_waits() {
  pollfd p{STDIN_FILENO, POLLIN, 0};
  return poll(&p, 1, 0) > 0;
}

std::byte pattern(std::uint64_t serial, std::size_t at) {
  return static_cast<std::byte>(serial * 31 + at * 7 + at / 251);
}

void write_headers(std::byte* at, std::uint64_t serial) {
  static const unsigned char header[kHeader] = {2, 0, 0,    0, 0, 1, 2, 0, 0, 0, 0,  2,
                                                8, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6};
  std::memcpy(at, header, kHeader);
  at[46] = std::byte{5 << 4};                    // TCP data offset
  std::memcpy(at + 38, &serial, sizeof serial);  // sequence and acknowledgement numbers
}

std::uint64_t serial_of(const Packet* head) {
  std::uint64_t serial = 0;
  if (head->len >= kHeader) std::memcpy(&serial, head->data + 38, sizeof serial);
  return serial;
}

// --- Frames

struct FrameWish {
  std::uint64_t serial = 0;
  std::uint32_t size = 60;
  bool checksum = false;
  bool gather = false;
  std::vector<std::byte>* outside = nullptr;  // keeps the bytes of a gathered frame
};

Packet* make_frame(const FrameWish& wish) {
  const std::uint32_t size = std::max<std::uint32_t>(wish.size, kHeader);
  const std::uint32_t inside = wish.gather ? kHeader : size;
  const std::uint32_t room = port->caps().buffer_bytes - bypass::kTxHeadroom;
  std::array<Packet*, 64> parts{};
  const std::size_t wanted = (inside + room - 1) / room;
  const std::size_t got = port->alloc(0, {parts.data(), wanted});
  if (got != wanted) {
    port->free({parts.data(), got});
    return nullptr;
  }
  std::size_t at = 0;
  for (std::size_t i = 0; i < wanted; i++) {
    parts[i]->len = std::min<std::uint32_t>(inside - static_cast<std::uint32_t>(at), room);
    for (std::size_t b = 0; b < parts[i]->len; b++, at++) parts[i]->data[b] = pattern(wish.serial, at);
    parts[i]->next_segment = i + 1 < wanted ? parts[i + 1] : nullptr;
  }
  Packet* head = parts[0];
  write_headers(head->data, wish.serial);
  head->frame_len = size;
  head->l2_len = 14;
  head->l3_len = head->l4_len = 20;
  if (wish.checksum || size > 1514) head->flags |= bypass::kTxL4Checksum;
  if (size > 1514) {
    head->flags |= bypass::kTxTso;
    head->tso_mss = 1460;
  }
  if (wish.gather) {
    auto& out = *wish.outside;
    out.resize(size - kHeader);
    for (std::size_t b = 0; b < out.size(); b++) out[b] = pattern(wish.serial, kHeader + b);
    const std::size_t half = out.size() / 3;
    head->external[0] = out.data();
    head->external_len[0] = static_cast<std::uint32_t>(out.size() - half);
    head->external[1] = out.data() + (out.size() - half);
    head->external_len[1] = static_cast<std::uint32_t>(half);
  }
  return head;
}

bool content_is_good(const Packet* head, std::uint32_t size) {
  if (head->frame_len != std::max<std::uint32_t>(size, kHeader) || head->len < kHeader) return false;
  const std::uint64_t serial = serial_of(head);
  std::size_t at = 0;
  for (const Packet* p = head; p != nullptr; p = p->next_segment)
    for (std::size_t b = 0; b < p->len; b++, at++)
      if (at >= kHeader && p->data[b] != pattern(serial, at)) return false;
  return at == head->frame_len;
}

// Sends back what came, with the offloads that its size asks for.
void prepare_echo(Packet* p) {
  const std::uint16_t received = p->flags;
  p->flags = 0;
  p->l2_len = 14;
  p->l3_len = p->l4_len = 20;
  if ((received & bypass::kRxL4ChecksumGood) != 0) p->flags |= bypass::kTxL4Checksum;
  if ((received & bypass::kRxLro) != 0) p->flags |= bypass::kTxTso | bypass::kTxL4Checksum;
}

std::size_t echo_once() {
  std::array<Packet*, 32> frames{};
  const std::size_t n = port->receive(0, frames);
  for (std::size_t i = 0; i < n; i++) prepare_echo(frames[i]);
  for (std::size_t sent = 0; sent < n;) {
    const std::size_t more = port->send(0, {frames.data() + sent, n - sent});
    sent += more;
    if (more != 0) continue;
    if (command_waits()) {  // the peer is frozen: let the rest go
      port->free({frames.data() + sent, n - sent});
      break;
    }
    sched_yield();
  }
  return n;
}

// --- Commands

std::string echo() {
  while (!command_waits())
    if (echo_once() == 0) sched_yield();
  return "ok";
}

// One frame there and back. Waits as long as the link is up and no command interrupts, and no longer than `patience`:
// a wire may lose a frame, most of all while its other end is being replaced.
enum class Trip { kGood, kLost, kWrong, kInterrupted };
using Clock = std::chrono::steady_clock;

Trip round_trip(const FrameWish& wish, Clock::duration patience = std::chrono::hours(1)) {
  const Clock::time_point deadline = Clock::now() + patience;
  if (port->link() == LinkState::kDown) {
    echo_once();  // receive() lets the port settle
    return command_waits() ? Trip::kInterrupted : Trip::kLost;
  }
  Packet* frame = make_frame(wish);
  if (frame == nullptr) return Trip::kWrong;
  // A link that went down and up again between two looks has swallowed the frame as well.
  const std::uint64_t downs = port->stats().link_down;
  const auto is_lost = [downs] { return port->link() == LinkState::kDown || port->stats().link_down != downs; };
  while (port->send(0, {&frame, 1}) == 0) {
    if (is_lost() || command_waits()) {
      port->free({&frame, 1});
      return command_waits() ? Trip::kInterrupted : Trip::kLost;
    }
    Packet* none[1];
    port->free({none, port->receive(0, none)});
    sched_yield();
  }
  for (;;) {
    Packet* back[1];
    if (port->receive(0, back) == 1) {
      const bool mine = serial_of(back[0]) == wish.serial;
      const bool good = content_is_good(back[0], wish.size);
      port->free(back);
      if (mine) return good ? Trip::kGood : Trip::kWrong;
      continue;  // an answer from before a restart
    }
    if (is_lost() || Clock::now() >= deadline) return Trip::kLost;
    if (command_waits()) return Trip::kInterrupted;
    sched_yield();
  }
}

std::string ping(std::uint64_t count, FrameWish wish) {
  static std::uint64_t serial = 1;
  std::vector<std::byte> outside;
  wish.outside = &outside;
  std::uint64_t good = 0, lost = 0;
  while (good < count) {
    wish.serial = serial++;
    const Trip trip = round_trip(wish);
    if (trip == Trip::kWrong) return "error frame " + std::to_string(wish.serial) + " came back wrong";
    if (trip == Trip::kInterrupted) break;
    (trip == Trip::kGood ? good : lost)++;
    if (trip == Trip::kLost) sched_yield();
  }
  return "ok " + std::to_string(good) + " " + std::to_string(lost);
}

std::string flood() {
  static std::uint64_t serial = std::uint64_t{1} << 32;
  std::uint64_t good = 0, lost = 0, row = 0;
  for (;;) {
    const Trip trip = round_trip({.serial = serial++, .size = 200}, std::chrono::milliseconds(200));
    if (trip == Trip::kWrong) return "error frame " + std::to_string(serial - 1) + " came back wrong";
    if (trip == Trip::kInterrupted) return "ok " + std::to_string(good) + " " + std::to_string(lost);
    row = trip == Trip::kGood ? row + 1 : 0;
    (trip == Trip::kGood ? good : lost)++;
    if (row == 10 && write(STDOUT_FILENO, "running\n", 8) < 0) return "error stdout";
    if (trip == Trip::kLost) {
      if (command_waits()) return "ok " + std::to_string(good) + " " + std::to_string(lost);
      sched_yield();
    }
  }
}

// The headers lie in two buffers, which no driver's rte_eth_tx_prepare takes.
void split_headers(Packet* head, Packet* rest) {
  rest->len = head->len - 20;
  std::memcpy(rest->data, head->data + 20, rest->len);
  rest->next_segment = nullptr;
  head->len = 20;
  head->next_segment = rest;
  head->flags |= bypass::kTxL4Checksum;
}

// Three frames at once, of which the driver refuses the second: -> how many have been taken, came back, were dropped.
std::string refusal() {
  std::array<Packet*, 4> frames{};
  for (std::size_t i = 0; i < frames.size(); i++) {
    frames[i] = make_frame({.serial = 900 + i, .size = 200});
    if (frames[i] == nullptr) return "error no buffer";
  }
  split_headers(frames[1], frames[3]);
  const std::size_t sent = port->send(0, {frames.data(), 3});
  std::size_t back = 0;
  for (const auto latest = Clock::now() + std::chrono::seconds(5); back + 1 < sent && Clock::now() < latest;) {
    Packet* some[1];
    const std::size_t n = port->receive(0, some);
    port->free({some, n});
    back += n;
    sched_yield();
  }
  return "ok " + std::to_string(sent) + " " + std::to_string(back) + " " + std::to_string(port->stats().tx_dropped);
}

std::string wait_link(bool up) {
  const LinkState wanted = up ? LinkState::kUp : LinkState::kDown;
  while (port->link() != wanted) {
    Packet* some[8];
    port->free({some, port->receive(0, some)});
    if (command_waits()) return "error interrupted";
    sched_yield();
  }
  return "ok";
}

std::string wait_peer(bool here) {
  while (port->link() == LinkState::kUp || port->expects_link() != here) {
    if (command_waits()) return "error interrupted";
    sched_yield();
  }
  return "ok";
}

std::string look_at_link() {
  Packet* some[8];
  port->free({some, port->receive(0, some)});
  return port->link() == LinkState::kUp ? "ok up" : "ok down";
}

// Sleeps in a level-triggered poll until the port or stdin wakes. False when a command came.
bool sleep_on_port(std::uint64_t& wakes) {
  if (!port->arm(0)) return true;
  Packet* some[1];
  if (port->receive(0, some) != 0) {
    prepare_echo(some[0]);
    if (port->send(0, some) == 0) port->free(some);
    port->disarm(0);
    return true;
  }
  pollfd p[2] = {{port->wait_descriptor(0), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
  poll(p, 2, -1);
  wakes++;
  port->disarm(0);
  return (p[1].revents & POLLIN) == 0;
}

std::string sleep_echo() {
  std::uint64_t wakes = 0;
  for (;;) {
    while (echo_once() != 0) continue;
    if (!sleep_on_port(wakes)) return "ok " + std::to_string(wakes);
  }
}

std::string sleep_ping(std::uint64_t count) {
  std::uint64_t wakes = 0;
  for (std::uint64_t i = 0; i < count; i++) {
    Packet* frame = make_frame({.serial = i + 1, .size = 60});
    if (frame == nullptr || port->send(0, {&frame, 1}) == 0) return "error cannot send";
    for (;;) {
      Packet* back[1];
      if (port->receive(0, back) == 1) {
        port->free(back);
        break;
      }
      if (!port->arm(0)) continue;
      if (port->receive(0, back) == 1) {
        port->free(back);
        port->disarm(0);
        break;
      }
      pollfd p[2] = {{port->wait_descriptor(0), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
      poll(p, 2, -1);
      wakes++;
      port->disarm(0);
      if (p[1].revents != 0) return "error interrupted";
    }
  }
  return "ok " + std::to_string(wakes);
}

// CPU time of this process over `milliseconds` asleep on the armed port, in microseconds.
std::string idle(int milliseconds) {
  const auto cpu = [] {
    rusage u{};
    getrusage(RUSAGE_SELF, &u);
    return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1'000'000L + u.ru_utime.tv_usec + u.ru_stime.tv_usec;
  };
  const long before = cpu();
  while (!port->arm(0)) {
    Packet* some[8];
    port->free({some, port->receive(0, some)});
  }
  std::uint64_t wakes = 0;
  pollfd p{port->wait_descriptor(0), POLLIN, 0};
  while (poll(&p, 1, milliseconds) > 0) {
    wakes++;
    port->disarm(0);
    Packet* some[8];
    port->free({some, port->receive(0, some)});
    port->arm(0);
  }
  port->disarm(0);
  return "ok " + std::to_string(cpu() - before) + " " + std::to_string(wakes);
}

std::string flags() {
  std::string text = "ok";
  for (const bool checksum : {true, false}) {
    Packet* frame = make_frame({.serial = 77, .size = 200, .checksum = checksum});
    if (frame == nullptr || port->send(0, {&frame, 1}) != 1) return "error cannot send";
    Packet* back[1];
    while (port->receive(0, back) != 1) {
      if (command_waits()) return "error interrupted";
      sched_yield();
    }
    text += " " + std::to_string(back[0]->flags);
    port->free(back);
  }
  return text;
}

std::string stats() {
  const bypass::PortStats s = port->stats();
  std::ostringstream out;
  out << "ok " << s.rx_frames << ' ' << s.tx_frames << ' ' << s.reopened << ' ' << s.link_up << ' ' << s.link_down
      << ' ' << s.buffers_free << ' ' << s.buffers_total;
  return out.str();
}

// What of the process a program could notice: descriptors below the host's base, affinity, signal state,
// how many variables its environment has, getopt in the middle of an argument, resident memory.
std::string process() {
  std::ostringstream out;
  std::string low, loose;
  DIR* folder = opendir("/proc/self/fd");
  for (dirent* e; (e = readdir(folder)) != nullptr;) {
    const int fd = std::atoi(e->d_name);
    if (e->d_name[0] == '.' || fd == dirfd(folder)) continue;
    if (fd < bypass::PlainHost::kBase)
      low += std::to_string(fd) + ",";
    else if ((fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0 || !bypass::PlainHost::owned().contains(fd))
      loose += std::to_string(fd) + ",";
  }
  closedir(folder);
  cpu_set_t cpus;
  sched_getaffinity(0, sizeof cpus, &cpus);
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  int blocked = 0, handled = 0;
  for (int s = 1; s < 32; s++) {
    struct sigaction action {};
    sigaction(s, nullptr, &action);
    blocked += sigismember(&mask, s);
    handled += action.sa_handler != SIG_DFL ? 1 : 0;
  }
  int variables = 0;
  for (char** each = environ; *each != nullptr; each++) variables++;
  out << "ok variables=" << variables << " low=" << low << " loose=" << loose << " cpus=" << CPU_COUNT(&cpus)
      << " blocked=" << blocked << " handled=" << handled << " optind=" << optind;
  return out.str();
}

std::string libraries() {
  FILE* file = fopen("/proc/self/maps", "r");
  char line[512];
  std::string names = "ok";
  while (fgets(line, sizeof line, file) != nullptr) {
    line[strcspn(line, "\n")] = '\0';
    const char* slash = std::strrchr(line, '/');
    if (slash != nullptr && std::strstr(line, " r-xp ") != nullptr) names += std::string(" ") + (slash + 1);
  }
  fclose(file);
  return names;
}

std::string resident_kib() {
  FILE* file = fopen("/proc/self/status", "r");
  char line[256];
  long kib = 0;
  while (fgets(line, sizeof line, file) != nullptr)
    if (std::sscanf(line, "VmRSS: %ld", &kib) == 1) break;
  fclose(file);
  return "ok " + std::to_string(kib);
}

std::string hold_in_child() {
  const pid_t child = fork();
  if (child == 0) {
    backend->drop_in_child();
    for (;;) pause();
  }
  return "ok " + std::to_string(child);
}

std::string open_port(const std::string& kind, const std::string& target, bool check_only) {
  bypass::PortSpec spec;
  spec.kind = kind;
  spec.target = target;
  std::string problem;
  if (!backend->check(spec, problem)) return "error " + problem;
  if (check_only) return "ok";
  port = backend->open(spec, problem);
  if (port == nullptr) return "error " + problem;
  const auto mac = port->mac().bytes;
  char text[32];
  std::snprintf(text, sizeof text, "ok %02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]);
  return text;
}

// Takes frames until all that the budget allows are made: -> what went wrong, or nothing.
std::string take_all(Port& from, std::uint32_t budget) {
  constexpr std::uint32_t kMbufAndPacket = 256;
  const std::uint64_t expected = budget / (from.caps().buffer_bytes + kMbufAndPacket);
  std::vector<Packet*> taken;
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds{20};
  while (taken.size() < expected && std::chrono::steady_clock::now() < patience) {
    std::array<Packet*, 64> some{};
    const std::size_t n = from.alloc(0, {some.data(), std::min<std::size_t>(some.size(), expected - taken.size())});
    taken.insert(taken.end(), some.data(), some.data() + n);
    if (n == 0) sched_yield();
  }
  const std::size_t got = taken.size();
  from.free(taken);
  return got == expected ? "" : std::to_string(got) + " of " + std::to_string(expected) + " frames";
}

std::string fill(std::uint16_t count, std::uint32_t budget) {
  std::string problem;
  std::vector<Port*> ports;
  for (std::uint16_t i = 0; i < count; i++) {
    bypass::PortSpec spec;
    spec.kind = "dpdk";
    spec.target = "net_null" + std::to_string(i);
    spec.buffer_memory = budget;
    spec.hugepages = bypass::Hugepages::kOff;
    spec.ports = count;
    spec.index = i;
    ports.push_back(backend->open(spec, problem));
    if (ports.back() == nullptr) return "error port " + std::to_string(i) + ": " + problem;
  }
  for (std::size_t i = 0; i < ports.size(); i++)
    if (const std::string wrong = take_all(*ports[i], budget); !wrong.empty())
      return "error port " + std::to_string(i) + ": " + wrong;
  return "ok";
}

// As the process reads it to give the port its addresses, before anybody polls it.
std::string identity() {
  const bool has_mac = !port->mac().is_zero() && !port->mac().is_multicast();
  return "ok " + std::to_string(port->caps().mtu) + (has_mac ? " with" : " without") + " a MAC address";
}

std::string close_port() {
  backend->close(port);
  port = nullptr;
  return "ok";
}

std::string run(const std::string& line) {
  std::istringstream in(line);
  std::string verb, a, b;
  in >> verb >> a >> b;
  const auto number = [](const std::string& text) { return std::strtoull(text.c_str(), nullptr, 10); };
  const auto size = static_cast<std::uint32_t>(number(b));
  if (verb == "open") return open_port(a, b, false);
  if (verb == "check") return open_port(a, b, true);
  if (verb == "process") return process();
  if (verb == "resident") return resident_kib();
  if (verb == "libraries") return libraries();
  if (verb == "rand") return "ok " + std::to_string(rand());
  if (verb == "said") {
    std::string text = bypass::PlainHost::said();
    std::replace(text.begin(), text.end(), '\n', ' ');
    return "ok " + text;
  }
  if (verb == "fill") return fill(static_cast<std::uint16_t>(number(a)), size);
  if (port == nullptr) return "error no port";
  if (verb == "close") return close_port();
  if (verb == "identity") return identity();
  if (verb == "echo") return echo();
  if (verb == "poll") {
    echo_once();
    return "ok";
  }
  if (verb == "ping") return ping(number(a), {.size = size});
  if (verb == "gather") return ping(number(a), {.size = size, .gather = true});
  if (verb == "flood") return flood();
  if (verb == "refusal") return refusal();
  if (verb == "wait-link") return wait_link(a == "up");
  if (verb == "wait-peer") return wait_peer(a == "here");
  if (verb == "link") return look_at_link();
  if (verb == "sleep-echo") return sleep_echo();
  if (verb == "sleep-ping") return sleep_ping(number(a));
  if (verb == "idle") return idle(static_cast<int>(number(a)));
  if (verb == "flags") return flags();
  if (verb == "stats") return stats();
  if (verb == "caps") {
    const auto& c = port->caps();
    return "ok " + std::to_string(c.tso) + std::to_string(c.tx_l4_checksum) + std::to_string(c.gather);
  }
  if (verb == "hold-in-child") return hold_in_child();
  return "error unknown command " + verb;
}

}  // namespace

int main(int argc, char** argv) {
  std::string problem;
  srand(7);
  backend = argc > 1 ? bypass::PlainHost::load(argv[1], problem) : nullptr;
  if (backend == nullptr) {
    std::fprintf(stderr, "wire_driver PLUGIN: %s\n", problem.c_str());
    return 1;
  }
  // Into the middle of a bundle of options: a library that used getopt itself would lose the place.
  char program[] = "x", bundle[] = "-ab";
  char* words[] = {program, bundle, nullptr};
  getopt(2, words, "+ab");
  char line[512];
  while (read(STDIN_FILENO, line, 0) == 0) {  // unbuffered, so that poll() on stdin tells the truth
    std::string text;
    char c = 0;
    while (read(STDIN_FILENO, &c, 1) == 1 && c != '\n') text += c;
    if (text.empty() || text == "quit") break;
    const std::string answer = text == "getopt" ? "ok " + std::to_string(getopt(2, words, "+ab")) : run(text);
    const std::string out = answer + "\n";
    if (write(STDOUT_FILENO, out.data(), out.size()) < 0) return 1;
  }
  return 0;
}
