#include "backends/verbs/rc/send_memory.h"

#include <algorithm>
#include <cerrno>

#include "backends/verbs/fork.h"

namespace bypass::verbs {

int SendMemory::add(std::span<const std::byte> range) {
  if (count_ == ranges_.size()) return ENOSPC;
  ibv_mr* const made = verbs_->reg_mr(domain_, const_cast<std::byte*>(range.data()), range.size(), 0);
  if (made == nullptr) return errno;
  if (!soft_) keep_in_children(range);
  ranges_[count_++] = {range, made};
  return 0;
}

void SendMemory::remove(std::span<const std::byte> range) {
  for (std::size_t i = 0; i < count_; i++) {
    if (ranges_[i].bytes.data() != range.data()) continue;
    (void)verbs_->dereg_mr(ranges_[i].registration);
    ranges_[i] = ranges_[--count_];
    return;
  }
}

void SendMemory::clear() {
  for (; count_ != 0; count_--) (void)verbs_->dereg_mr(ranges_[count_ - 1].registration);
}

const SendMemory::Range* SendMemory::find(const std::byte* at) const {
  for (std::size_t i = 0; i < count_; i++)
    if (at >= ranges_[i].bytes.data() && at < ranges_[i].bytes.data() + ranges_[i].bytes.size()) return &ranges_[i];
  return nullptr;
}

std::size_t SendMemory::describe(std::span<const std::byte> bytes, std::span<ibv_sge> out) const {
  std::size_t n = 0;
  while (!bytes.empty()) {
    const Range* const range = find(bytes.data());
    if (range == nullptr || n == out.size()) return 0;
    const auto left = static_cast<std::size_t>(range->bytes.data() + range->bytes.size() - bytes.data());
    const std::size_t length = std::min(bytes.size(), left);
    out[n++] = {reinterpret_cast<std::uintptr_t>(bytes.data()), static_cast<std::uint32_t>(length),
                range->registration->lkey};
    bytes = bytes.subspan(length);
  }
  return n;
}

}  // namespace bypass::verbs
