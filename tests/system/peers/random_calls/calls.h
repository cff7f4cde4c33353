// Makes the calls of a sequence in one process, and says what came of each.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "sequence.h"

namespace random_calls {

/// Both ends' IPv4 addresses, in network order.
struct Addresses {
  std::uint32_t server = 0, client = 0;
};

class Caller {
 public:
  explicit Caller(const Addresses& addresses) : addresses_(addresses) { begin(0); }

  /// A new sequence: no slot has a descriptor.
  void begin(std::uint64_t seed);
  /// Closes what the slots name.
  void end();

  /// Makes the call; forks, ends and executes no process. Returns the result, errno and what the call brought, without
  /// numbers that differ from run to run (ephemeral ports).
  std::string perform(const Step& step, unsigned index);

  /// What poll() and FIONREAD say of each slot.
  [[nodiscard]] std::string readiness() const;
  /// Whether a connection of this process has bytes that it has not sent yet.
  [[nodiscard]] bool has_unsent() const;

  std::array<int, kSlots> slots{};
  /// Whether the numbers of new descriptors are compared. For some milliseconds after a fork the library's thread in
  /// the child takes a number now and then.
  bool shows_numbers = true;
  /// Of the server's process and its child: which one it is, and its end of a Unix pair over which descriptors pass.
  bool is_child = false;
  int pass_end = -1;

 private:
  struct Name;
  /// The result of the call before, and errno if it is negative.
  static std::string describe(long result);
  [[nodiscard]] Name make_name(unsigned port, bool any) const;
  [[nodiscard]] std::string show_name(const void* name, unsigned bytes) const;
  int& slot(const Step& step) { return slots[step.slot % kSlots]; }
  int& other(const Step& step) { return slots[step.other % kSlots]; }

  std::string perform_setup(const Step& step);
  std::string perform_transfer(const Step& step, unsigned index);
  std::string perform_control(const Step& step);
  std::string perform_epoll(const Step& step);
  std::string send(const Step& step, unsigned index);
  std::string receive(const Step& step);
  std::string get_option(const Step& step);
  std::string set_option(const Step& step);
  std::string pass(const Step& step);
  std::string take(int& where, int fd);

  Addresses addresses_;
  std::uint64_t seed_ = 0;
};

/// Installs a handler that counts SIGPIPE, and tells that in the result of the call.
void count_broken_pipes();

}  // namespace random_calls
