#include "socket/shared/local_link.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <new>
#include <utility>

#include "os/os.h"
#include "socket/objects.h"
#include "socket/wait/kernel_half.h"

namespace bypass::socket {

constinit ActiveLinks active_links;

namespace {
constinit ChunkTable<LocalLink> links;
std::uint32_t used_links = 0;

/// What a thread wakes after its hold: numbers of channels. The channels are not closed before.
struct Wakes {
  std::array<int, 8> channels;
  std::uint32_t count = 0;
};
thread_local constinit Wakes my_wakes{};
std::atomic<int> wakes_under_way{0};
}  // namespace

// A thread that is about to wake needs no lock for that, but may be off its processor.
void await_wakes() {
  wake_peers();
  constexpr int kYields = 100, kSleeps = 20'000;
  constexpr timespec kSleep{0, 50'000};
  for (int i = 0; wakes_under_way.load(std::memory_order_acquire) > 0; i++) {
    // An unknown handler interrupts a wake-up, and may never return. (If it does, a later close does not wait for one
    // wake-up.)
    if (i == kYields + kSleeps) return wakes_under_way.store(0, std::memory_order_relaxed);
    i < kYields ? os::call(SYS_sched_yield) : os::call(SYS_nanosleep, os::address(&kSleep), 0);
  }
}

ChunkTable<LocalLink>& local_links() {
  return links;
}

std::uint32_t local_link_count() {
  return used_links;
}

LocalLink* local_link(const Socket& socket) {
  if (used_links == 0) return nullptr;
  const SlotId id = objects->sockets.id_of(const_cast<Socket*>(&socket));
  LocalLink* const link = links.find(id.index);
  return link != nullptr && link->used && link->generation == id.generation ? link : nullptr;
}

LocalLink* make_local_link(Socket& socket) {
  const SlotId id = objects->sockets.id_of(&socket);
  LocalLink* const link = links.at(id.index);
  if (link == nullptr) return nullptr;
  if (link->used) drop_local_link(*link);  // left by a socket that ended in another process
  link->generation = id.generation;
  link->socket = &socket;
  link->half = kernel_half(socket);
  // Last: a fork by another thread copies what is here at that moment.
  std::atomic_signal_fence(std::memory_order_release);
  link->used = true;
  used_links++;
  return link;
}

void drop_local_link(LocalLink& link) {
  if (!link.used) return;
  active_links.remove(link);
  if (link.watched) unwatch_channel(link.watched_fd);
  link.used = false;  // first, for the same reason
  std::atomic_signal_fence(std::memory_order_release);
  close_channel(link);
  link = LocalLink{};
  used_links--;
}

void close_channel(LocalLink& link) {
  if (!link.channel.is_open()) return;
  await_wakes();
  link.channel.close();
}

void wake_peer(const LocalLink& link) {
  if (my_wakes.count == my_wakes.channels.size()) wake_peers();
  my_wakes.channels[my_wakes.count++] = link.channel.descriptor();
  wakes_under_way.fetch_add(1, std::memory_order_relaxed);
}

void wake_peers() {
  while (my_wakes.count != 0) {
    fastpath::shm::Channel::wake(my_wakes.channels[--my_wakes.count]);
    wakes_under_way.fetch_sub(1, std::memory_order_release);
  }
}

void recount_local_links() {
  used_links = 0;
  wakes_under_way.store(0, std::memory_order_relaxed);
  for_each_local_link([](const LocalLink&) { used_links++; });
}

void forget_local_link(LocalLink& link) {
  if (!link.used) return;
  (void)new (&link) LocalLink{};
  used_links--;
}

void ActiveLinks::remove(LocalLink& link) {
  if (!link.active) return;
  link.active = false;
  const std::size_t had = count.load(std::memory_order_relaxed);
  const auto end = links.begin() + static_cast<std::ptrdiff_t>(had);
  std::copy(std::find(links.begin(), end, &link) + 1, end, std::find(links.begin(), end, &link));
  count.store(had - 1, std::memory_order_relaxed);
}

LocalLink* ActiveLinks::add(LocalLink& link) {
  if (link.active) return nullptr;
  LocalLink* oldest = nullptr;
  if (count.load(std::memory_order_relaxed) == links.size()) {
    oldest = links[0];
    remove(*oldest);
  }
  link.active = true;
  const std::size_t had = count.load(std::memory_order_relaxed);
  links[had] = &link;
  count.store(had + 1, std::memory_order_relaxed);
  return oldest;
}

}  // namespace bypass::socket
