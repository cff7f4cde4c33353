// Meeting: the place where the process that asks for a link over shared memory waits for its peer's process. It is a
// Unix socket in the run directory. Its name is a number that the peer gets in a framed record and that nobody else
// knows.
//
// It ends with the set-up. If its process dies meanwhile, the name stays, but nobody answers and no number is used
// twice. sweep() removes such names later.
// Tests: tests/fastpath/shm/setup_test.cc.
#pragma once

#include <optional>
#include <string>

#include "fastpath/reason.h"
#include "fastpath/setup/shm_record.h"
#include "fastpath/shm/rendezvous/named_listener.h"
#include "stack/time.h"

namespace bypass::fastpath::shm {

class Meeting {
 public:
  Meeting() = default;
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  /// `folder` is a descriptor of the run directory, which must outlive this object. Returns kNone, or why the meeting
  /// could not be made.
  Reason open(int folder, const Nonce& name);
  /// The next process of our own user that has come. Never waits.
  std::optional<Channel> accept();
  /// Nobody can come any more.
  void close() { listener_.close(); }
  [[nodiscard]] int descriptor() const { return listener_.descriptor(); }
  [[nodiscard]] bool is_open() const { return listener_.is_open(); }
  /// In a forked child whose copies are closed already: the name stays, as it is the parent's.
  void abandon() { listener_.abandon(); }

  /// The other side: connects to the socket of that name. kElsewhere: there is no such socket; kOtherUser;
  /// kNoSharedMemory.
  static Reason come(int folder, const Nonce& name, Channel& out);
  /// Removes the names at which nobody answers and which are older than `age` seconds, by the file's own clock.
  static void sweep(int folder, int age);

 private:
  NamedListener listener_;
};

/// The file's name: "link-" and 32 hexadecimal digits.
[[nodiscard]] std::string meeting_name(const Nonce& name);

}  // namespace bypass::fastpath::shm
