#include "channel.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace random_calls {
namespace {

bool read_all(int fd, void* to, std::size_t bytes) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = read(fd, at, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

bool write_all(int fd, const void* from, std::size_t bytes) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t put = write(fd, at, bytes);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    at += put;
    bytes -= static_cast<std::size_t>(put);
  }
  return true;
}

bool answer(int out, const std::string& text) {
  std::string message(sizeof(std::uint32_t), '\0');
  const auto bytes = static_cast<std::uint32_t>(text.size());
  memcpy(message.data(), &bytes, sizeof(bytes));
  message += text;
  return write_all(out, message.data(), message.size());
}

/// The process goes on as a new image, with the same slots.
void execute(const Served& served, const Caller& caller, std::uint64_t seed) {
  std::array<std::string, 8> words{"random_calls",
                                   "child",
                                   std::to_string(served.in),
                                   std::to_string(served.out),
                                   served.address_words[0],
                                   served.address_words[1],
                                   std::to_string(served.length),
                                   std::to_string(seed)};
  std::string slots = std::to_string(caller.pass_end) + ",";
  for (const int fd : caller.slots) slots += std::to_string(fd) + ",";
  std::array<char*, 10> arguments{};
  for (std::size_t i = 0; i < words.size(); ++i) arguments[i] = words[i].data();
  arguments[8] = slots.data();
  execv("/proc/self/exe", arguments.data());
}

}  // namespace

std::optional<std::string> Channel::ask(const Request& request) const {
  std::uint32_t bytes = 0;
  if (!write_all(out_, &request, sizeof(request)) || !read_all(in_, &bytes, sizeof(bytes))) return std::nullopt;
  std::string text(bytes, '\0');
  if (!read_all(in_, text.data(), bytes)) return std::nullopt;
  return text;
}

void serve(const Served& served, Caller& caller, std::uint64_t seed, bool answer_first) {
  std::vector<Step> steps = make_sequence(seed, served.length);
  if (answer_first) answer(served.out, "goes on");
  Request request;
  while (read_all(served.in, &request, sizeof(request))) {
    if (request.seed != seed) steps = make_sequence(seed = request.seed, served.length);
    if (request.step == kBeginSequence) {
      caller.begin(seed);
      answer(served.out, "");
    } else if (request.step == kEndSequence) {
      caller.end();
      answer(served.out, "");
    } else if (request.step == kReadiness) {
      answer(served.out, caller.readiness());
    } else if (request.step == kSettled) {
      answer(served.out, (caller.has_unsent() ? std::string(1, kUnsentMark) : "") + caller.readiness());
    } else {
      const auto index = static_cast<unsigned>(request.step);
      const Step& step = steps[index];
      if (step.op == Op::kExecute) execute(served, caller, seed);  // the next image answers
      answer(served.out,
             step.op == Op::kExecute ? std::string("cannot execute: ") + strerror(errno) : caller.perform(step, index));
    }
  }
  _exit(0);
}

}  // namespace random_calls
