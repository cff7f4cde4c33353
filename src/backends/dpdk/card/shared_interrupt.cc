#include "backends/dpdk/card/shared_interrupt.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>

namespace bypass::dpdk {
namespace {

struct Follower {
  int fd = -1;
  void (*call)(void*) = nullptr;
  void* argument = nullptr;
};

// Never destroyed: DPDK's threads outlive the program's static destructors.
struct Followers {
  std::mutex mutex;
  std::array<Follower, 32> list;
  std::atomic<int> count{0};
};
Followers& followers() {
  static auto* all = new Followers;
  return *all;
}

Follower* find(Followers& all, int fd) {
  const auto found = std::find_if(all.list.begin(), all.list.end(), [fd](const Follower& f) { return f.fd == fd; });
  return found == all.list.end() ? nullptr : &*found;
}

}  // namespace

bool follow_reads(int fd, void (*call)(void*), void* argument) {
  Followers& all = followers();
  const std::lock_guard lock(all.mutex);
  Follower* const place = find(all, -1);
  if (place == nullptr) return false;
  *place = {fd, call, argument};
  all.count.fetch_add(1, std::memory_order_release);
  return true;
}

void unfollow_reads(int fd) {
  Followers& all = followers();
  const std::lock_guard lock(all.mutex);
  Follower* const place = fd >= 0 ? find(all, fd) : nullptr;
  if (place == nullptr) return;
  *place = {};
  all.count.fetch_sub(1, std::memory_order_release);
}

void on_dpdk_read(int fd) {
  Followers& all = followers();
  if (all.count.load(std::memory_order_acquire) == 0) return;
  const std::lock_guard lock(all.mutex);
  if (const Follower* const place = find(all, fd)) place->call(place->argument);
}

}  // namespace bypass::dpdk
