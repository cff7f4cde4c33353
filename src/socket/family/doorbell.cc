#include "socket/family/doorbell.h"

#include <linux/filter.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>

#include "fastpath/shm/rendezvous/directory.h"
#include "os/kernel.h"
#include "os/os.h"
#include "socket/policy.h"
#include "socket/socket.h"
#include "socket/wait/kernel_half.h"

namespace bypass::socket {

namespace {

constexpr std::size_t kNameBytes = 5;

int open_datagram() {
  return policy.own_descriptor(kernel->socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

/// From here on the kernel delivers to the socket only a datagram with exactly these bytes (bpf(2)'s classic form;
/// socket(7)).
bool take_only(int fd, const std::array<std::byte, 16>& token) {
  constexpr std::uint16_t kLoadLength = BPF_LD | BPF_W | BPF_LEN, kLoadWord = BPF_LD | BPF_W | BPF_ABS;
  constexpr std::uint16_t kGoOnIfEqual = BPF_JMP | BPF_JEQ | BPF_K, kReturn = BPF_RET | BPF_K;
  constexpr std::uint32_t kWords = 4, kRefuse = 0, kTake = 0xffffffff;
  constexpr std::size_t kLength = 2 * (1 + kWords) + 2;
  std::array<sock_filter, kLength> program{};
  std::size_t end = 0;
  // If a comparison fails, the program jumps over the remaining steps to the last one, which refuses.
  const auto compare = [&](std::uint16_t load, std::uint32_t from, std::uint32_t with) {
    program[end] = {load, 0, 0, from};
    program[end + 1] = {kGoOnIfEqual, 0, static_cast<std::uint8_t>(kLength - 1 - (end + 2)), with};
    end += 2;
  };
  compare(kLoadLength, 0, static_cast<std::uint32_t>(token.size()));
  for (std::uint32_t i = 0; i < kWords; i++) {
    std::uint32_t word = 0;
    std::memcpy(&word, token.data() + i * sizeof word, sizeof word);
    compare(kLoadWord, i * std::uint32_t{sizeof word}, be32_to_host(word));
  }
  program[end] = {kReturn, 0, 0, kTake};
  program[end + 1] = {kReturn, 0, 0, kRefuse};
  const sock_fprog filter{kLength, program.data()};
  return kernel->setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) == 0;
}

/// Autobind (unix(7)): five characters after the zero byte.
bool bind_to_some_name(int fd, std::array<char, 8>& out) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  socklen_t length = sizeof name;
  if (kernel->bind(fd, reinterpret_cast<sockaddr*>(&name), sizeof name.sun_family) != 0 ||
      kernel->getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) != 0 ||
      length != offsetof(sockaddr_un, sun_path) + 1 + kNameBytes)
    return false;
  std::memcpy(out.data(), name.sun_path + 1, kNameBytes);
  return true;
}

/// The socket by which this process rings; it is never closed.
std::atomic<int> ringing_socket{-1};

int ringing_descriptor() {
  const int have = ringing_socket.load(std::memory_order_acquire);
  if (have >= 0) return have;
  const int made = open_datagram();
  int expected = -1;
  if (made < 0 || ringing_socket.compare_exchange_strong(expected, made)) return made;
  close_own(made);
  return expected;
}

/// Datagram sockets without a name, made in the network namespace of the family's doorbells.
class Spares {
 public:
  int take() {
    for (auto& place : places_)
      if (const int taken = place.exchange(0, std::memory_order_acq_rel); taken != 0) return taken - 1;
    return -1;
  }
  void put(int fd) {
    for (auto& place : places_) {
      int none = 0;
      if (fd < 0 || place.compare_exchange_strong(none, fd + 1, std::memory_order_acq_rel)) return;
    }
    close_own(fd);
  }
  void fill(std::size_t count) {
    for (std::size_t have = size(); have < count; have++) put(open_datagram());
  }
  void move_from(Spares& other, std::size_t count) {
    while (count-- > 0) put(other.take());
  }
  void close() {
    for (int fd = -1; (fd = take()) >= 0;) close_own(fd);
  }
  void forget() {
    while (take() >= 0) {
    }
  }
  [[nodiscard]] std::size_t size() const {
    std::size_t count = 0;
    for_each([&](int) { count++; });
    return count;
  }
  template <typename Act>
  void for_each(const Act& act) const {
    for (const auto& place : places_)
      if (const int taken = place.load(std::memory_order_acquire); taken != 0) act(taken - 1);
  }

  static constexpr std::size_t kMost = 16;

 private:
  std::array<std::atomic<int>, kMost> places_{};  // a descriptor and 1; 0: none
};

/// For a child: its own doorbell, and those of the processes that it makes.
constexpr std::size_t kForAChild = 4;
constinit Spares spares;
constinit Spares handed;  // to the child of the fork that is under way
std::atomic<bool> gone{false};
bool hands = false;

/// A datagram socket in the network namespace of the family's doorbells.
int open_at_home() {
  const int fd = open_datagram();
  if (fd < 0 || !is_elsewhere(fd)) return fd;
  close_own(fd);
  return spares.take();
}

template <typename Act>
void for_each_kept(const Act& act) {
  if (!hands && !gone.load(std::memory_order_relaxed)) return;
  if (const int fd = ringing_socket.load(std::memory_order_relaxed); fd >= 0) act(fd);
  (hands ? handed : spares).for_each(act);
}

}  // namespace

bool has_few_doorbells() {
  return gone.load(std::memory_order_relaxed);
}

bool is_elsewhere(int fd) {
  if (!gone.load(std::memory_order_relaxed)) [[likely]]
    return false;
  const int home = ringing_socket.load(std::memory_order_acquire);
  return home >= 0 && fastpath::shm::network_tag(fd) != fastpath::shm::network_tag(home);
}

void prepare_to_go() {
  if (gone.load(std::memory_order_relaxed) || ringing_descriptor() < 0) return;
  spares.fill(Spares::kMost);
  gone.store(true, std::memory_order_release);
}

void prepare_doorbells_for_fork(bool goes) {
  const bool is_gone = gone.load(std::memory_order_relaxed);
  hands = (goes || is_gone) && ringing_descriptor() >= 0;
  if (!hands) return;
  if (is_gone)
    handed.move_from(spares, std::min(kForAChild, spares.size() / 2));
  else
    handed.fill(kForAChild);
}

void end_doorbells_of_fork() {
  handed.close();
  hands = false;
}

void hide_doorbells() {
  for_each_kept([](int fd) { policy.disown_descriptor(fd); });
}

void show_doorbells() {
  for_each_kept([](int fd) { policy.protect_descriptor(fd); });
}

int make_doorbell(Doorbell& bell) {
  Doorbell made;
  if (!os::fill_random(made.token.data(), made.token.size())) return -1;
  (void)
      ringing_descriptor();  // now: later the program may have used up its descriptors, and nobody else would be woken
  const int fd = open_at_home();
  if (fd < 0) return -1;
  // The filter is set before the name, so that nobody can send in between.
  if (!take_only(fd, made.token) || !bind_to_some_name(fd, made.name)) {
    close_own(fd);
    return -1;
  }
  bell = made;
  return fd;
}

void silence_doorbell(int fd) {
  constexpr int kMost = 64;  // above the usual net.unix.max_dgram_qlen; if more rings come, the thread wakes once more
  Doorbell rung;
  for (int i = 0; i < kMost; i++)
    if (os::call(SYS_recvfrom, fd, os::address(rung.token.data()), rung.token.size(), MSG_DONTWAIT) < 0) return;
}

void forget_doorbells() {
  const bool has_some = gone.load(std::memory_order_relaxed) || hands;
  if (hands || !has_some) spares.forget();
  if (hands) spares.move_from(handed, kForAChild);
  if (!has_some) ringing_socket.store(-1, std::memory_order_relaxed);
  gone.store(has_some, std::memory_order_relaxed);
  hands = false;
}

void ring_doorbell(const WakeTarget& target) {
  if (target.slot >= kMaxProcesses) return;
  const Doorbell& bell =
      target.doorbell.name[0] != 0 ? target.doorbell : shard().family().table().slots[target.slot].doorbell;
  const int fd = ringing_descriptor();
  if (bell.name[0] == 0 || fd < 0) return;
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path + 1, bell.name.data(), kNameBytes);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + kNameBytes);
  os::call(SYS_sendto, fd, os::address(bell.token.data()), bell.token.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
           os::address(&name), length);
}

}  // namespace bypass::socket
