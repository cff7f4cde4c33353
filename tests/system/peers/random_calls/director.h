// Runs sequences: has each actor make its calls in turn, and writes the results down or compares them.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "channel.h"
#include "second_thread.h"

namespace random_calls {

class Director {
 public:
  /// `only`: the steps that are made; empty: all.
  Director(Served served, bool compares, std::set<unsigned> only);

  void run(std::uint64_t seed);
  [[nodiscard]] unsigned differences() const { return differences_; }

 private:
  std::string make(const Step& step, unsigned index);
  std::string pass(const Step& step, unsigned index);
  std::string in_child(unsigned index);
  std::string fork_child();
  std::string end_child(bool by_signal);
  std::string all_readiness(std::int32_t what);
  std::string settled();
  bool agree_on_readiness(const std::string& label);
  bool agree(const std::string& label, const std::string& text);
  std::string expected(const std::string& label);
  void tell(const std::string& label, const std::string& expected, const std::string& got);
  void finish();

  Served served_;
  Channel client_, child_;
  Caller caller_;
  SecondThread thread_;
  std::set<unsigned> only_;
  std::vector<Step> steps_;
  std::uint64_t seed_ = 0;
  pid_t child_pid_ = 0;
  std::array<int, 2> child_ends_{-1, -1};  // where the child is written to, and read from
  bool compares_, ended_ = false, changed_ = true;
  std::string gave_up_at_;  // the readiness at which a wait for unsent bytes was given up
  unsigned differences_ = 0;
  std::vector<std::string> story_;
};

}  // namespace random_calls
