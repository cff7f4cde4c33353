#include "director.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <utility>

namespace random_calls {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPatience{2'000};    // until both runs have the same readiness
constexpr milliseconds kFlush{500};         // corked bytes leave after 200 ms (tcp(7))
constexpr milliseconds kAcknowledged{100};  // bytes that wait for an acknowledgement (Nagle's algorithm)
constexpr milliseconds kTurn{20};           // bytes that never leave
constexpr unsigned kTurns = 20;             // before a wait sleeps
constexpr int kHigh = 600;                  // where the program's own descriptors lie, apart from those of the calls

const char* const kNames[] = {
    "socket",       "bind",      "listen",      "connect",     "accept",     "send",       "recv",  "sendto",
    "recvfrom",     "sendmsg",   "recvmsg",     "writev",      "read",       "shutdown",   "close", "dup",
    "dup2",         "fcntl",     "getsockname", "getpeername", "getsockopt", "setsockopt", "ioctl", "select",
    "epoll_create", "epoll_ctl", "epoll_wait",  "fork",        "end",        "kill",       "exec",  "pass"};
const char* const kActorNames[] = {"server", "thread", "client", "child"};

std::string label_of(const Step& step, unsigned index) {
  return std::to_string(index) + " " + kActorNames[static_cast<unsigned>(step.actor)] + " " +
         kNames[static_cast<unsigned>(step.op)] + "(" + std::to_string(step.slot) + "," + std::to_string(step.other) +
         "," + std::to_string(step.amount) + "," + std::to_string(step.choice) + ")";
}

/// Whether the call can have changed what poll() says of a descriptor.
bool may_change(const Step& step, const std::string& text) {
  switch (step.op) {
    case Op::kGetFlags:
    case Op::kName:
    case Op::kPeerName:
    case Op::kControl:
    case Op::kSelect:
      return false;
    case Op::kConnect:
      return true;
    default:
      return text.rfind("-1 E", 0) != 0;
  }
}

int high(int fd) {
  const int moved = fcntl(fd, F_DUPFD, kHigh);
  close(fd);
  return moved;
}

}  // namespace

Director::Director(Served served, bool compares, std::set<unsigned> only)
    : served_(std::move(served)),
      client_(served_.in, served_.out),
      caller_(served_.addresses),
      only_(std::move(only)),
      compares_(compares) {}

void Director::run(std::uint64_t seed) {
  seed_ = seed;
  steps_ = make_sequence(seed, served_.length);
  caller_.begin(seed);
  client_.ask({seed, kBeginSequence});
  story_.clear();
  ended_ = false;
  changed_ = true;
  gave_up_at_.clear();
  for (unsigned index = 0; index < steps_.size() && !ended_; ++index) {
    const Step& step = steps_[index];
    if (!only_.empty() && !only_.contains(index)) continue;
    if (step.actor == Actor::kChild && child_pid_ == 0) continue;
    const std::string label = std::to_string(seed) + " " + label_of(step, index);
    if (changed_ && !agree_on_readiness(label)) break;
    const std::string text = make(step, index);
    changed_ = may_change(step, text);
    agree(label, text);
  }
  if (!ended_) agree_on_readiness(std::to_string(seed) + " at the end");
  finish();
}

void Director::finish() {
  if (child_pid_ != 0) end_child(false);
  client_.ask({seed_, kEndSequence});
  caller_.end();
  if (!compares_) printf("%llu over\n", static_cast<unsigned long long>(seed_));
  // After a difference, the rest of what is expected is passed over.
  for (std::string line; compares_ && std::getline(std::cin, line) && line != std::to_string(seed_) + " over";) {
  }
}

std::string Director::make(const Step& step, unsigned index) {
  if (step.op == Op::kPass) return pass(step, index);
  switch (step.actor) {
    case Actor::kClient:
      return client_.ask({seed_, static_cast<std::int32_t>(index)}).value_or("the client has ended");
    case Actor::kChild:
      return in_child(index);
    case Actor::kThread:
      return thread_.run([&] { return caller_.perform(step, index); });
    default:
      break;
  }
  if (step.op == Op::kFork) return fork_child();
  if (step.op == Op::kEndChild || step.op == Op::kKillChild)
    return child_pid_ == 0 ? "no child" : end_child(step.op == Op::kKillChild);
  return caller_.perform(step, index);
}

std::string Director::pass(const Step& step, unsigned index) {
  if (child_pid_ == 0) return "no child";
  const bool from_child = step.actor == Actor::kChild;
  const std::string sent = from_child ? in_child(index) : caller_.perform(step, index);
  return sent + ", " + (from_child ? caller_.perform(step, index) : in_child(index));
}

std::string Director::in_child(unsigned index) {
  return child_.ask({seed_, static_cast<std::int32_t>(index)}).value_or("the child has ended");
}

std::string Director::fork_child() {
  if (child_pid_ != 0) return "a child already";
  int down[2], up[2], passes[2];
  if (pipe2(down, 0) != 0 || pipe2(up, 0) != 0 || socketpair(AF_UNIX, SOCK_DGRAM, 0, passes) != 0) return "no pipe";
  const int ends[4] = {high(down[0]), high(down[1]), high(up[0]), high(up[1])};
  const int pass_ends[2] = {high(passes[0]), high(passes[1])};
  fflush(stdout);
  child_pid_ = fork();
  if (child_pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ends[1]);
    close(ends[2]);
    Served served = served_;
    served.in = ends[0];
    served.out = ends[3];
    close(pass_ends[0]);
    caller_.pass_end = pass_ends[1];
    caller_.shows_numbers = false;
    caller_.is_child = true;
    serve(served, caller_, seed_, false);
  }
  close(ends[0]);
  close(ends[3]);
  close(pass_ends[1]);
  caller_.pass_end = pass_ends[0];
  child_ends_ = {ends[1], ends[2]};
  child_ = Channel(ends[2], ends[1]);
  return "forked";
}

std::string Director::end_child(bool by_signal) {
  if (by_signal) kill(child_pid_, SIGKILL);
  for (const int end : child_ends_) close(end);
  close(caller_.pass_end);
  int status = 0;
  waitpid(child_pid_, &status, 0);
  child_pid_ = 0;
  return "status " + std::to_string(status);
}

std::string Director::all_readiness(std::int32_t what) {
  std::string text = "server" + caller_.readiness() + "; client" + client_.ask({seed_, what}).value_or(" has ended");
  if (child_pid_ != 0) text += "; child" + child_.ask({seed_, what}).value_or(" has ended");
  return text;
}

std::string Director::settled() {
  const auto begun = Clock::now();
  const milliseconds patience = may_hold_back(seed_)                ? kFlush
                                : waits_for_acknowledgements(seed_) ? kAcknowledged
                                                                    : kTurn;
  for (unsigned turn = 0;; ++turn) {
    const std::string marked = (caller_.has_unsent() ? std::string(1, kUnsentMark) : "") + all_readiness(kSettled);
    std::string text = marked;
    if (std::erase(text, kUnsentMark) == 0) return text;
    // What a reset or an end has left unsent stays so: that is waited for once.
    if (marked == gave_up_at_) return text;
    if (Clock::now() - begun >= patience) {
      gave_up_at_ = marked;
      return text;
    }
    if (turn > kTurns) std::this_thread::sleep_for(milliseconds(1));
  }
}

bool Director::agree_on_readiness(const std::string& label) {
  if (!compares_) {
    return agree(label + " before", settled());
  }
  const std::string wanted = expected(label + " before");
  const auto begun = Clock::now();
  std::string got = all_readiness(kReadiness);
  for (unsigned turn = 0; got != wanted && Clock::now() - begun < kPatience; ++turn) {
    if (turn > kTurns) std::this_thread::sleep_for(milliseconds(1));
    got = all_readiness(kReadiness);
  }
  if (got == wanted) return true;
  tell(label + " before", wanted, got);
  return false;
}

bool Director::agree(const std::string& label, const std::string& text) {
  story_.push_back(label + ": " + text);
  if (!compares_) {
    printf("%s\t%s\n", label.c_str(), text.c_str());
    return true;
  }
  const std::string wanted = expected(label);
  if (wanted != text) tell(label, wanted, text);
  return wanted == text;
}

std::string Director::expected(const std::string& label) {
  std::string line;
  if (!std::getline(std::cin, line)) {
    fprintf(stderr, "random_calls: what is expected ends before %s\n", label.c_str());
    exit(2);
  }
  const std::size_t tab = line.find('\t');
  if (tab == std::string::npos || line.substr(0, tab) != label) {
    fprintf(stderr, "random_calls: expected '%s', found '%s'\n", label.c_str(), line.c_str());
    exit(2);
  }
  return line.substr(tab + 1);
}

void Director::tell(const std::string& label, const std::string& wanted, const std::string& got) {
  for (const std::string& line : story_) printf("  %s\n", line.c_str());
  printf("DIFFERS %s\n  kernel:  %s\n  library: %s\n", label.c_str(), wanted.c_str(), got.c_str());
  fflush(stdout);
  ++differences_;
  ended_ = true;
}

}  // namespace random_calls
