#include "backends/dpdk/eal/descriptors.h"

#include <fcntl.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "backends/dpdk/eal/libc.h"
#include "os/poll_by_parts.h"

namespace bypass::dpdk {
namespace {

constexpr int kMaxDescriptor = 1 << 16;
std::array<std::atomic<std::uint64_t>, kMaxDescriptor / 64> ours;

std::uint64_t bit_of(int fd) {
  return std::uint64_t{1} << (fd % 64);
}
std::atomic<std::uint64_t>& word_of(int fd) {
  return ours[static_cast<std::size_t>(fd) / 64];
}

void mark(int fd) {
  if (fd < kMaxDescriptor) word_of(fd).fetch_or(bit_of(fd), std::memory_order_relaxed);
  host->own_descriptor(fd, true);
}

// A connected vhost-user socket. Each port has one, so there are few.
struct Wire {
  std::atomic<int> fd{-1};
  int listener = -1;
  char path[108] = {};
};
std::array<Wire, 64> wires;
std::atomic<int> vhost_pipe{-1};

Wire* take_wire(int fd) {
  for (Wire& wire : wires) {
    int free = -1;
    if (wire.fd.compare_exchange_strong(free, fd)) return &wire;
  }
  return nullptr;
}

void forget_wire(int fd) {
  for (Wire& wire : wires) {
    int mine = fd;
    wire.fd.compare_exchange_strong(mine, -1);
  }
}

bool alive(int fd) {
  pollfd p{fd, POLLRDHUP, 0};
  return libc.poll(&p, 1, 0) == 0 || (p.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) == 0;
}

}  // namespace

int raise_descriptor(int fd) {
  if (fd < 0) return fd;
  const int saved = errno;
  if (const int high = host->copy_high(fd); high >= 0) {
    libc.close(fd);
    fd = high;
  }
  libc.fcntl(fd, F_SETFD, FD_CLOEXEC);
  mark(fd);
  errno = saved;
  return fd;
}

int find_descriptor(bool (*wanted)(int fd)) {
  int found = -1;
  for (std::size_t i = 0; i < ours.size(); i++)
    for (std::uint64_t word = ours[i].load(std::memory_order_relaxed); word != 0; word &= word - 1)
      if (const int fd = static_cast<int>(i * 64) + __builtin_ctzll(word); wanted(fd)) found = fd;
  return found;
}

void forget_descriptor(int fd) {
  if (fd < 0) return;
  forget_wire(fd);
  if (fd < kMaxDescriptor) {
    const std::uint64_t before = word_of(fd).fetch_and(~bit_of(fd), std::memory_order_relaxed);
    if ((before & bit_of(fd)) == 0) return;
  }
  host->own_descriptor(fd, false);
}

void close_descriptor(int fd) {
  if (fd < 0) return;
  forget_descriptor(fd);
  libc.close(fd);
}

int poll_descriptors(std::span<pollfd> set, int timeout_ms) {
  const int ready = libc.poll(set.data(), set.size(), timeout_ms);
  if (ready >= 0 || errno == EINTR) return ready;
  const timespec limit{timeout_ms / 1000, timeout_ms % 1000 * 1'000'000L};
  return socket::poll_by_parts(set, timeout_ms < 0 ? nullptr : &limit);
}

void drop_all_descriptors() {
  for (std::size_t i = 0; i < ours.size(); i++) {
    std::uint64_t word = ours[i].exchange(0, std::memory_order_relaxed);
    while (word != 0) {
      const int bit = __builtin_ctzll(word);
      word &= word - 1;
      libc.close(static_cast<int>(i * 64) + bit);
    }
  }
}

void protect_all_descriptors(bool on) {
  for (std::size_t i = 0; i < ours.size(); i++)
    for (std::uint64_t word = ours[i].load(std::memory_order_relaxed); word != 0; word &= word - 1)
      host->own_descriptor(static_cast<int>(i * 64) + __builtin_ctzll(word), on);
}

void remember_client(int fd, const char* path) {
  Wire* wire = take_wire(fd);
  if (wire == nullptr) return;
  wire->listener = -1;
  const std::size_t length = strnlen(path, sizeof wire->path - 1);
  std::memcpy(wire->path, path, length);
  wire->path[length] = '\0';
}

void shut_client_down(const std::string& path) {
  for (Wire& wire : wires) {
    const int fd = wire.fd.load();
    if (fd >= 0 && wire.listener < 0 && path == wire.path) libc.shutdown(fd, SHUT_RDWR);
  }
}

void remember_vhost_pipe(int write_end) {
  vhost_pipe.store(write_end);
}

void poke_vhost_thread() {
  const int fd = vhost_pipe.load();
  if (fd >= 0 && libc.write(fd, "p", 1) < 0) return;  // a full pipe also wakes its reader
}

void hang_up(int fd) {
  for (Wire& wire : wires)
    if (wire.fd.load() == fd) libc.shutdown(fd, SHUT_RDWR);
}

bool is_rival(int listener) {
  for (Wire& wire : wires) {
    const int fd = wire.fd.load();
    if (fd >= 0 && wire.listener == listener && alive(fd)) return true;
  }
  return false;
}

void remember_accepted(int listener, int fd) {
  if (Wire* wire = take_wire(fd)) wire->listener = listener;
}

}  // namespace bypass::dpdk
