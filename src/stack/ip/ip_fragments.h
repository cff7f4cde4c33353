// IPv4 reassembly (RFC 791 §3.2, RFC 1122 §3.3.2): fragments wait here until their datagram is whole.
//
// A datagram's fragments are one list sorted by offset, in runs without a hole (RFC 815's holes, seen from the other
// side). Fragments that overlap others end their datagram, as RFC 5722 rules for IPv6 and Linux does for both: honest
// senders make none. A fragment that lies whole in a run is a duplicate and is dropped alone. The first TCP fragment
// must hold the flags, and none may begin behind the first 8 bytes (RFC 1858, RFC 3128).
//
// Fragments stay in the frames they came in, as long as those are few and the port has enough of them; otherwise they
// are copied to the arena. A whole datagram is copied into packets of the arena: no port has verified a checksum that
// spans frames, so its bytes are read once anyway, and however many frames it had, it holds none.
//
// Cost against hostile senders: the memory of all fragments is bounded by `limit`; what exceeds it costs the source
// that holds most its oldest datagram (sources share 64 classes by a keyed hash). A fragment costs a scan of at most
// kMaxRuns entries and one look-up by a keyed hash; a datagram lives for kTimeout.
//
// Lies in the arena as a part of Network; all calls with the shard's lock held.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "stack/context.h"
#include "stack/counters.h"
#include "stack/frame/packet.h"
#include "stack/frame/packet_list.h"
#include "stack/ip/network.h"
#include "stack/memory/memory.h"
#include "stack/memory/slab.h"
#include "stack/tcp/open/isn.h"
#include "stack/time.h"

namespace bypass {

class IpFragments {
 public:
  static constexpr Duration kTimeout = std::chrono::seconds(30);  // Linux's ipfrag_time; RFC 1122 asks for 60 to 120 s
  static constexpr std::uint32_t kMaxRuns = 64;
  static constexpr std::uint32_t kMaxHeldFrames = 256;  // ports' buffers
  static constexpr std::uint32_t kMaxDatagrams = 1024;

  /// `limit`: bytes of memory that fragments may hold, the room around them included. 0: none is taken.
  IpFragments(Memory& memory, StackCounters& counters, const tcp::Secret& secret, std::uint32_t limit)
      : memory_(memory), counters_(counters), secret_(secret), limit_(limit) {}

  /// One fragment of a packet to us, header checked, `input` filled; takes the frame over. True: it was the last one
  /// missing, and `input` is the whole datagram, in the arena.
  bool take(Context& ctx, L4Input& input);
  /// Gives up the datagrams whose time is over.
  void on_timers(Context& ctx);
  [[nodiscard]] Instant next_timeout() const { return next_; }
  /// The first fragments of those whose sender may be told (RFC 1122 §3.3.2), as they came in; the caller's from now
  /// on.
  [[nodiscard]] PacketList take_expired();

  /// Stack::move_frames_to_arena's part. Returns how many fragments are still a port's.
  std::size_t move_frames_to_arena(Context& ctx);
  /// After a death inside the lock: everything is given up, frames go back to the ports this process has.
  void rebuild(Context& ctx);

  [[nodiscard]] std::uint32_t datagrams() const { return static_cast<std::uint32_t>(slab_.size()); }
  [[nodiscard]] std::uint32_t bytes_held() const { return bytes_; }

 private:
  static constexpr std::size_t kBuckets = 256, kSources = 64;

  struct Key {
    std::uint32_t source, destination;
    std::uint16_t id, port;  // frames of two ports make no one packet
    std::uint8_t protocol, unused[3];
    bool operator==(const Key&) const = default;
  };
  struct Range {  // of the L4 packet's bytes
    std::uint32_t begin, end;
    bool last;
  };
  struct Datagram {
    Key key;
    std::uint16_t bucket = 0, source = 0;
    Datagram* next = nullptr;  // of the bucket
    Datagram* older = nullptr;
    Datagram* newer = nullptr;  // of the source's
    Instant created{};
    Packet* first = nullptr;     // sorted, through queue_next
    Packet* last_run = nullptr;  // its first fragment
    std::uint32_t runs = 0, fragments = 0;
    std::uint32_t end = 0;        // where the last fragment ends; 0: it has not come
    std::uint8_t codepoints = 0;  // of ECN, that fragments carried: a bit each
    bool broadcast = false;
  };
  struct Source {
    Datagram* oldest = nullptr;
    Datagram* newest = nullptr;
    std::uint32_t bytes = 0;
  };
  enum class Fit : std::uint8_t { kNew, kDuplicate, kWrong, kScattered };

  bool drop(Context& ctx, Packet* frame, std::uint64_t& reason);
  Packet* keep(Context& ctx, Packet* frame);
  bool make_room(Context& ctx, std::uint32_t cost);
  [[nodiscard]] Datagram* find_or_add(const Key& key, Instant now);
  void remove(Datagram& datagram);
  static Fit link(Datagram& datagram, Packet* frame);
  [[nodiscard]] static bool agrees_about_end(const Datagram& datagram, const Range& range);
  [[nodiscard]] static bool is_whole(const Datagram& datagram);
  bool finish(Context& ctx, Datagram& datagram, L4Input& input);
  void discard(Context& ctx, Datagram& datagram, std::uint64_t& reason);
  void expire(Context& ctx, Datagram& datagram);
  void account(Datagram& datagram, const Packet& frame);
  void account_no_more(Datagram& datagram, const Packet& frame);
  std::size_t move_to_arena(Context& ctx, Datagram& datagram);

  Memory& memory_;
  StackCounters& counters_;
  tcp::Secret secret_;
  std::uint32_t limit_;
  std::uint32_t bytes_ = 0;
  std::uint32_t held_frames_ = 0;
  Instant next_ = kNever;
  Slab<Datagram> slab_{memory_};
  std::array<Datagram*, kBuckets> buckets_{};
  std::array<Source, kSources> sources_{};
  PacketList expired_;
};

}  // namespace bypass
