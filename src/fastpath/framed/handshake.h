// How two accelerated ends recognise each other: one option in SYN and SYN-ACK, and from then on each direction of the
// TCP stream says itself whether it is framed. A path that strips, echoes or splits changes nothing but the speed.
//
//   kind=254 length=12 | ExID:32 (RFC 6994) | version:4 R:1 F:1 0:2 | capabilities:8 | tag:32         in a SYN
//   kind=254 length=16 | the same, with R                                           | tag:32 proof:32 in a SYN-ACK
//
// R is set in the SYN-ACK only, so that an echo is no answer; F asks for the framed stream. The proof is a hash of both
// tags as the server knows them, keyed as the magic is: ends whose secrets differ, or whose tags something on the path
// has changed, would not know each other's magic, and what one frames the other would hand to its program.
//
//   R1 A client is armed if it sent the option and the SYN-ACK carries it with R and the right proof.
//   R2 An armed client's first bytes are magic_c, on the handshake's last ACK itself, whether the program has written
//      or not; until they are acknowledged it sends no bare segment at their sequence number.
//   R3 A server that sent the option looks at the segment that establishes the connection. It begins with magic_c: the
//      server's direction begins with magic_s. It lies at the stream's beginning and carries nothing: the server's
//      direction is plain, for good and at once. (It lies behind the beginning, because what was in front of it is lost
//      or late: the first bytes decide when they come.)
//   R4 Who sent R, or is armed, compares what comes in with the other's magic: all 16 bytes, framed; one that differs,
//      plain, nothing taken away. Fewer so far: from 8 on it waits for more, below that for 10 ms at most.
//   R5 An armed client that finds the server's direction plain sends REVERT.
//   R6 So does one that has used up the DATA window before the server's direction has said what it is: a server whose
//      direction is plain can send no CREDIT, and may wait for the client's end before it says anything. An end that
//      gets REVERT, and is framed itself, sends REVERT.
//
// The magic is keyed with both tags (and a secret, if the ends share one), not with addresses or sequence numbers,
// which middleboxes rewrite. Without a secret it tells directions apart and authenticates nobody.
//
// Once a client is armed, or a server has answered, its object holds no pointer and may lie in the arena.
//
// The classes are templates over their rules, so that a test can show what each rule is for.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "stack/time.h"

namespace bypass::fastpath {

inline constexpr std::uint8_t kOptionKind = 254;
inline constexpr std::size_t kSynOptionBytes = 12;
inline constexpr std::size_t kSynAckOptionBytes = 16;
inline constexpr std::uint32_t kExId = 0x6c627970;
inline constexpr std::uint8_t kVersion = 1;
inline constexpr unsigned kSynAttempts =
    2;  // later SYNs go without it: a path that drops it must not cost the connection

enum Capability : std::uint8_t { kCapRoce = 1, kCapShm = 2, kCapSecret = 16 };

struct SynOption {
  std::uint8_t version = kVersion;
  bool response = false;  // R
  bool framed = true;     // F
  std::uint8_t capabilities = 0;
  std::uint32_t tag = 0;    // of the stack: its upper bits say where it is (PeerLinks::Config::place)
  std::uint32_t proof = 0;  // with R
  friend bool operator==(const SynOption&, const SynOption&) = default;
};

/// 12 bytes, 16 with R; 0 when they do not fit.
std::size_t write_syn_option(std::span<std::byte> room, const SynOption& option);
/// From an option's body (what follows kind and length), as Hooks::see_syn_option has it. Nothing when it is another
/// experiment's, of a length that ours has not, or of version 0. A later version's first fields are this one's.
std::optional<SynOption> parse_syn_option(std::span<const std::byte> body);

/// What the server's answer says of both tags.
std::uint32_t answer_proof(std::uint32_t client_tag, std::uint32_t server_tag, std::span<const std::byte> secret);

using Magic = std::array<std::byte, 16>;
enum class Role : std::uint8_t { kClient = 1, kServer = 2, kAnswer = 3 };
/// What `role`'s direction begins with. `secret` may be empty.
Magic magic(std::uint32_t client_tag, std::uint32_t server_tag, Role role, std::span<const std::byte> secret);

enum class Framing : std::uint8_t { kUnknown, kPlain, kFramed };

/// R4: the reader's side of one direction.
class Sniffer {
 public:
  static constexpr std::size_t kEnough = 8;  // matching bytes that are no accident
  static constexpr Duration kPatience = std::chrono::milliseconds(10);

  void expect(const Magic& magic) { magic_ = magic, framing_ = Framing::kUnknown; }
  void assume(Framing framing) { framing_ = framing; }
  [[nodiscard]] Framing framing() const { return framing_; }

  /// The direction's first bytes, all that have come so far. kFramed: the first 16 are not the program's.
  Framing look(Instant now, std::span<const std::byte> first);
  /// When a short match stops being waited for; kNever.
  [[nodiscard]] Instant deadline() const { return framing_ == Framing::kUnknown ? deadline_ : kNever; }
  void on_timeout(Instant now) {
    if (now >= deadline()) framing_ = Framing::kPlain;
  }
  /// The direction ended before it said what it is.
  void on_end() {
    if (framing_ == Framing::kUnknown) framing_ = Framing::kPlain;
  }

 private:
  Magic magic_{};
  Instant deadline_ = kNever;
  Framing framing_ = Framing::kPlain;
};

/// The rules as they are. A test that leaves one out shows that it is needed.
struct HandshakeRules {
  static constexpr bool kClientAsksForR = true;         // R1
  static constexpr bool kClientAsksForProof = true;     // R1
  static constexpr bool kServerWaitsForTheAck = true;   // R3: its own SYN-ACK proves nothing
  static constexpr bool kReaderAsksForTheMagic = true;  // R4
};

struct HandshakeConfig {
  std::uint32_t tag = 0;
  std::uint8_t capabilities = 0;
  std::span<const std::byte> secret = {};
};

template <typename Rules = HandshakeRules>
class BasicClientHandshake {
 public:
  explicit BasicClientHandshake(const HandshakeConfig& config) : config_(config) {}

  /// For SYN number `attempt` (0 is the first). Bytes written.
  std::size_t write_syn(unsigned attempt, std::span<std::byte> room) {
    if (attempt >= kSynAttempts) return 0;
    const std::size_t used = write_syn_option(room, {.capabilities = config_.capabilities, .tag = config_.tag});
    sent_ = sent_ || used != 0;
    return used;
  }
  /// Our option in the SYN-ACK, if there is one.
  void on_syn_ack(const std::optional<SynOption>& option) {
    if (!sent_ || !option || (Rules::kClientAsksForR && !option->response) || !option->framed) return;
    const std::uint32_t proof = answer_proof(config_.tag, option->tag, config_.secret);
    if (Rules::kClientAsksForProof && option->proof != proof) return;
    armed_ = true;
    peer_ = *option;
    first_ = magic(config_.tag, peer_.tag, Role::kClient, config_.secret);
    reader_.expect(magic(config_.tag, peer_.tag, Role::kServer, config_.secret));
    config_.secret = {};
    if (!Rules::kReaderAsksForTheMagic) reader_.assume(Framing::kFramed);
  }
  [[nodiscard]] bool armed() const { return armed_; }
  [[nodiscard]] const SynOption& peer() const { return peer_; }
  /// R2: what the client's direction begins with.
  [[nodiscard]] std::optional<Magic> first_bytes() const { return armed_ ? std::optional(first_) : std::nullopt; }
  [[nodiscard]] Sniffer& reader() { return reader_; }
  /// R5.
  [[nodiscard]] bool must_revert() const { return armed_ && reader_.framing() == Framing::kPlain; }

 private:
  HandshakeConfig config_;
  SynOption peer_;
  Magic first_{};
  Sniffer reader_;
  bool sent_ = false, armed_ = false;
};

template <typename Rules = HandshakeRules>
class BasicServerHandshake {
 public:
  explicit BasicServerHandshake(const HandshakeConfig& config) : config_(config) {}

  /// The SYN's option. One with R is an echo of somebody's answer.
  void on_syn(const std::optional<SynOption>& option) {
    offered_ = option && !option->response && option->framed;
    if (!offered_) return;
    peer_ = *option;
    proof_ = answer_proof(peer_.tag, config_.tag, config_.secret);
  }
  /// For the SYN-ACK; not to be called where a SYN cookie must do (it cannot remember). Bytes written.
  std::size_t write_syn_ack(std::span<std::byte> room) {
    if (!offered_) return 0;
    const SynOption answer{.response = true, .capabilities = config_.capabilities, .tag = config_.tag, .proof = proof_};
    const std::size_t used = write_syn_option(room, answer);
    if (used != 0) answered();
    return used;
  }
  /// R3: the payload of the segment that makes the connection established.
  void on_established(Instant now, std::span<const std::byte> payload) {
    if (!answered_ || writer_ != Framing::kUnknown) return;
    if (payload.empty()) {
      writer_ = Framing::kPlain;
      return;
    }
    on_first_bytes(now, payload);
  }
  /// The client's first bytes, all that have come so far, while reader() is undecided.
  void on_first_bytes(Instant now, std::span<const std::byte> first) {
    reader_.look(now, first);
    settle();
  }
  void on_timeout(Instant now) {
    reader_.on_timeout(now);
    settle();
  }
  void on_end() {
    reader_.on_end();
    settle();
  }

  /// What the server's direction is; kUnknown: its program's bytes wait (for the rest of a magic that has begun).
  [[nodiscard]] Framing writer() const { return writer_; }
  /// What its direction begins with if writer() is kFramed.
  [[nodiscard]] const Magic& first_bytes() const { return first_; }
  [[nodiscard]] Sniffer& reader() { return reader_; }
  [[nodiscard]] const SynOption& peer() const { return peer_; }

 private:
  void answered() {
    if (answered_) return;  // said once more
    answered_ = true;
    first_ = magic(peer_.tag, config_.tag, Role::kServer, config_.secret);
    writer_ = Rules::kServerWaitsForTheAck ? Framing::kUnknown : Framing::kFramed;
    reader_.expect(magic(peer_.tag, config_.tag, Role::kClient, config_.secret));
    config_.secret = {};
    if (!Rules::kReaderAsksForTheMagic) reader_.assume(Framing::kFramed);
  }
  void settle() {
    if (writer_ == Framing::kUnknown) writer_ = reader_.framing();
  }

  HandshakeConfig config_;
  SynOption peer_;
  Magic first_{};
  Sniffer reader_;
  std::uint32_t proof_ = 0;
  Framing writer_ = Framing::kPlain;
  bool offered_ = false, answered_ = false;
};

using ClientHandshake = BasicClientHandshake<>;
using ServerHandshake = BasicServerHandshake<>;

}  // namespace bypass::fastpath
