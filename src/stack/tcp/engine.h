// tcp::Engine: the TCP of one shard (RFC 9293), as the socket layer and the tests call it.
//
// It lies in the arena as a part of Stack. The caller of every function holds the shard's lock and passes the process's
// Context, whose `now` is the arrival time of the batch or the time of the program's call. Calls queue frames on the
// context's transmit batch; the caller ends the batch with Context::flush().
//
// Send side: a byte ring in the arena, numbered by 64-bit stream offsets (bytes since the connection began). TCP
// segmentation is one of the users that drain it; a segment is an offset and a length into the ring, and is stored
// nowhere else. Receive side: in-order frames queue as they came; the reader sees spans of them and consumes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "stack/address.h"
#include "stack/context.h"
#include "stack/events.h"
#include "stack/ip/network.h"
#include "stack/memory/memory.h"
#include "stack/result.h"
#include "stack/tcp/output/busy_times.h"
#include "stack/time.h"

namespace bypass {
class Network;
struct StackCounters;
}  // namespace bypass

namespace bypass::tcp {

struct Tcb;       // tcb.h
struct Listener;  // listener.h; both begin with an EventNode

enum class State : std::uint8_t {  // RFC 9293 §3.3.2
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
};

enum class Congestion : std::uint8_t { kCubic, kNewReno };

/// What a whole shard shares; taken from the settings.
struct EngineConfig {
  Duration rto_initial = std::chrono::seconds(1);
  Duration rto_min = std::chrono::milliseconds(200);
  Duration rto_max = std::chrono::seconds(120);
  Duration delayed_ack = std::chrono::milliseconds(40);
  Duration time_wait = std::chrono::seconds(60);
  Duration fin_wait2 = std::chrono::seconds(60);
  unsigned syn_retries = 6;
  unsigned synack_retries = 5;
  unsigned retries2 = 15;                // retransmissions of data before ETIMEDOUT (as tcp_retries2)
  unsigned orphan_retries = 8;           // retransmissions of a closed connection's data or FIN (as tcp_orphan_retries)
  std::uint32_t max_orphans = 65536;     // closed connections that have not ended (as tcp_max_orphans)
  std::uint32_t send_buffer = 4U << 20;  // largest ring of one connection, bytes
  std::uint32_t receive_buffer = 4U << 20;  // largest window
  std::uint32_t receive_initial = 256U << 10;
  std::uint32_t initial_window = 10;  // segments, RFC 6928
  std::uint32_t syn_queue = 4096;     // half-open connections of one listener at most; the same number of deferred ones
  std::uint32_t max_time_wait = 65536;
  std::uint16_t port_first = 32768, port_last = 60999;
  Congestion congestion = Congestion::kCubic;
  bool syn_cookies = true;  // used once the SYN queue is full
  bool timestamps = true, sack = true, window_scaling = true;
  std::uint64_t secret[2] = {};  // keys the ISN (RFC 6528) and the timestamp offset
};

/// What bind(2) allows other sockets to do with a port (socket(7)): both sockets of a pair must allow it. Bits of
/// Options::sharing.
inline constexpr std::uint8_t kShareAddress = 1;  // SO_REUSEADDR: not over a listener
inline constexpr std::uint8_t kSharePort = 2;     // SO_REUSEPORT

/// The options that a program may set before or after the connection exists.
struct Options {
  bool no_delay : 1 = false, cork : 1 = false, quick_ack : 1 = false, keep_alive : 1 = false;
  std::uint8_t sharing : 2 = 0;  // kShareAddress, kSharePort
  Congestion congestion = Congestion::kCubic;
  std::uint8_t tos = 0, ttl = 64, syn_retries = 0;
  std::uint8_t keep_count = 9;
  std::uint16_t keep_idle_s = 7200, keep_interval_s = 75;
  std::uint16_t defer_accept_s = 0;
  std::int16_t linger2_s = 0;         // TCP_LINGER2; 0: the engine's fin_wait2; negative: no wait
  std::uint16_t max_segment = 0;      // TCP_MAXSEG; 0: taken from the path
  std::uint32_t user_timeout_ms = 0;  // RFC 5482; 0: retries2 decides
  std::uint32_t send_buffer = 0;  // 0: the engine's, tuned; else SO_SNDBUF as the program set it, half of what may wait
  std::uint32_t receive_buffer = 0;
  std::uint32_t not_sent_low_water = 0;  // TCP_NOTSENT_LOWAT; 0: no limit
  [[nodiscard]] std::uint32_t most_unsent() const { return not_sent_low_water != 0 ? not_sent_low_water : ~0U; }
};

/// As TCP_INFO numbers them (TCP_CA_Open …). There is no CWR: ECN is not built.
enum class CongestionState : std::uint8_t { kOpen = 0, kDisorder = 1, kRecovery = 3, kLoss = 4 };

/// The values for TCP_INFO and `bypass stat`.
struct Info {
  State state = State::kClosed;
  Duration srtt{}, rttvar{}, rto{}, min_rtt{}, delayed_ack{};
  std::uint32_t cwnd = 0, ssthresh = 0;  // bytes; kMaxCwnd (window.h): no threshold yet
  CongestionState congestion_state = CongestionState::kOpen;
  // milliseconds_of() the time when data was sent, an acceptable segment came, data came
  std::uint32_t last_sent_ms = 0, last_received_ms = 0, last_data_ms = 0;
  std::uint32_t snd_wnd = 0, rcv_wnd = 0, rcv_limit = 0, mss = 0, rcv_mss = 0, own_mss = 0;
  std::uint32_t path_mtu = 0;
  std::uint8_t snd_scale = 0, rcv_scale = 0;
  bool timestamps = false, sack = false;
  std::uint32_t unsent = 0, in_flight = 0, readable = 0;  // bytes
  // Counted as Linux does: bytes_sent counts each time that a byte is sent; bytes_acked includes our FIN, and the SYN
  // of a connection that we opened; bytes_received includes the peer's FIN.
  std::uint64_t bytes_sent = 0, bytes_acked = 0, bytes_received = 0;
  std::uint64_t bytes_retransmitted = 0;
  std::uint64_t segments_sent = 0, segments_received = 0;
  std::uint32_t retransmits = 0, backoff = 0, probes = 0, lost = 0, sacked = 0,
                sent_again = 0;  // the last three: bytes
  Limit limit = Limit::kIdle;
  BusyTimes busy_times;  // at(limit, milliseconds_of() the time of the query)
};

/// Places in the send ring for bytes not yet committed (two if the ring wraps).
struct Room {
  std::span<std::byte> part[2];
  [[nodiscard]] std::size_t size() const { return part[0].size() + part[1].size(); }
};

/// Whether a third of a send buffer is free, if `kept` bytes in it are unacknowledged (sk_stream_is_writeable() of
/// Linux).
[[nodiscard]] constexpr bool is_writeable(std::size_t room, std::size_t kept) {
  return room != 0 && room >= kept / 2;
}

class Engine {
 public:
  Engine(Memory& memory, Network& network, EventList& events, StackCounters& counters, const EngineConfig& config);
  /// False when the memory could not hold the tables.
  [[nodiscard]] bool valid() const { return impl_ != nullptr; }

  // --- From the wire and the clock
  /// Takes over a burst of TCP packets, already validated as IP. Sends at most one ACK a flow a burst.
  void on_segments(Context& ctx, std::span<L4Input> batch);
  void on_icmp(Context& ctx, const IcmpError& error);
  void on_timers(Context& ctx);
  void on_link_up(Context& ctx);
  /// Hosts have announced these addresses and may have restarted. Each connection to one of them sends an ACK. A host
  /// that knows the connection ignores the ACK; any other answers with RST.
  void on_announced(Context& ctx, std::span<const IpAddress> addresses);
  /// A port's MTU has changed: its packets may be larger, or must be smaller, from now on.
  void on_mtu(Context& ctx, std::uint16_t port, std::uint32_t before, std::uint32_t mtu);
  [[nodiscard]] Instant next_timeout() const;  // kNever when idle
  /// Lets connections that found the device's ring full continue to send. Called at the start of each poll.
  void resume_output(Context& ctx);
  [[nodiscard]] bool output_pending() const;
  /// To be called after Context::flush(): unpins the rings that frames referred to, once those frames have left.
  void on_flushed(Context& ctx);

  // --- Opening
  /// Starts a connection; kEventConnected or kEventError follows. `local.port` 0: an ephemeral port is chosen (RFC
  /// 6056). `local.address` unset: the route's address.
  /// kAddressInUse, kAddressNotAvailable, kNoRoute, kNoMemory.
  Result<Tcb*> connect(Context& ctx, const Endpoint& local, const Endpoint& remote, const Options& options, void* user);
  /// The local endpoint that connect() would choose for a connection to `remote` (`local` unset: the route's address).
  /// Returns another port each time. kNoRoute, kAddressNotAvailable.
  Result<Endpoint> choose_endpoint(Context& ctx, const IpAddress& local, const Endpoint& remote);
  /// Whether these are the ends of a connection of ours, or of one in TIME-WAIT.
  [[nodiscard]] bool serves(const Endpoint& local, const Endpoint& remote) const;
  /// `local.address` unset: all bypass addresses. kAddressInUse if another listener has the port, unless both are
  /// `shared` (SO_REUSEPORT): then the flows are spread over them.
  Result<Listener*> listen(const Endpoint& local, unsigned backlog, const Options& options, void* user,
                           bool shared = false);
  void set_backlog(Listener& listener, unsigned backlog);
  /// The oldest established connection of the accept queue; kWouldBlock if the queue is empty.
  Result<Tcb*> accept(Context& ctx, Listener& listener, void* user);
  [[nodiscard]] std::size_t accept_queue_length(const Listener& listener) const;
  /// Closes the listener. Connections that nobody accepted are reset.
  void close_listener(Context& ctx, Listener& listener);
  /// Notes all flows that need steering, for a device that knows no flows (FlowLog).
  void steer_all(Context& ctx);
  /// See Stack::for_each_steered.
  void for_each_steered(void (*each)(void* argument, const FlowSpec&), void* argument) const;
  /// Whether there is any connection, in use or about to end; TIME-WAIT does not count.
  [[nodiscard]] bool has_connections() const;
  /// Whether a local port is taken for a bind() with that `sharing`, by a listener, a connection or TIME-WAIT
  /// (inet_bind_conflict() of Linux).
  [[nodiscard]] bool port_in_use(const Endpoint& local, std::uint8_t sharing) const;

  // --- Sending
  /// How many bytes reserve() could give now. 0 after shutdown_send().
  [[nodiscard]] std::size_t send_room(const Tcb& tcb) const;
  /// The room that is_writeable() checks: the ring's room, or 0 while TCP_NOTSENT_LOWAT forbids more unsent bytes.
  [[nodiscard]] std::size_t writable_room(const Tcb& tcb) const;
  /// How many writers have found no memory so far. waits_for_memory(): whether some wait now.
  [[nodiscard]] std::uint64_t memory_waits() const;
  [[nodiscard]] bool waits_for_memory() const;
  /// The program found too little room (is_writeable()), or no room for a write: kEventWritable comes when there is
  /// more.
  void want_room(Context& ctx, Tcb& tcb);
  /// Reserves up to `want` bytes of the ring, growing it within the limit. kWouldBlock if the ring is full
  /// (kEventWritable comes when a third is free again), or if there is no memory (kEventWritable comes when there is
  /// some). kBrokenPipe, kNotConnected, or the connection's pending error.
  /// The room may be filled without the lock; nothing else may reserve on this connection until commit().
  Result<Room> reserve(Tcb& tcb, std::size_t want);
  /// The first `bytes` of the room hold data: queues them, and sends what window, cwnd and Nagle allow. `more`:
  /// MSG_MORE, hold back a partial segment.
  void commit(Context& ctx, Tcb& tcb, std::size_t bytes, bool more);
  /// How many bytes were given to the connection and not acknowledged by the peer (SIOCOUTQ).
  [[nodiscard]] std::size_t unacknowledged(const Tcb& tcb) const;

  // --- Receiving
  [[nodiscard]] std::size_t readable(const Tcb& tcb) const;
  /// Fills `out` with spans of in-order bytes, from the oldest, as many as hold `bytes`; returns how many. They stay
  /// valid until consume(), even without the lock.
  std::size_t peek(const Tcb& tcb, std::span<std::span<const std::byte>> out, std::size_t bytes = SIZE_MAX) const;
  /// The arrival time of the last of the first `bytes` that can be read.
  [[nodiscard]] Instant arrival_of(const Tcb& tcb, std::size_t bytes) const;
  /// The reader has taken `bytes`: frees frames, opens the window, may send a window update.
  void consume(Context& ctx, Tcb& tcb, std::size_t bytes);
  /// True if the peer's FIN has come and everything before it was consumed.
  [[nodiscard]] bool at_eof(const Tcb& tcb) const;

  /// See Stack::move_frames_to_arena.
  std::size_t move_frames_to_arena(Context& ctx, bool (*being_read)(const void* user));

  // --- Ending
  void shutdown_send(Context& ctx, Tcb& tcb);
  void shutdown_receive(Context& ctx, Tcb& tcb);
  /// The socket is gone. Sends FIN after what is queued, or RST at once if unread bytes are left (RFC 2525 §2.17). The
  /// connection goes on as an orphan; the Tcb must not be used again.
  void close(Context& ctx, Tcb& tcb);
  /// Sends RST now (SO_LINGER with 0 s).
  void abort(Context& ctx, Tcb& tcb);
  /// Gives a failed or ended connection's Tcb back to the slab (close() does so for living ones). Orphans are closed
  /// connections that have not ended yet, counted for exit's linger: those whose peer lacks bytes; those for which only
  /// the FIN, or an overlay's last records, are unacknowledged; those that wait for the peer's FIN.
  struct Orphans {
    std::size_t with_data = 0, closing = 0, half_closed = 0;
  };
  [[nodiscard]] Orphans orphans() const;
  /// From here on nobody answers: sends RST to the peer of each orphan that may still send, as the kernel would answer
  /// the peer's segments.
  void abort_orphans(Context& ctx);

  // --- Looking
  [[nodiscard]] State state(const Tcb& tcb) const;
  /// The pending error. take_error() reads and clears it, as SO_ERROR does.
  [[nodiscard]] Error error(const Tcb& tcb) const;
  Error take_error(Tcb& tcb);
  [[nodiscard]] Endpoint local(const Tcb& tcb) const;
  [[nodiscard]] Endpoint remote(const Tcb& tcb) const;
  [[nodiscard]] Info info(const Tcb& tcb) const;
  /// A connection without a socket: half-open, not accepted yet, closed and still delivering, or in TIME-WAIT.
  struct Unowned {
    State state;
    Endpoint local, remote;
    const Tcb* tcb;  // null in TIME-WAIT
  };
  /// Calls `each` for every unowned connection. There may be very many in TIME-WAIT: only the newest `most` of these.
  void for_each_unowned(std::size_t most, void (*each)(void* argument, const Unowned&), void* argument) const;
  void set_options(Context& ctx, Tcb& tcb, const Options& options);
  /// TCP_NODELAY was set, or TCP_CORK ended, even if the value did not change: sends what was written (tcp(7)).
  void push(Context& ctx, Tcb& tcb);
  [[nodiscard]] const Options& options(const Tcb& tcb) const;

  // --- After a death inside the lock
  /// Rebuilds the flow table, timers, listeners' queues and event list from the slabs. `broken` (may be null) is the
  /// object that was being changed: it is given up, and its socket sees kReset.
  void rebuild(Context& ctx, void* broken);
  /// To be called before rebuild(): no object has an owner until each socket has claimed its own.
  void forget_users();
  /// Claims an object for a socket. False: there is no such connection or listener (any more), or its socket has closed
  /// it.
  bool claim(Tcb* tcb, void* user);
  bool claim(Listener* listener, void* user);
  /// To be called after rebuild(), for objects that no socket has claimed. Incoming connections wait to be accepted
  /// (again). All others end, with an RST to the peer.
  void end_unclaimed(Context& ctx);
  /// The connection that is being changed, as the lock's header names it while a call is inside.
  [[nodiscard]] void* current() const;
  /// The first rule of invariants.h that does not hold, or null. Walks everything: for tests.
  [[nodiscard]] const char* violated() const;

  // --- For tests (core.h)
  struct Impl;
  [[nodiscard]] Impl& impl() { return *impl_; }

 private:
  Impl* impl_;  // in the arena
};

}  // namespace bypass::tcp
