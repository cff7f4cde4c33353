#include "stack/ip/fragment_writer.h"

#include <algorithm>

namespace bypass {

FragmentWriter::FragmentWriter(Network& network, Context& ctx, const Path& path, std::size_t header_len)
    : network_(network), ctx_(ctx), path_(path), most_((path.mtu - sizeof(wire::Ipv4)) & ~std::size_t{7}) {
  current_.emplace(network, ctx, path, header_len);
}

FragmentWriter::~FragmentWriter() {
  while (Packet* fragment = done_.pop()) ctx_.release(fragment);
}

void FragmentWriter::finish_current() {
  sum_ += current_->sum();
  done_.push(current_->take());
}

bool FragmentWriter::append(std::span<const std::byte> bytes) {
  if (!current_->ok()) return false;
  while (!bytes.empty()) {
    if (current_->frame()->frame_len == most_) {
      finish_current();
      current_.emplace(network_, ctx_, path_, 0);
      if (!current_->ok()) return false;
    }
    const std::size_t take = std::min<std::size_t>(bytes.size(), most_ - current_->frame()->frame_len);
    if (!current_->append(bytes.first(take))) return false;
    bytes = bytes.subspan(take);
  }
  return true;
}

bool FragmentWriter::append(const Packet& frame, std::size_t offset, std::size_t len) {
  for (const Packet* p = &frame; p != nullptr && len != 0; p = p->next_segment) {
    const std::size_t skip = std::min<std::size_t>(offset, p->len);
    const std::size_t take = std::min(len, p->len - skip);
    if (!append(std::span<const std::byte>{p->data + skip, take})) return false;
    offset -= skip;
    len -= take;
  }
  return len == 0;
}

PacketList FragmentWriter::take() {
  finish_current();
  const PacketList all = done_;
  done_ = {};
  return all;
}

}  // namespace bypass
