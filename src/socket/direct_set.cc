#include "socket/direct_set.h"

#include "socket/epoll.h"
#include "socket/kernel_half.h"
#include "socket/local.h"
#include "socket/local_link.h"
#include "socket/local_path.h"
#include "socket/socket.h"

namespace bypass::socket {

namespace {

/// Where this end hears its peer; negative: nowhere.
int channel_of(const Socket& socket, const LocalLink& link) {
  if (is_paired(socket)) return link.channel.is_open() ? link.channel.descriptor() : -1;
  return link.watched ? link.watched_fd : -1;
}

void hear_told(File& file) {
  if (!is_local(file)) return;
  Socket& socket = socket_of(file);
  const LocalLink* const link = paired_link(socket);
  if (link != nullptr && link->told) local_on_channel(socket);
}

/// What it has is known: an event is news.
bool is_quiet(const KernelHalf& half) {
  return half.watched && half.number >= 0 && half.taking == 0 && !half.in && !half.error && !half.hung_up;
}

}  // namespace

bool DirectSet::concerns(const File& file) {
  if (has_kernel_half(file)) return true;
  return file.kind == FileKind::kEpoll &&
         static_cast<const Epoll&>(file).dual_items.load(std::memory_order_relaxed) != 0;
}

void DirectSet::begin() {
  count_ = file_count_ = 0;
  usable_ = true;
}

void DirectSet::use_watch_set() {
  usable_ = false;
  entries_[0] = {kernel_halves_descriptor(), POLLIN, 0};
  count_ = 1;
}

void DirectSet::add(File& file) {
  if (!usable_ || !concerns(file)) return;
  hear_told(file);
  const bool fits = file.kind != FileKind::kEpoll && file_count_ < kMost && !misled_;
  const KernelHalf* const half = kernel_half(file);
  if (!fits || half == nullptr || !is_quiet(*half)) return use_watch_set();
  files_[file_count_++] = &file;
  constexpr short kNews = POLLIN | POLLPRI | POLLRDHUP;
  entries_[count_++] = {half->number, static_cast<short>(half->out ? kNews : kNews | POLLOUT), 0};
  const LocalLink* const link = is_local(file) ? local_link(socket_of(file)) : nullptr;
  entries_[count_++] = {link != nullptr ? channel_of(socket_of(file), *link) : -1, POLLIN, 0};
}

void DirectSet::on_slept(std::span<const pollfd> entries) {
  told_ = false;
  if (!usable_) return;
  for (std::size_t i = 0; i < entries.size(); i++) {
    if (entries[i].revents == 0) continue;
    if (i % 2 == 0) {
      misled_ = true;
    } else if (LocalLink* const link = local_link(socket_of(*files_[i / 2])); link != nullptr) {
      link->told = told_ = true;
    }
  }
  told_ = told_ && !misled_;
}

bool DirectSet::hear() {
  if (!told_) return false;
  told_ = false;
  const Guard guard(shard());
  for (std::size_t i = 0; i < file_count_; i++) hear_told(*files_[i]);
  return true;
}

}  // namespace bypass::socket
