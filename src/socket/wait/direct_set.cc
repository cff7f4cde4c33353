#include "socket/wait/direct_set.h"

#include "socket/shared/local.h"
#include "socket/shared/local_link.h"
#include "socket/shared/local_path.h"
#include "socket/socket.h"
#include "socket/wait/epoll.h"
#include "socket/wait/kernel_half.h"

namespace bypass::socket {

namespace {

/// The descriptor on which this end hears its peer; negative: none.
int channel_of(const Socket& socket, const LocalLink& link) {
  if (is_paired(socket)) return link.channel.is_open() ? link.channel.descriptor() : -1;
  return link.watched ? link.watched_fd : -1;
}

void read_channel(File& file) {
  const LocalLink* const link = local_link_of(file);
  if (link != nullptr && link->channel_readable) local_on_channel(socket_of(file));
}

/// True if its state is known, so that an event would be news.
bool is_quiet(const KernelHalf& half) {
  return half.watched && half.number >= 0 && half.taking == 0 && !has_news(half);
}

}  // namespace

bool DirectSet::concerns(const File& file) {
  if (has_kernel_half(file)) return true;
  return file.kind == FileKind::kEpoll &&
         static_cast<const Epoll&>(file).dual_items.load(std::memory_order_relaxed) != 0;
}

void DirectSet::begin() {
  count_ = file_count_ = links_ = 0;
  usable_ = true;
}

void DirectSet::use_watch_set() {
  usable_ = false;
  links_ = 0;
  entries_[0] = {kernel_halves_descriptor(), POLLIN, 0};
  count_ = 1;
}

void DirectSet::add(File& file) {
  if (!usable_ || !concerns(file)) return;
  read_channel(file);
  const bool fits = file.kind != FileKind::kEpoll && file_count_ < kMost && !misled_;
  const KernelHalf* const half = kernel_half(file);
  if (!fits || half == nullptr || !is_quiet(*half)) return use_watch_set();
  files_[file_count_++] = &file;
  constexpr short kNews = POLLIN | POLLPRI | POLLRDHUP;
  entries_[count_++] = {half->number, static_cast<short>(half->out ? kNews : kNews | POLLOUT), 0};
  const LocalLink* const link = local_link_of(file);
  const int channel = link != nullptr ? channel_of(socket_of(file), *link) : -1;
  entries_[count_++] = {channel, POLLIN, 0};
  if (channel >= 0 && file.waiters == nullptr) links_++;
}

void DirectSet::on_slept(std::span<const pollfd> entries) {
  by_channel_ = false;
  if (entries.empty()) return;
  if (!usable_) {
    misled_ = misled_ && entries[0].revents != 0;
    return;
  }
  for (std::size_t i = 0; i < entries.size(); i++) {
    if (entries[i].revents == 0) continue;
    if (i % 2 == 0) {
      misled_ = true;
    } else if (LocalLink* const link = local_link_of(*files_[i / 2]); link != nullptr) {
      link->channel_readable = by_channel_ = true;
    }
  }
  by_channel_ = by_channel_ && !misled_;
}

bool DirectSet::hear() {
  if (!by_channel_) return false;
  by_channel_ = false;
  const Guard guard(shard());
  for (std::size_t i = 0; i < file_count_; i++) read_channel(*files_[i]);
  return true;
}

}  // namespace bypass::socket
