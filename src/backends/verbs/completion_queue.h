// CompletionQueue: a device's completion queue: an extended one where the device has those (it reads only what is asked
// for, and has the device's time stamps), a plain one elsewhere.
//
// Polled by the holder of the shard's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backends/verbs/verbs.h"

namespace bypass::verbs {

struct Completion {
  std::uint64_t request;  // its number, as it was posted
  ibv_wc_status status;
  // Of a frame that was received
  std::uint32_t bytes;
  bool checksums_good;
  std::uint64_t time;  // of its arrival, in ticks of the device's clock; only where is_timed()
};

class CompletionQueue {
 public:
  enum class Of : std::uint8_t { kSending, kReceiving };

  CompletionQueue() = default;
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  /// With room for `depth`, telling `channel` (or nobody) when armed; with time stamps if they are wanted and to be
  /// had. False: errno says why.
  bool create(const Verbs& verbs, ibv_context* context, Of kind, std::uint32_t depth, ibv_comp_channel* channel,
              bool timed);
  void destroy(const Verbs& verbs);
  std::size_t poll(std::span<Completion> out);

  [[nodiscard]] ibv_cq* get() const { return queue_; }
  [[nodiscard]] bool is_timed() const { return timed_; }

 private:
  bool create_extended(ibv_context* context, std::uint32_t depth, ibv_comp_channel* channel, bool timed);
  std::size_t poll_plain(std::span<Completion> out);
  std::size_t poll_extended(std::span<Completion> out);
  [[nodiscard]] Completion current() const;

  Of kind_ = Of::kReceiving;
  bool timed_ = false;
  ibv_cq* queue_ = nullptr;
  ibv_cq_ex* extended_ = nullptr;  // the same one
};

}  // namespace bypass::verbs
