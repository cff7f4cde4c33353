// The stats file: the layout that one process writes and the bypass command reads.
//
//   Header | counters | ports | why | settings | sockets
//
// The file is named PID-STARTTIME.stats in the run directory and mapped shared. Native byte order, all
// offsets from the file's start. A reader checks magic, version and the sections' bounds and record sizes.
// The magic is stored last, so that a file that has it is complete.
//
// Counters are single words. Every other record lies in a Slot. `used` says whether the slot holds something. The
// sequence number is odd while a writer is at work: a reader copies until it sees the same even number before and
// after. Writers store the words with release and readers load them with acquire, which orders them against the
// sequence number on either side (free on x86). The settings are written before the magic: a text of
// "key\0value\0where\0" for each setting that is not at its default.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "stack/address.h"

namespace bypass::observe {

inline constexpr std::uint64_t kMagic = 0x3154415453504259;  // "YBPSTAT1" in memory order
inline constexpr std::uint32_t kLayoutVersion = 4;

inline constexpr std::size_t kMaxCounters = 192;
inline constexpr std::size_t kMaxPorts = 16;
inline constexpr std::size_t kMaxSockets = 16384;  // address space for so many; pages are taken kSocketChunk at a time
inline constexpr std::size_t kSocketChunk = 512;
inline constexpr std::size_t kMaxWhys = 128;
inline constexpr std::size_t kMaxSettingBytes = 8192;

struct Section {
  std::uint32_t offset;
  std::uint32_t record_bytes;
  std::uint32_t capacity;
  std::atomic<std::uint32_t> used;  // number of records that a reader has to look at
};

struct Header {
  std::atomic<std::uint64_t> magic;
  std::uint32_t version;
  std::uint32_t header_bytes;
  std::uint64_t file_bytes;
  std::int32_t pid;
  std::uint32_t uid;
  std::uint64_t start_time;                    // of the process, in clock ticks since boot (/proc/PID/stat)
  std::uint64_t pid_namespace;                 // inode of /proc/self/ns/pid: a pid is valid only in its own namespace
  std::uint64_t created_ns;                    // CLOCK_REALTIME
  std::atomic<std::uint64_t> updated_ns;       // when counters were last published
  std::atomic<std::uint64_t> sockets_missing;  // sockets that got no slot
  std::atomic<std::uint64_t> whys_lost;        // entries overwritten by newer ones, or not written
  std::array<char, 64> command;
  std::array<char, 32> library_version;
  std::array<char, 16> profile;
  Section counters, ports, sockets, whys, settings;
  /// The process of the family that has the ports; 0: none yet. Counters, and connections without a socket, belong to
  /// the family and are shown only at that process.
  std::atomic<std::int32_t> port_owner;
  /// A request of `bypass set`: drills_asked is one above drills_done, and drill is its kind. The process answers with
  /// the number of objects to which it was done.
  std::atomic<std::uint32_t> drills_asked, drill, drill_result, drills_done;
  std::array<std::uint32_t, 7> unused;
};
static_assert(sizeof(Header) == 320);

struct CounterRecord {
  std::array<char, 40> name;
  std::array<char, 16> unit;
  std::atomic<std::uint64_t> value;
};
static_assert(sizeof(CounterRecord) == 64);

inline constexpr std::uint32_t kFree = 0, kClaimed = 1, kHolds = 2;  // the values of Slot::used

template <typename Record>
struct Slot {
  static_assert(std::is_trivially_copyable_v<Record> && sizeof(Record) % 8 == 0);
  static constexpr std::size_t kWords = sizeof(Record) / 8;
  std::atomic<std::uint32_t> used;
  std::atomic<std::uint32_t> sequence;
  std::array<std::atomic<std::uint64_t>, kWords> words;
};

/// Of PortRecord::open. kPortLookedAt: no interrupt of its card comes, a sleeper looks at it by a timer. kPortGone: its
/// card has been taken away.
inline constexpr std::uint8_t kPortOpen = 1, kPortLookedAt = 2, kPortGone = 3;

struct PortRecord {
  std::array<char, 16> kind;
  std::array<char, 88> target;
  std::array<std::uint8_t, 6> mac;
  std::uint8_t link_up;  // 1: up
  std::uint8_t open;     // 0: not opened yet or failed, or one of the below
  std::uint32_t mtu;
  std::uint16_t v4_length;  // prefix lengths
  std::uint16_t v6_length;
  IpAddress v4;  // unset: no address
  IpAddress v6;
  std::uint64_t rx_frames, rx_bytes, rx_dropped, rx_no_buffer;
  std::uint64_t tx_frames, tx_bytes, tx_full, tx_dropped;
  std::uint64_t link_ups, link_downs, reopened;
  std::uint64_t buffers_total, buffers_free;
};
static_assert(sizeof(PortRecord) == 256);

/// Failures that the user causes, to see what a process does about them before they really happen.
enum class Drill : std::uint32_t { kNone, kQpError };

/// How a socket's bytes travel.
enum class SocketPath : std::uint8_t { kUndecided, kKernel, kWire, kDual, kShm, kRc, kFramed };
const char* path_name(std::uint8_t path);

/// RFC 9293's states in its order; kOpen for datagram sockets and sockets without a state.
enum class SocketState : std::uint8_t {
  kClosed,
  kListen,
  kSynSent,
  kSynReceived,
  kEstablished,
  kFinWait1,
  kFinWait2,
  kCloseWait,
  kClosing,
  kLastAck,
  kTimeWait,
  kOpen,
};
const char* state_name(std::uint8_t state);

struct SocketRecord {
  std::int32_t fd;        // -1: the program closed it, and it still delivers
  std::uint8_t protocol;  // IPPROTO_TCP, IPPROTO_UDP
  std::uint8_t state;     // SocketState
  std::uint8_t path;      // SocketPath
  std::uint8_t port;      // index of the port; 255: none
  IpAddress local_address;
  IpAddress remote_address;
  std::uint16_t local_port;
  std::uint16_t remote_port;
  std::uint16_t mss;                 // bytes; of a connection
  std::uint16_t of_stack;            // 1: it has no socket (TIME-WAIT, half-open, closed and still delivering)
  std::uint32_t rx_queue, tx_queue;  // bytes not yet read, not yet acknowledged; a listener: queue, backlog;
                                     // a datagram socket: bytes of memory not yet read, nothing
  // Only for connections:
  std::uint64_t rx_bytes, tx_bytes;
  std::uint32_t rx_packets, tx_packets;  // modulo 2^32
  std::uint32_t retransmits;
  std::uint32_t srtt_us, rttvar_us, rto_us;
  std::uint32_t cwnd, ssthresh, snd_wnd, rcv_wnd;  // bytes
};
static_assert(sizeof(SocketRecord) == 112);

struct WhyRecord {
  std::uint16_t reason;   // Reason
  std::uint8_t protocol;  // 0: not known
  std::uint8_t unused;
  std::int32_t fd;    // the last socket that it happened to; -1: no socket
  IpAddress address;  // unset: no address
  std::uint16_t port;
  std::array<std::uint8_t, 6> unused2;
  std::uint64_t count;
  std::uint64_t first_ns, last_ns;  // CLOCK_REALTIME
  std::array<char, 208> detail;
};
static_assert(sizeof(WhyRecord) == 264);

using PortSlot = Slot<PortRecord>;
using SocketSlot = Slot<SocketRecord>;
using WhySlot = Slot<WhyRecord>;

/// Copies text into a fixed field. The text is cut if needed, and always terminated.
template <std::size_t size>
void set_text(std::array<char, size>& field, const char* text) {
  std::strncpy(field.data(), text, size - 1);
  field[size - 1] = 0;
}

/// The same for a sentence: if it is cut, it ends after a whole word, and a mark shows the cut.
template <std::size_t size>
void set_sentence(std::array<char, size>& field, const char* text) {
  set_text(field, text);
  if (std::strlen(text) < size) return;
  constexpr const char* kCut = " …";
  field[size - 1 - std::char_traits<char>::length(kCut)] = 0;
  constexpr std::ptrdiff_t kLongWord = 40;
  char* const end = field.data() + std::strlen(field.data());
  char* const space = std::strrchr(field.data(), ' ');
  std::strcpy(space != nullptr && end - space <= kLongWord ? space : end, kCut);
}

/// Only one thread at a time writes a slot (it holds the shard's lock, or the why table's).
template <typename Record>
void store_record(Slot<Record>& slot, const Record& record) {
  std::uint64_t words[Slot<Record>::kWords];
  std::memcpy(words, &record, sizeof record);
  const std::uint32_t sequence = slot.sequence.load(std::memory_order_relaxed);
  slot.sequence.store(sequence + 1, std::memory_order_relaxed);
  for (std::size_t i = 0; i < Slot<Record>::kWords; i++) slot.words[i].store(words[i], std::memory_order_release);
  slot.sequence.store(sequence + 2, std::memory_order_release);
  slot.used.store(kHolds, std::memory_order_release);
}

/// Copies the record. False: the slot is empty, or a writer died while writing (its odd number stays).
template <typename Record>
bool load_record(const Slot<Record>& slot, Record& record) {
  constexpr int kTries = 1000;
  std::uint64_t words[Slot<Record>::kWords];
  for (int i = 0; i < kTries; i++) {
    if (slot.used.load(std::memory_order_acquire) != kHolds) return false;
    const std::uint32_t before = slot.sequence.load(std::memory_order_acquire);
    for (std::size_t w = 0; w < Slot<Record>::kWords; w++) words[w] = slot.words[w].load(std::memory_order_acquire);
    if ((before & 1) != 0 || slot.sequence.load(std::memory_order_relaxed) != before) continue;
    std::memcpy(&record, words, sizeof record);
    return true;
  }
  return false;
}

}  // namespace bypass::observe
