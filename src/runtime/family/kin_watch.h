// KinWatch: watches processes of the family, by pidfd. The owner of the ports watches all others, and they watch the
// owner. Only the progress thread uses it, except for offer().
//
// A descriptor is made at the lowest free number, which a program may expect for its own next one: close(b), then
// eventfd(). So the descriptor for a new child is made inside fork(), and not a moment later by the progress thread.
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

  /// Watches the processes that are there now, and no others. False: a process has ended meanwhile.
  bool refresh(socket::Shard& shard);
  void clear();
  /// Offers a child that will be watched. Called inside fork(), in any thread. Allocates nothing; at most kMostOffers
  /// wait.
  void offer(std::uint32_t pid);
  /// Appends one entry for each process. It is readable when the process has ended.
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
  std::mutex offers_lock_;  // offer() may run in a handler, so it only tries to lock
  std::array<Offer, kMostOffers> offers_{};
};

}  // namespace bypass::runtime
