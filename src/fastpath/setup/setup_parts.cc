#include "fastpath/setup/setup_parts.h"

#include <cstring>

#include "fastpath/lane/ring.h"

namespace bypass::fastpath {
namespace {

constexpr std::size_t kProofAt = offsetof(LinkBlock, reserved);

}  // namespace

Write proof_write(Op op, std::uint64_t proof) {
  Write write;
  write.to = kProofAt;
  write.small_length = sizeof proof;
  std::memcpy(write.small.data(), &proof, sizeof proof);
  write.notify = true;
  write.immediate = to_immediate({op, 0, kNoLane});
  return write;
}

bool is_proof(const Arrival& arrival, Op op, std::span<const std::byte> memory, std::uint64_t proof) {
  return to_message(arrival.immediate).op == op && arrival.length == sizeof proof &&
         read_counter(&memory[kProofAt]) == proof;
}

}  // namespace bypass::fastpath
