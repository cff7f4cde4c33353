// What the set-up (LinkSetup) of every kind of link does alike: it keeps the records that it owes the peer, and makes
// the first write each way, which proves that the link leads where the records say.
// Tests: tests/fastpath/shm/setup_test.cc, tests/verbs/rc/setup_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "fastpath/framed/control.h"
#include "fastpath/lane/message.h"
#include "fastpath/link/link.h"
#include "fastpath/setup/link_record.h"

namespace bypass::fastpath {

/// LINK_REQ, LINK_ACC and LINK_READY, each due once.
struct OwedRecords {
  bool request = false, answer = false, ready = false;
  bool told = false;  // the peer knows of the link

  /// Fills in the record that is due. False: no record is due. `local` describes our end, and is sent unless there is a
  /// reason against the link.
  template <typename End>
  bool next(const LinkHead& head, const End& local, Record& record, std::span<std::byte> body) {
    const bool whole = head.reason == Reason::kNone && (request || answer);
    if (take(request)) {
      record.type = RecordType::kLinkReq;
    } else if (take(answer)) {
      record.type = RecordType::kLinkAcc;
    } else if (take(ready)) {
      record.type = RecordType::kLinkReady;
    } else {
      return false;
    }
    told = true;
    record = {.type = record.type, .link = head.link};
    record.length = static_cast<std::uint32_t>(whole ? encode(head, local, body) : encode(head, body));
    return true;
  }
  /// We decide that the link will not be made. A peer that knows of it has to be told.
  void fail() {
    ready = told && !answer;
    request = false;
  }

 private:
  static bool take(bool& owed) {
    const bool was = owed;
    owed = false;
    return was;
  }
};

/// The write that puts `proof`, which the peer has chosen, into the peer's memory.
[[nodiscard]] Write proof_write(Op op, std::uint64_t proof);
/// Whether the peer's message has come, with our `proof` in our memory.
[[nodiscard]] bool is_proof(const Arrival& arrival, Op op, std::span<const std::byte> memory, std::uint64_t proof);

}  // namespace bypass::fastpath
