// What every kind of link's set-up (LinkSetup) does alike: the records that it owes the peer, and the first write each
// way over the link, which proves that it leads where the records say.
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
  bool told = false;  // the peer has heard of the link

  /// The one that is due; False: none is. `local` describes our end, and goes along where there is no reason against
  /// the link.
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
  /// The link will not be made, by our word: who knows of it has to hear so.
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

/// The write that says `proof`, which the peer has chosen, in its memory.
[[nodiscard]] Write proof_write(Op op, std::uint64_t proof);
/// Whether what has come is the peer's, and says ours.
[[nodiscard]] bool is_proof(const Arrival& arrival, Op op, std::span<const std::byte> memory, std::uint64_t proof);

}  // namespace bypass::fastpath
