// CompletionQueue: a device's completion queue. It is an extended one where the device has those: that reads only what
// is asked for, and has the device's time stamps. Elsewhere it is a plain one.
//
// The holder of the shard's lock polls it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backends/verbs/verbs.h"

namespace bypass::verbs {

struct Completion {
  std::uint64_t request;  // the request's number, as it was posted
  ibv_wc_status status;
  // These describe a received frame
  std::uint32_t bytes;
  bool checksums_good;
  std::uint64_t time;  // when it arrived, in ticks of the device's clock; only where is_timed()
};

class CompletionQueue {
 public:
  enum class Of : std::uint8_t { kSending, kReceiving };

  CompletionQueue() = default;
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  /// Makes the queue, with room for `depth` completions. When armed, it tells `channel`, unless that is null. It has
  /// time stamps if they are wanted and the device has them. False: errno says why.
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
  ibv_cq_ex* extended_ = nullptr;  // queue_ in its extended form
};

}  // namespace bypass::verbs
