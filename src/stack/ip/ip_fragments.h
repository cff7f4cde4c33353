// IPv4 reassembly (RFC 791 §3.2, RFC 1122 §3.3.2): fragments wait here until their datagram is whole.
//
// A datagram's fragments are one list, sorted by offset, in runs without a hole (the complement of RFC 815's holes).
// Fragments that overlap others end their datagram, as RFC 5722 rules for IPv6 and Linux does for both: honest senders
// make no overlaps. A fragment that lies completely inside a run is a duplicate, and only it is dropped. The first TCP
// fragment must hold the flags, and no TCP fragment may begin at offset 8 (RFC 1858, RFC 3128).
//
// Fragments stay in the frames in which they came while those are few and the port has enough; otherwise they are
// copied to the arena. A complete datagram is copied into packets of the arena. No port has verified a checksum that
// spans frames, so its bytes are read once anyway. After the copy it holds no frame.
//
// Limits against hostile senders: `limit` bounds the memory of all fragments. If it is exceeded, the source that holds
// most loses its oldest datagram (sources share 64 classes by a keyed hash). A fragment costs a scan of at most
// kMaxRuns entries and one look-up by a keyed hash. A datagram lives for kTimeout.
//
// It lies in the arena as a part of Network. The caller of every function holds the shard's lock.
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

  /// `limit`: bytes of memory that fragments may hold, including the unused part of their buffers. 0: no fragment is
  /// taken.
  IpFragments(Memory& memory, StackCounters& counters, const tcp::Secret& secret, std::uint32_t limit)
      : memory_(memory), counters_(counters), secret_(secret), limit_(limit) {}

  /// Takes over one fragment of a packet to us; its header is checked and `input` filled. True: it was the last missing
  /// one, and `input` is now the complete datagram, in the arena.
  bool take(Context& ctx, L4Input& input);
  /// Drops the datagrams whose time is over.
  void on_timers(Context& ctx);
  [[nodiscard]] Instant next_timeout() const { return next_; }
  /// The first fragments of expired datagrams whose sender may be told (RFC 1122 §3.3.2), as they came in. The caller
  /// takes them over.
  [[nodiscard]] PacketList take_expired();

  /// The part of Stack::move_frames_to_arena() for fragments. Returns how many still belong to a port.
  std::size_t move_frames_to_arena(Context& ctx);
  /// After a death inside the lock: drops everything; frames go back to the ports that this process has.
  void rebuild(Context& ctx);

  [[nodiscard]] std::uint32_t datagrams() const { return static_cast<std::uint32_t>(slab_.size()); }
  [[nodiscard]] std::uint32_t bytes_held() const { return bytes_; }

 private:
  static constexpr std::size_t kBuckets = 256, kSources = 64;

  struct Key {
    std::uint32_t source, destination;
    std::uint16_t id, port;  // frames of two ports never make one packet
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
    Datagram* next = nullptr;  // next in the hash bucket
    Datagram* older = nullptr;
    Datagram* newer = nullptr;  // next datagram of the same source
    Instant created{};
    Packet* first = nullptr;     // sorted, through queue_next
    Packet* last_run = nullptr;  // the first fragment of the last run
    std::uint32_t runs = 0, fragments = 0;
    std::uint32_t end = 0;        // where the last fragment ends; 0: it has not come
    std::uint8_t codepoints = 0;  // the ECN codepoints of its fragments, a bit each
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
