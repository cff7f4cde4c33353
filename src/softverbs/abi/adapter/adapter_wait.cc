// What a call of the program's waits for: the link, a peer's address, and at the end a peer that has taken all frames.
#include "softverbs/abi/adapter/adapter.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "softverbs/abi/adapter/setup.h"

namespace bypass::softverbs {
namespace {

/// How long to wait until a peer and a link are there.
constexpr Duration kPeerPatience = std::chrono::seconds{2};

/// How long a process that ends waits for peers that do not answer.
constexpr Duration kFarewellPatience = std::chrono::milliseconds{100};

/// The pause between two looks during these waits.
constexpr timespec kPeerInterval{0, 200'000};

}  // namespace

Adapter::Patience::Patience(const Adapter& adapter) : adapter_(adapter) {
  const Instant now = adapter.clock_.now();
  const auto after = [](Instant from, Duration budget) { return budget < kNever - from ? from + budget : kNever; };
  spin_until_ = after(now, adapter.spin_);
  yield_until_ = after(spin_until_, adapter.yield_);
}

bool Adapter::Patience::wait_a_little() {
  const Instant now = adapter_.clock_.now();
  if (now >= yield_until_) return false;
  if (now < spin_until_)
    __builtin_ia32_pause();
  else
    sched_yield();
  return true;
}

bool Adapter::await_link() {
  if (is_hosted()) return false;
  for (const Instant deadline = clock_.now() + kPeerPatience;;) {
    {
      Turn turn(*this);
      turn.poll();
      if (!turn || port_->link() == LinkState::kUp) return true;
    }
    if (clock_.now() > deadline) return false;
    ppoll(nullptr, 0, &kPeerInterval, nullptr);
  }
}

bool Adapter::is_own(const ibv_gid& gid) {
  const Turn turn(*this);
  if (!turn) return false;
  const auto own = turn->gids();
  return std::any_of(own.begin(), own.end(), [&](const ibv_gid& g) { return std::memcmp(&g, &gid, sizeof g) == 0; });
}

int Adapter::await_peer(const ibv_gid& gid) {
  if (is_hosted() || is_own(gid)) return 0;
  if (!await_link()) return ETIMEDOUT;
  for (;;) {
    {
      Turn turn(*this);
      if (!turn) return EIO;
      turn.poll();
      const rdma::Resolution found = turn->resolve(gid, clock_.now());
      if (found == rdma::Resolution::kKnown) return 0;
      if (found == rdma::Resolution::kUnreachable) return EHOSTUNREACH;
      turn.run();
    }
    ppoll(nullptr, 0, &kPeerInterval, nullptr);
  }
}

// The peer may not have taken our last frames yet, perhaps with an acknowledgement that it waits for. They are lost
// with this end of the wire. A peer that answers a request has taken everything that was sent before it. (A kernel
// keeps frames that it was given.)
void Adapter::say_farewell() {
  if (interface_ != 0) return;
  Patience patience(*this);
  for (const Instant deadline = clock_.now() + kFarewellPatience; clock_.now() < deadline;) {
    {
      Turn turn(*this);
      if (!turn || port_->link() == LinkState::kDown || turn->farewell(clock_.now()) == 0) return;
      turn.poll();
    }
    if (!patience.wait_a_little()) ppoll(nullptr, 0, &kPeerInterval, nullptr);
  }
}

}  // namespace bypass::softverbs
