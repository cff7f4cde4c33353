// SendMemory: the ranges of this process's memory from which links' writes may read. Each is registered once, for
// reading by the device alone. No peer has a key to it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "backends/verbs/verbs.h"

namespace bypass::verbs {

class SendMemory {
 public:
  static constexpr std::size_t kMostRanges = 64;

  SendMemory() = default;
  SendMemory(const SendMemory&) = delete;
  SendMemory& operator=(const SendMemory&) = delete;

  void use(const Verbs& verbs, ibv_pd* domain, bool soft) { verbs_ = &verbs, domain_ = domain, soft_ = soft; }
  /// 0 or an errno; ENOSPC: too many ranges.
  int add(std::span<const std::byte> range);
  void remove(std::span<const std::byte> range);
  void clear();

  /// Describes bytes as the device needs them: in one element, or in more where they lie in neighbouring ranges.
  /// Returns how many elements were filled. 0: some of the bytes are in no range, or `out` is too short.
  [[nodiscard]] std::size_t describe(std::span<const std::byte> bytes, std::span<ibv_sge> out) const;

 private:
  struct Range {
    std::span<const std::byte> bytes;
    ibv_mr* registration = nullptr;
  };
  [[nodiscard]] const Range* find(const std::byte* at) const;

  const Verbs* verbs_ = nullptr;
  ibv_pd* domain_ = nullptr;
  bool soft_ = false;  // the device is the software library's
  std::array<Range, kMostRanges> ranges_{};
  std::size_t count_ = 0;
};

}  // namespace bypass::verbs
