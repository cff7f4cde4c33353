// Meeting: where the process that asks for a link over shared memory waits for its peer's: a Unix socket in the run
// directory, named by a number that the peer has from a framed record and nobody else knows.
//
// It is gone with the set-up. What a process leaves that dies meanwhile is a name to which nobody answers, and no
// number comes twice; sweep() takes it away later.
#pragma once

#include <optional>
#include <string>

#include "fastpath/reason.h"
#include "fastpath/setup/shm_record.h"
#include "fastpath/shm/named_listener.h"
#include "stack/time.h"

namespace bypass::fastpath::shm {

class Meeting {
 public:
  Meeting() = default;
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  /// `folder` is a descriptor of the run directory, which outlives this. kNone, or why it could not be made.
  Reason open(int folder, const Nonce& name);
  /// The one that has come next, of our own user. Never waits.
  std::optional<Channel> accept();
  /// Nobody can come any more.
  void close() { listener_.close(); }
  [[nodiscard]] int descriptor() const { return listener_.descriptor(); }
  [[nodiscard]] bool is_open() const { return listener_.is_open(); }
  /// In a forked child whose copies are closed already: the name stays, it is the parent's.
  void abandon() { listener_.abandon(); }

  /// The other's side: connects to the socket of that name. kElsewhere: there is none; kOtherUser; kNoSharedMemory.
  static Reason come(int folder, const Nonce& name, Channel& out);
  /// Takes the names away at which nobody answers and which are older than `age`, in seconds of the file's own clock.
  static void sweep(int folder, int age);

 private:
  NamedListener listener_;
};

/// "link-" and 32 hexadecimal digits.
[[nodiscard]] std::string meeting_name(const Nonce& name);

}  // namespace bypass::fastpath::shm
