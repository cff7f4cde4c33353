#include "fastpath/lane/ring.h"

#include <algorithm>

namespace bypass::fastpath {
namespace {

constexpr std::size_t kConsumedAt = sizeof(std::uint64_t);

// The peer's memory is written by a device or another process; alignment was checked when the lane was opened.
std::uint64_t load(const std::byte* at) {
  return __atomic_load_n(reinterpret_cast<const std::uint64_t*>(at), __ATOMIC_ACQUIRE);
}
void store(std::byte* at, std::uint64_t value) {
  __atomic_store_n(reinterpret_cast<std::uint64_t*>(at), value, __ATOMIC_RELEASE);
}

}  // namespace

CreditBlock read_credit(const std::byte* at) {
  CreditBlock block;
  block.consumed = load(at + kConsumedAt);
  block.placed = load(at);
  return block;
}

std::uint64_t read_counter(const std::byte* at) {
  return load(at);
}

void write_credit(std::byte* at, const CreditBlock& block) {
  store(at, block.placed);
  store(at + kConsumedAt, block.consumed);
}

Reason RingWriter::on_credit(const CreditBlock& block) {
  const std::uint64_t placed = std::max(block.placed, placed_);
  const std::uint64_t consumed = std::max(block.consumed, consumed_);
  if (placed > sent_ || consumed > placed) return Reason::kBadCredit;
  placed_ = placed;
  consumed_ = consumed;
  return Reason::kNone;
}

Reason RingReader::place(std::uint64_t bytes) {
  if (bytes > capacity() - (placed_ - consumed_)) return Reason::kRingOverrun;
  placed_ += bytes;
  return Reason::kNone;
}

CreditBlock RingReader::tell() {
  told_placed_ = placed_;
  told_consumed_ = offered();
  return {told_placed_, told_consumed_};
}

Reason MessageCredits::on_returned(std::uint64_t count) {
  if (count > sent_) return Reason::kMessageOverrun;
  returned_ = std::max(returned_, count);
  return Reason::kNone;
}

Reason MessageCredits::on_message() {
  seen_++;
  return seen_ - told_ > window_ ? Reason::kMessageOverrun : Reason::kNone;
}

}  // namespace bypass::fastpath
