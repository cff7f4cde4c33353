// KinWatch: the processes of the family that this one watches, by pidfd: the owner of the ports watches all, the others
// watch it. Used by the progress thread alone, but for offer().
//
// A descriptor is made at the lowest free number, which a program may expect for its own next one: close(b), then
// eventfd(). So the one that watches a new child is made inside fork(), and not a moment later by the progress thread.
#pragma once

#include <poll.h>

#include <array>
#include <mutex>
#include <vector>

#include "socket/shard.h"

namespace bypass::runtime {

class KinWatch {
 public:
  KinWatch() = default;
  KinWatch(const KinWatch&) = delete;
  KinWatch& operator=(const KinWatch&) = delete;
  ~KinWatch() { clear(); }

  /// Watches those that are there now, and no others. False: somebody has ended meanwhile.
  bool refresh(socket::Shard& shard);
  void clear();
  /// A child that will be watched, inside fork() and in any thread. Allocates nothing; no more than kMostOffers wait.
  void offer(std::uint32_t pid);
  /// Appends one entry a process, readable when it has ended.
  void append(std::vector<pollfd>& set) const;
  [[nodiscard]] std::size_t size() const { return watched_.size(); }

 private:
  struct Watched {
    std::uint32_t slot, incarnation;
    int fd;
  };
  struct Offer {
    std::uint32_t pid;  // 0: no offer
    int fd;
  };
  static constexpr std::size_t kMostOffers = 8;

  [[nodiscard]] static bool wanted(socket::Shard& shard, std::uint32_t slot);
  int take_offer(std::uint32_t pid);
  void drop_offers(bool all);

  std::vector<Watched> watched_;
  std::mutex offers_lock_;  // offer() may run in a handler: it only tries
  std::array<Offer, kMostOffers> offers_{};
};

}  // namespace bypass::runtime
