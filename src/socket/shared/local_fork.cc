// Connections within the host at a fork: the child has channels of its own for the connections that it adopts.
// Tests: tests/system/local_sharing.py.

#include <new>

#include "socket/shared/local_link.h"
#include "socket/shared/local_path.h"
#include "socket/socket.h"

namespace bypass::socket {

namespace shm = fastpath::shm;
using Stage = LocalEnd::Stage;

namespace {

constexpr int kPeerGone = -2;  // stands for the copy of a channel whose peer has gone

}  // namespace

void local_save_channels() {
  for_each_local_link([](LocalLink& link) {
    link.watched = false;  // the watch set belonged to the parent
    link.active = false;
    if (end_of(*link.socket).stage != Stage::kPaired) return;
    link.watched_fd = link.channel.is_open() ? kernel->fcntl(link.channel.descriptor(), F_DUPFD_CLOEXEC, 0) : kPeerGone;
  });
  new (&active_links) ActiveLinks;
}

// The parent's attempts are closed. Paired connections go on under numbers of this process.
void local_restore_channels() {
  recount_local_links();
  for_each_local_link([](LocalLink& link) {
    const bool paired = end_of(*link.socket).stage == Stage::kPaired;
    const int copy = link.watched_fd;
    link.watched_fd = -1;
    // Their numbers were closed with all of ours: other descriptors may have them by now.
    link.channel.abandon();
    link.pairing.abandon();
    if (paired && copy == kPeerGone) return;  // what the peer has written is still read
    if (!paired || copy < 0) return drop_local_link(link);
    link.channel = shm::Channel(shm::Descriptor::kept(copy));
  });
}

void drop_unadopted_links() {
  const std::uint32_t slot = shard().family().slot();
  for_each_local_link([slot](LocalLink& link) {
    if (local_link(*link.socket) != &link || link.socket->references.of(slot) == 0) drop_local_link(link);
  });
}

void local_adopt(Socket& socket) {
  LocalLink* const link = local_link(socket);
  if (link == nullptr) return;
  watch_link(socket, *link, link->channel.descriptor());
  (void)arm_link(socket, *link);
}

}  // namespace bypass::socket
