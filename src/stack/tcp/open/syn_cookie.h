// SYN cookies (RFC 4987 §3.6). When the SYN queue is full, a listener keeps nothing of a SYN: the values go into the
// number of the SYN-ACK, and into the lowest bits of its timestamp, as in Linux. The ACK brings both back.
//
//   number     H(ends) + the peer's number + minute * 2^24 + (H(ends, minute) + MSS index) mod 2^24
//   timestamp  | clock, rounded down | SACK permitted 1 | window scale 4, 15: none |
//
// A peer without timestamps gets neither window scaling nor SACK. A guessed number is accepted with probability 1 in
// 2^28, for two minutes after a cookie was sent.
#pragma once

#include <cstdint>
#include <optional>

#include "stack/tcp/flow_table.h"
#include "stack/tcp/input/options.h"
#include "stack/tcp/open/isn.h"
#include "stack/tcp/seq.h"
#include "stack/time.h"

namespace bypass::tcp {

/// A cookie is good for at least half of this time.
inline constexpr Duration kCookieLifetime = std::chrono::minutes(2);

/// The SYN-ACK's number. `mss`: the peer's, which is rounded down to a value of a table.
[[nodiscard]] SeqNum make_cookie(const Secret& secret, const FlowKey& key, SeqNum peer, std::uint16_t mss, Instant now);
/// The MSS that an acknowledged cookie holds; nullopt: it is no cookie, or too old.
[[nodiscard]] std::optional<std::uint16_t> read_cookie(const Secret& secret, const FlowKey& key, SeqNum peer,
                                                       SeqNum cookie, Instant now);

/// The timestamp clock's value with the SYN's options in its lowest bits; not later than `clock`.
[[nodiscard]] std::uint32_t make_cookie_timestamp(std::uint32_t clock, const SegmentOptions& syn);
/// The options that an echo of such a timestamp holds.
[[nodiscard]] SegmentOptions read_cookie_timestamp(std::uint32_t echo);

}  // namespace bypass::tcp
