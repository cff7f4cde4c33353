// KinWatch: the processes of the family that this one watches, by pidfd: the owner of the ports watches all, the others
// watch it. Used by the progress thread alone.
#pragma once

#include <poll.h>

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
  /// Appends one entry a process, readable when it has ended.
  void append(std::vector<pollfd>& set) const;
  [[nodiscard]] std::size_t size() const { return watched_.size(); }

 private:
  struct Watched {
    std::uint32_t slot, incarnation;
    int fd;
  };
  [[nodiscard]] static bool wanted(socket::Shard& shard, std::uint32_t slot);
  std::vector<Watched> watched_;
};

}  // namespace bypass::runtime
