// Steps of what happens to a family's objects (kin.h), for the files that need one of them alone.
// Tests: tests/socket/kin_test.cc, tests/system/executed.py
#pragma once

#include "socket/objects.h"

namespace bypass::socket {

template <typename F>
void for_each_file(F&& f) {
  if (objects == nullptr) return;
  objects->sockets.for_each([&](Socket& socket) { f(socket); });
  objects->epolls.for_each([&](Epoll& epoll) { f(epoll); });
}

/// Notes how many processes the family has.
void count_members();
/// Calls the owner of the wires, so that it looks at the new member. Lock held.
void call_owner();
/// From here on what arrives is put into the arena; what lies in the device's memory is moved there. If a thread is
/// copying from that memory right now, this waits for it. False: there is no memory. Lock held.
[[nodiscard]] bool move_frames(Guard& guard);
/// Drops the references of a slot to one object, which ends without any other. Lock held.
void drop_references_to(Guard& guard, File& file, std::uint32_t slot);

}  // namespace bypass::socket
