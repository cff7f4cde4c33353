// A process asks another one for its part in a sequence, over a pair of pipes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "calls.h"

namespace random_calls {

/// What is asked for instead of a step.
/// kSettled: the readiness, behind kUnsentMark if bytes are not sent yet.
inline constexpr char kUnsentMark = '!';
inline constexpr std::int32_t kReadiness = -1, kSettled = -2, kEndSequence = -3, kBeginSequence = -4;

struct Request {
  std::uint64_t seed = 0;
  std::int32_t step = 0;  // an index, or one of the above
};

/// The asking end.
class Channel {
 public:
  Channel() = default;
  Channel(int in, int out) : in_(in), out_(out) {}

  /// Empty: the other process has ended.
  std::optional<std::string> ask(const Request& request) const;

 private:
  int in_ = -1, out_ = -1;
};

/// What a process that serves requests was started with. `in` and `out`: its ends of the pipes.
struct Served {
  int in, out;
  unsigned length;
  Addresses addresses;
  std::string address_words[2];  // as the command line has them
};
/// Serves requests until the asking process has ended. `answer_first`: the process was executed for a step, and answers
/// it.
[[noreturn]] void serve(const Served& served, Caller& caller, std::uint64_t seed, bool answer_first);

}  // namespace random_calls
