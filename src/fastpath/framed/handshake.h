// How two accelerated ends recognise each other. SYN and SYN-ACK carry one option, and after that each direction of the
// TCP stream says itself whether it is framed. A path that strips, echoes or splits segments changes only the speed.
//
//   kind=254 length=12 | ExID:32 (RFC 6994) | version:4 R:1 F:1 0:2 | capabilities:8 | tag:32         in a SYN
//   kind=254 length=16 | the same, with R                                           | tag:32 proof:32 in a SYN-ACK
//
// R is set in the SYN-ACK only, so that an echo is no answer. F asks for the framed stream. The proof is a hash of both
// tags as the server knows them, keyed as the magic is. It is needed because ends with different secrets, or with tags
// that the path has changed, would not recognise each other's magic: what one end frames, the other would pass to its
// program.
//
//   R1 A client is armed if it sent the option and the SYN-ACK carries it with R and the right proof.
//   R2 An armed client's first bytes are magic_c, on the handshake's last ACK itself, whether the program has written
//      or not; until they are acknowledged it sends no bare segment at their sequence number.
//   R3 A server that sent the option looks at the segment that establishes the connection. If it begins with magic_c,
//      the server's direction begins with magic_s. If it lies at the stream's beginning and carries nothing, the
//      server's direction is plain at once and for good. If it lies after the beginning, the bytes before it are lost
//      or late, and the first bytes decide when they come.
//   R4 An end that sent R, or is armed, compares the incoming bytes with the other's magic. All 16 bytes equal: framed.
//      One byte differs: plain, and nothing is taken away. With fewer bytes so far it waits: from 8 bytes on without
//      limit, below that for at most 10 ms.
//   R5 An armed client that finds the server's direction plain sends REVERT.
//   R6 So does an armed client that has used up the DATA window before the server's direction has said what it is. A
//      server whose direction is plain can send no CREDIT, and may wait for the client's end before it sends anything.
//      An end that gets REVERT, and is framed itself, sends REVERT.
//
// The magic is keyed with both tags (and a secret, if the ends share one). It does not use addresses or sequence
// numbers, which middleboxes rewrite. Without a secret it tells directions apart and authenticates nobody.
//
// Once a client is armed, or a server has answered, the object holds no pointer and may lie in the arena.
//
// The classes are templates over their rules, so that a test can show why each rule is needed.
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
  std::uint32_t tag = 0;    // the stack's tag: its upper bits say where the stack is (PeerLinks::Config::place)
  std::uint32_t proof = 0;  // valid with R
  friend bool operator==(const SynOption&, const SynOption&) = default;
};

/// Writes the option: 12 bytes, or 16 with R. Returns 0 when it does not fit.
std::size_t write_syn_option(std::span<std::byte> room, const SynOption& option);
/// Reads an option's body (the bytes after kind and length), as Hooks::see_syn_option gets it. Nullopt if it is another
/// experiment's, has a length that ours cannot have, or is of version 0. A later version begins with the fields of this
/// one.
std::optional<SynOption> parse_syn_option(std::span<const std::byte> body);

/// The proof in the server's answer, made of both tags.
std::uint32_t answer_proof(std::uint32_t client_tag, std::uint32_t server_tag, std::span<const std::byte> secret);

using Magic = std::array<std::byte, 16>;
enum class Role : std::uint8_t { kClient = 1, kServer = 2, kAnswer = 3 };
/// The bytes with which `role`'s direction begins. `secret` may be empty.
Magic magic(std::uint32_t client_tag, std::uint32_t server_tag, Role role, std::span<const std::byte> secret);

enum class Framing : std::uint8_t { kUnknown, kPlain, kFramed };

/// R4: the reader's side of one direction.
class Sniffer {
 public:
  static constexpr std::size_t kEnough = 8;  // so many matching bytes are no accident
  static constexpr Duration kPatience = std::chrono::milliseconds(10);

  void expect(const Magic& magic) { magic_ = magic, framing_ = Framing::kUnknown; }
  void assume(Framing framing) { framing_ = framing; }
  [[nodiscard]] Framing framing() const { return framing_; }

  /// Takes the direction's first bytes, all that have come so far. kFramed: the first 16 are not the program's.
  Framing look(Instant now, std::span<const std::byte> first);
  /// When look() stops waiting for the rest of a short match; kNever if it does not wait.
  [[nodiscard]] Instant deadline() const { return framing_ == Framing::kUnknown ? deadline_ : kNever; }
  void on_timeout(Instant now) {
    if (now >= deadline()) framing_ = Framing::kPlain;
  }
  /// The direction ended before it showed what it is.
  void on_end() {
    if (framing_ == Framing::kUnknown) framing_ = Framing::kPlain;
  }

 private:
  Magic magic_{};
  Instant deadline_ = kNever;
  Framing framing_ = Framing::kPlain;
};

/// The complete rules. A test that leaves one out shows that it is needed.
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

  /// Writes the option for SYN number `attempt` (0 is the first). Returns the number of bytes.
  std::size_t write_syn(unsigned attempt, std::span<std::byte> room) {
    if (attempt >= kSynAttempts) return 0;
    const std::size_t used = write_syn_option(room, {.capabilities = config_.capabilities, .tag = config_.tag});
    sent_ = sent_ || used != 0;
    return used;
  }
  /// Takes our option from the SYN-ACK, if there is one.
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
  /// R2: the bytes with which the client's direction begins.
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

  /// Takes the SYN's option. An option with R is an echo of somebody's answer.
  void on_syn(const std::optional<SynOption>& option) {
    offered_ = option && !option->response && option->framed;
    if (!offered_) return;
    peer_ = *option;
    proof_ = answer_proof(peer_.tag, config_.tag, config_.secret);
  }
  /// Writes the option for the SYN-ACK. Not to be called for a SYN cookie, which cannot remember the answer. Returns
  /// the number of bytes.
  std::size_t write_syn_ack(std::span<std::byte> room) {
    if (!offered_) return 0;
    const SynOption answer{.response = true, .capabilities = config_.capabilities, .tag = config_.tag, .proof = proof_};
    const std::size_t used = write_syn_option(room, answer);
    if (used != 0) answered();
    return used;
  }
  /// R3: takes the payload of the segment that establishes the connection.
  void on_established(Instant now, std::span<const std::byte> payload) {
    if (!answered_ || writer_ != Framing::kUnknown) return;
    if (payload.empty()) {
      writer_ = Framing::kPlain;
      return;
    }
    on_first_bytes(now, payload);
  }
  /// Takes the client's first bytes, all that have come so far, while reader() is undecided.
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

  /// Whether the server's direction is framed; kUnknown: its program's bytes wait until a magic that has begun is
  /// complete.
  [[nodiscard]] Framing writer() const { return writer_; }
  /// The bytes with which its direction begins if writer() is kFramed.
  [[nodiscard]] const Magic& first_bytes() const { return first_; }
  [[nodiscard]] Sniffer& reader() { return reader_; }
  [[nodiscard]] const SynOption& peer() const { return peer_; }

 private:
  void answered() {
    if (answered_) return;  // a repeated SYN-ACK changes nothing
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
