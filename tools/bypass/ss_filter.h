// The filter of `bypass ss`, in ss's language: states, and expressions over ports, addresses and paths.
//
//   state established   exclude listening   sport = :80   dport >= :1024   dst 10.9.0.0/24   src 10.9.0.1:80
//   ( sport = :80 or sport = :443 ) and not dst 10.9.0.2
//
// Two predicates that ss does not have: path shm, path != kernel.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "observe/layout.h"

namespace bypass::tool {

class SocketFilter {
 public:
  /// Which states are shown where the expression names none: connected ones except SYN-RECV and TIME-WAIT, listening
  /// ones, or all.
  enum class Default : std::uint8_t { kConnected, kListening, kAll };

  /// False: `problem` says what is wrong with the words.
  bool parse(const std::vector<std::string>& words, Default states, std::string& problem);
  [[nodiscard]] bool matches(const observe::SocketRecord& socket) const;
  /// Whether only one state is shown: then its column would say the same in each row.
  [[nodiscard]] bool single_state() const;

 private:
  std::uint32_t states_ = 0;  // bit n: SocketState n, kOpen being an unconnected datagram socket
  std::function<bool(const observe::SocketRecord&)> expression_;
};

/// The state's name in ss: a connected datagram socket is kEstablished, another one kOpen.
[[nodiscard]] observe::SocketState shown_state(const observe::SocketRecord& socket);

}  // namespace bypass::tool
