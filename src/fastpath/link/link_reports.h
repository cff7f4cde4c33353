// LinkReports: what the log and `bypass why` say about links: a link is up, was not made, or has failed. If a peer has
// no link, the report says why. Private to the process; the caller holds the shard's lock.
// Tests: tests/fastpath/peer_links_devices_test.cc.
#pragma once

#include <optional>

#include "fastpath/link/links_config.h"
#include "fastpath/link/peer_link.h"
#include "fastpath/link/reported_once.h"
#include "stack/tcp/tcb.h"

namespace bypass::fastpath {

class LinkReports {
 public:
  explicit LinkReports(const LinksConfig& config) : note_(config.note) {}

  void note(const PeerLink& link) const {
    if (note_ != nullptr) note_(link);
  }
  /// Notes why there is no link to a peer (or to nobody in particular), as if it had been refused. It notes this once,
  /// not for each connection.
  void tell(Mover mover, const Path& path, const IpAddress& whom, Reason why) {
    const std::optional<IpAddress> news = reported_.add({whom, path.port, mover, why});
    if (!news) return;
    note(refused_link(mover, *news, path.port, why));
  }
  /// In a forked child: the parent made these reports.
  void forget() { reported_ = {}; }

 private:
  void (*note_)(const PeerLink& link);
  ReportedOnce reported_;
};

}  // namespace bypass::fastpath
