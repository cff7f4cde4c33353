// Reports which rings of this process have news, in the order in which it came.
//
// An epoll set reports first what came first, and programs rely on that. Each write leaves a stamp beside its ring's
// index (ring.h). If a poll finds news in several rings that are in sets, it reports them by their stamps.
// Tests: tests/system/local_faults.py, tests/system/endings.py.
#include <algorithm>
#include <array>
#include <limits>
#include <span>

#include "socket/shared/local_path.h"

namespace bypass::socket {

namespace shm = fastpath::shm;

namespace {

/// When news came: an earlier moment is less. News without a stamp is reported first.
using Moment = std::int64_t;

static_assert(kMostActive <= 64, "Arrivals has a bit for each");

/// Rings in epoll sets that have bytes which were not reported yet.
class Arrivals {
 public:
  /// Whether links[i] is such a ring; if so, it is noted.
  bool note(std::span<LocalLink* const> links, std::size_t i) {
    LocalLink& link = *links[i];
    if (!has_come(link)) return false;
    const std::uint64_t stamp = first_unheard(link);
    if (origin_ == 0) origin_ = stamp;
    noted_ |= std::uint64_t{1} << i;
    all_[count_++] = {moment_of(stamp), &link};
    return true;
  }
  /// Also notes those among the other `links` that came before `latest`.
  void note_earlier(std::span<LocalLink* const> links, Moment latest) {
    for (std::size_t i = 0; i < links.size(); i++) {
      if ((noted_ >> i & 1) != 0 || !has_come(*links[i])) continue;
      const Moment when = moment_of(first_unheard(*links[i]));
      if (when < latest) all_[count_++] = {when, links[i]};
    }
  }
  void begin_at(std::uint64_t stamp) { origin_ = stamp; }
  [[nodiscard]] std::size_t count() const { return count_; }
  /// The latest moment among the noted rings.
  [[nodiscard]] Moment latest() const {
    return std::ranges::max(std::span(all_).first(count_), {}, &Arrival::when).when;
  }
  bool tell() {
    const std::span<Arrival> come = std::span(all_).first(count_);
    std::ranges::sort(come, {}, &Arrival::when);
    bool moved = false;
    for (const Arrival& each : come) moved = look_at_rings(*each.link->socket, *each.link) || moved;
    return moved;
  }
  [[nodiscard]] static std::uint64_t first_unheard(const LocalLink& link) {
    return shm::first_stamp(link.in, std::max(link.seen_produced, end_of(*link.socket).consumer.consumed()));
  }

 private:
  struct Arrival {
    Moment when;
    LocalLink* link;
  };
  static bool has_come(const LocalLink& link) {
    if (link.socket->items == nullptr || !is_paired(*link.socket)) return false;
    return link.in.peer->produced.load(std::memory_order_acquire) != link.seen_produced;
  }
  // Counted from one of the stamps: if peers lie about theirs, there is still an order.
  [[nodiscard]] Moment moment_of(std::uint64_t stamp) const {
    return stamp == 0 ? std::numeric_limits<Moment>::min() : static_cast<Moment>(stamp - origin_);
  }

  std::array<Arrival, kMostActive> all_;
  std::size_t count_ = 0;
  std::uint64_t noted_ = 0;  // a bit for each link
  std::uint64_t origin_ = 0;
};

}  // namespace

bool has_active_local() {
  return active_links.count.load(std::memory_order_relaxed) != 0;
}

// A ring that was looked at early may have been written to before one that is found later in the same look. So after a
// find this looks once more for earlier news. Later news is left to the next look, which finds everything before it.
bool poll_local() {
  const auto links = active_links.all();
  if (links.size() == 1) return look_at_rings(*links[0]->socket, *links[0]);
  Arrivals come;
  bool moved = false;
  for (std::size_t i = 0; i < links.size(); i++)
    if (!come.note(links, i)) moved = look_at_rings(*links[i]->socket, *links[i]) || moved;
  if (come.count() == 0) return moved;
  come.note_earlier(links, come.latest());
  return come.tell() || moved;
}

void hear_earlier_rings(const LocalLink& link) {
  const std::uint64_t stamp = Arrivals::first_unheard(link);
  if (link.socket->items == nullptr || stamp == 0) return;
  Arrivals earlier;
  earlier.begin_at(stamp);
  earlier.note_earlier(active_links.all(), 0);
  (void)earlier.tell();
}

bool arm_local() {
  for (LocalLink* const link : active_links.all())
    if (is_to_be_armed(*link->socket)) ask_for_wakes(*link->socket, *link);
  return poll_local();
}

}  // namespace bypass::socket
