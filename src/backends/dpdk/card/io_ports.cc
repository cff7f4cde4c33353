#include "backends/dpdk/card/io_ports.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "backends/dpdk/eal/descriptors.h"
#include "backends/dpdk/eal/libc.h"

namespace bypass::dpdk {
namespace {

struct Ports {
  std::atomic<const void*> key{nullptr};
  std::atomic<int> fd{-1};
};
std::array<Ports, 8> g_ports;

std::string& folder() {
  static auto* text = new std::string;
  return *text;
}

Ports* find(const void* key) {
  const auto found = std::find_if(g_ports.begin(), g_ports.end(), [key](const Ports& ports) {
    return ports.key.load(std::memory_order_acquire) == key;
  });
  return found == g_ports.end() ? nullptr : &*found;
}

int descriptor_of(const void* key) {
  const Ports* const ports = find(key);
  return ports == nullptr ? -1 : ports->fd.load(std::memory_order_acquire);
}

// The kernel makes one port access of each call, of as many bytes as are asked for: 1, 2 or 4.
std::size_t one_access(std::size_t left) {
  return left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

}  // namespace

void name_card_of_ports(const std::string& card) {
  folder() = card;
}

bool open_ports(const void* key, int bar, std::string& problem) {
  close_ports(key);
  Ports* const place = find(nullptr);
  const std::string path = folder() + "/resource" + std::to_string(bar);
  if (place == nullptr) {
    problem = path + ": this process has the I/O ports of " + std::to_string(g_ports.size()) + " cards already";
    return false;
  }
  const int fd = raise_descriptor(libc.open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (fd < 0) {
    problem = path + ", the card's I/O ports: " + std::strerror(errno);
    return false;
  }
  place->fd.store(fd, std::memory_order_release);
  place->key.store(key, std::memory_order_release);
  return true;
}

void close_ports(const void* key) {
  Ports* const ports = find(key);
  if (ports == nullptr) return;
  ports->key.store(nullptr, std::memory_order_release);
  close_descriptor(ports->fd.exchange(-1, std::memory_order_acq_rel));
}

void forget_ports_in_child() {
  for (Ports& ports : g_ports) {
    ports.key.store(nullptr, std::memory_order_release);
    ports.fd.store(-1, std::memory_order_release);
  }
}

void read_ports(const void* key, std::byte* data, std::size_t bytes, std::size_t offset) {
  const int fd = descriptor_of(key);
  for (std::size_t done = 0, part; done < bytes; done += part) {
    part = one_access(bytes - done);
    const ssize_t got = libc.pread64(fd, data + done, part, static_cast<off64_t>(offset + done));
    if (got != static_cast<ssize_t>(part)) std::fill_n(data + done, part, std::byte{0xff});
  }
}

void write_ports(const void* key, const std::byte* data, std::size_t bytes, std::size_t offset) {
  const int fd = descriptor_of(key);
  for (std::size_t done = 0, part; done < bytes; done += part) {
    part = one_access(bytes - done);
    libc.pwrite64(fd, data + done, part, static_cast<off64_t>(offset + done));  // a card that has gone takes nothing
  }
}

}  // namespace bypass::dpdk
