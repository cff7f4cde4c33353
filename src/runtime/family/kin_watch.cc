#include "runtime/family/kin_watch.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "os/os.h"
#include "runtime/host.h"

namespace bypass::runtime {

namespace {

void close_watched(int fd) {
  own_descriptor(fd, false);
  os::close(fd);
}

}  // namespace

// A slot that is reserved for a child whose pid is not known yet has its parent's pid. That is ours, or one that is
// watched anyway.
bool KinWatch::wanted(socket::Shard& shard, std::uint32_t slot) {
  const socket::ProcessSlot& process = shard.family().table().slots[slot];
  const std::uint32_t pid = process.pid.load(std::memory_order_acquire);
  if (pid == 0 || pid == os::getpid()) return false;
  if (shard.owns_wires()) return true;
  return shard.wires().owner_slot() == slot;
}

bool KinWatch::refresh(socket::Shard& shard) {
  socket::Family& family = shard.family();
  std::erase_if(watched_, [&](const Watched& w) {
    const bool keep = family.incarnation_of(w.slot) == w.incarnation && wanted(shard, w.slot);
    if (!keep) close_watched(w.fd);
    return !keep;
  });
  bool all = true;
  const std::uint32_t high = family.table().high.load(std::memory_order_acquire);
  for (std::uint32_t slot = 0; slot < high; slot++) {
    if (!wanted(shard, slot)) continue;
    if (std::any_of(watched_.begin(), watched_.end(), [slot](const Watched& w) { return w.slot == slot; })) continue;
    const std::uint32_t incarnation = family.incarnation_of(slot);
    const std::uint32_t pid = family.table().slots[slot].pid.load(std::memory_order_acquire);
    const int offered = take_offer(pid);
    const long fd = offered >= 0 ? offered : os::pidfd_open(pid);
    if (fd >= 0) watched_.push_back({slot, incarnation, offered >= 0 ? offered : own_high(static_cast<int>(fd))});
    all = all && fd != -ESRCH;
  }
  drop_offers(false);
  return all;
}

void KinWatch::offer(std::uint32_t pid) {
  const std::unique_lock lock(offers_lock_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  const auto place = std::find_if(offers_.begin(), offers_.end(), [](const Offer& o) { return o.pid == 0; });
  if (place == offers_.end()) return;
  const long fd = os::pidfd_open(pid);
  if (fd >= 0) *place = {pid, own_high(static_cast<int>(fd))};
}

int KinWatch::take_offer(std::uint32_t pid) {
  const std::scoped_lock lock(offers_lock_);
  const auto place = std::find_if(offers_.begin(), offers_.end(), [=](const Offer& o) { return o.pid == pid; });
  return place == offers_.end() ? -1 : std::exchange(*place, Offer{}).fd;
}

// A child that has executed another program, or has ended, is never watched: its offer is dropped.
void KinWatch::drop_offers(bool all) {
  const std::scoped_lock lock(offers_lock_);
  for (Offer& o : offers_) {
    if (o.pid == 0 || (!all && !os::readable(o.fd))) continue;
    close_watched(o.fd);
    o = {};
  }
}

void KinWatch::clear() {
  drop_offers(true);
  for (const Watched& w : watched_) close_watched(w.fd);
  watched_.clear();
}

void KinWatch::append(std::vector<pollfd>& set) const {
  for (const Watched& w : watched_) set.push_back({w.fd, POLLIN, 0});
}

}  // namespace bypass::runtime
