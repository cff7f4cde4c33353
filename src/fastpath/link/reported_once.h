// ReportedOnce: which missing links were reported already, so that each is reported once and not for each connection.
// Tests: tests/fastpath/peer_links_devices_test.cc.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "fastpath/reason.h"
#include "fastpath/setup/link_record.h"
#include "stack/address.h"

namespace bypass::fastpath {

class ReportedOnce {
 public:
  /// How many peers of one mover and reason are reported by address. All further peers are reported once, without an
  /// address.
  static constexpr std::size_t kMostPeers = 8;

  struct Word {
    IpAddress peer;          // unset: nobody in particular …
    std::uint16_t port = 0;  // … over this port
    Mover mover{};
    Reason why{};
    friend bool operator==(const Word&, const Word&) = default;
  };

  /// The address under which the word is to be reported. Nullopt: it was reported already.
  std::optional<IpAddress> add(Word word) {
    if (!word.peer.is_any()) word.port = 0;
    if (has(word)) return std::nullopt;
    const auto is_kin = [&word](const Word& each) {
      return each.mover == word.mover && each.why == word.why && !each.peer.is_any();
    };
    const auto peers = std::count_if(words_.begin(), words_.begin() + used_, is_kin);
    if (static_cast<std::size_t>(peers) >= kMostPeers && !word.peer.is_any()) {
      word.peer = {};
      if (has(word)) return std::nullopt;
    }
    if (used_ == kMost) return std::nullopt;
    words_[static_cast<std::size_t>(used_++)] = word;
    return word.peer;
  }

 private:
  static constexpr std::ptrdiff_t kMost = 256;  // more than all combinations of reasons and peers

  [[nodiscard]] bool has(const Word& word) const {
    const auto end = words_.begin() + used_;
    return std::find(words_.begin(), end, word) != end;
  }

  std::array<Word, kMost> words_{};
  std::ptrdiff_t used_ = 0;
};

}  // namespace bypass::fastpath
