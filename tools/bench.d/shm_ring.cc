// shm_ring: what src/fastpath/shm costs, beside what nothing can undercut. Two threads, pinned; medians, in
// nanoseconds.
//
//   shm_ring [CPU CPU]       prints a JSON object:
//     bounce         a cache line there and back
//     ping_pong      64 bytes there and back over two rings, both sides polling
//     begin          a pairing begun, nobody at the other end: what a plain peer costs a connection
//     pair           a pairing of both ends in one thread
//     wake_*         one wake-up, for him who wakes: the other thread sleeps in poll (in futex_wait)
//     slept_*        until the woken thread runs
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "cacheline.h"
#include "fastpath/shm/rendezvous/pairing.h"

namespace {

using namespace bypass;
using namespace bypass::bench;
using namespace std::chrono_literals;
namespace shm = fastpath::shm;
constexpr std::size_t kMessage = 64;
constexpr shm::RingSizes kSizes{65536, 65536};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}
double since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
}
double median_of(int runs, const std::function<double()>& run) {
  std::vector<double> values;
  for (int i = 0; i < runs; i++) values.push_back(run());
  return median(std::move(values));
}

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "shm_ring: %s\n", what);
  std::exit(1);
}

// --- Rings

struct End {
  shm::RingView out, in;
  shm::Producer producer;
  shm::Consumer consumer;

  explicit End(const shm::Segment& segment) : out(segment.outgoing()), in(segment.incoming()) {}
  void send(const char (&message)[kMessage]) {
    auto room = producer.room(out, kMessage);
    std::memcpy(room.part[0].data(), message, kMessage);  // 64 divides the ring
    (void)producer.publish(out, kMessage);
  }
  void receive(char (&message)[kMessage]) {
    auto there = consumer.peek(in);
    while (there.size() < kMessage) there = consumer.peek(in);
    std::memcpy(message, there.part[0].data(), kMessage);
    (void)consumer.consume(in, kMessage);
  }
};

double ping_pong(const shm::Segment& host, const shm::Segment& guest, int cpu_a, int cpu_b) {
  constexpr int kRounds = 4000;
  std::thread other([&] {
    pin(cpu_b);
    End end(guest);
    char message[kMessage];
    for (int i = 0; i < kRounds; i++) end.receive(message), end.send(message);
  });
  pin(cpu_a);
  End end(host);
  char message[kMessage] = {};
  auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kRounds; i++) {
    if (i == kRounds / 4) start = std::chrono::steady_clock::now();
    end.send(message), end.receive(message);
  }
  const double time = since(start);
  other.join();
  return time / (kRounds * 3 / 4);
}

double ping_pong(int cpu_a, int cpu_b) {
  auto host = shm::Segment::create(kSizes);
  if (!host.ok()) fail(to_string(host.refusal));
  auto guest = shm::Segment::open(host.value.descriptor());
  if (!guest.ok()) fail(to_string(guest.refusal));
  return ping_pong(host.value, guest.value, cpu_a, cpu_b);
}

// --- Pairing

std::pair<int, int> connection() {
  sockaddr_in name{};
  socklen_t bytes = sizeof name;
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0), client = ::socket(AF_INET, SOCK_STREAM, 0);
  auto* const address = reinterpret_cast<sockaddr*>(&name);
  if (::bind(listener, address, bytes) != 0 || ::listen(listener, 1) != 0 ||
      ::getsockname(listener, address, &bytes) != 0 || ::connect(client, address, bytes) != 0)
    fail("no connection over loopback");
  const int server = ::accept(listener, nullptr, nullptr);
  ::close(listener);
  return {client, server};
}

/// A folder as the run directory is, gone with the process.
int folder() {
  static const struct Folder {
    Folder() { fd = ::open(::mkdtemp(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }
    ~Folder() { ::rmdir(path); }
    char path[32] = "/dev/shm/bypass-bench.XXXXXX";
    int fd = -1;
  } made;
  return made.fd;
}

double begin(int client) {
  shm::Pairing pairing;
  const auto start = std::chrono::steady_clock::now();
  pairing.begin(folder(), client, kSizes, Instant{}, Instant{1s});
  return since(start);
}

double pair(int client, int server) {
  const auto start = std::chrono::steady_clock::now();
  shm::Pairing a, b;
  a.begin(folder(), client, kSizes, Instant{}, Instant{1s});
  b.begin(folder(), server, kSizes, Instant{}, Instant{1s});
  for (Instant now{}; a.state() == shm::Pairing::State::kWaiting; now += 1ms) a.step(now), b.step(now);
  if (a.state() != shm::Pairing::State::kPaired) fail(to_string(a.refusal()));
  return since(start);
}

// --- Wake-ups

struct Bell {
  std::function<void()> ring, wait;
};

/// What a wake-up costs the waker, and how long it takes until the sleeper runs.
std::pair<double, double> wake(const Bell& bell, int cpu_a, int cpu_b) {
  constexpr unsigned kRounds = 300;
  Line round, woken;
  std::thread sleeper([&] {
    pin(cpu_b);
    for (unsigned i = 1; i <= kRounds; i++) {
      round.value.store(i, std::memory_order_release);
      bell.wait();
      woken.value.store(i, std::memory_order_release);
    }
  });
  pin(cpu_a);
  std::vector<double> costs, delays;
  for (unsigned i = 1; i <= kRounds; i++) {
    while (round.value.load(std::memory_order_acquire) != i) {
    }
    const auto settled = std::chrono::steady_clock::now() + 50us;  // it is asleep by then, as good as always
    while (std::chrono::steady_clock::now() < settled) {
    }
    const auto start = std::chrono::steady_clock::now();
    bell.ring();
    costs.push_back(since(start));
    while (woken.value.load(std::memory_order_acquire) != i) {
    }
    delays.push_back(since(start));
  }
  sleeper.join();
  return {median(std::move(costs)), median(std::move(delays))};
}

void wait_readable(int fd) {
  pollfd item{fd, POLLIN, 0};
  ::poll(&item, 1, -1);
}

void print_wake(const char* name, const Bell& bell, int cpu_a, int cpu_b) {
  const auto [cost, delay] = wake(bell, cpu_a, cpu_b);
  std::printf(", \"wake_%s\": %.0f, \"slept_%s\": %.0f", name, cost, name, delay);
}

void print_wakes(int cpu_a, int cpu_b) {
  const int event = ::eventfd(0, 0);
  std::uint64_t one = 1, got = 0;
  print_wake("eventfd",
             {[&] { (void)!::write(event, &one, sizeof one); },
              [&] { wait_readable(event), (void)!::read(event, &got, sizeof got); }},
             cpu_a, cpu_b);
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) fail("no socket pair");
  shm::Channel a{shm::Descriptor(ends[0])}, b{shm::Descriptor(ends[1])};
  std::byte room[64];
  print_wake("channel", {[&] { a.wake(); }, [&] { wait_readable(b.descriptor()), (void)b.receive(room); }}, cpu_a,
             cpu_b);
  std::atomic<std::uint32_t> word{0};
  const auto* const raw = reinterpret_cast<const std::uint32_t*>(&word);
  print_wake("futex",
             {[&] { word = 1, os::futex_wake(raw, 1); },
              [&] {
                while (word == 0) os::futex_wait(raw, 0, 1'000'000'000);
                word = 0;
              }},
             cpu_a, cpu_b);
  ::close(event);
}

}  // namespace

int main(int argc, char** argv) {
  const int a = argc > 2 ? std::atoi(argv[1]) : 0, b = argc > 2 ? std::atoi(argv[2]) : 1;
  std::printf("{\"bounce\": %.0f", median_of(9, [&] { return bounce(a, b); }));
  std::printf(", \"ping_pong\": %.0f", median_of(9, [&] { return ping_pong(a, b); }));
  const auto [client, server] = connection();
  std::printf(", \"begin\": %.0f", median_of(2000, [c = client] { return begin(c); }));
  std::printf(", \"pair\": %.0f", median_of(500, [c = client, s = server] { return pair(c, s); }));
  print_wakes(a, b);
  std::printf("}\n");
}
