#include "preload/numbers.h"

#include "preload/acceleration.h"
#include "preload/pumped.h"
#include "preload/straight.h"
#include "preload/streams.h"

namespace bypass::preload {

bool enter_number(int fd, File* file) {
  bool placed = false;
  socket::note_number(*file, fd);
  Entry stale = fd_table.exchange(fd, Entry(file), &placed);
  if (!placed) socket::release(*file, fd);
  if (!stale.empty()) release_entry(stale, -1);
  return placed;
}

void drop_stale_number(int fd) {
  if (fd_table.load(fd).empty() || goes_straight()) [[likely]]
    return;
  KeepErrno keep;
  Entry stale = fd_table.exchange(fd, {});
  if (stale.empty()) return;
  await_exchange_of(fd);
  release_entry(stale, -1);
}

void leave_number(int fd) {
  if (goes_straight()) return;
  Entry entry = fd_table.exchange(fd, {});
  if (entry.empty()) return;
  await_exchange_of(fd);
  release_entry(entry, fd);
}

void share_number(int fd, int copy) {
  KeepErrno keep;
  drop_stale_number(copy);
  Use use(fd, Use::kAny);
  if (!use) return;
  // C's streams would read and write it inside libc.
  if (copy <= STDERR_FILENO && !are_streams_caught()) {
    socket::leave_shared_memory(*use);
    if (!socket::is_in_kernel(*use)) note_uncaught_stream(copy);
  }
  socket::retain(*use);
  enter_number(copy, use.entry().file());
}

void drop_if_decided(const Use& use, int fd) {
  if (!socket::decided_for_kernel(*use)) return;
  KeepErrno keep;
  if (fd_table.clear(fd, use.entry())) release_entry(use.entry(), fd);
}

bool spare_numbers() {
  const KeepErrno keep;
  return has_started() && !goes_straight() && socket::spare_numbers();
}

}  // namespace bypass::preload
