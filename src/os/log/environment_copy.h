// The BYPASS_ variables and the program's name, copied when the library loads. Programs that change their title
// (setproctitle) overwrite the original block.
//
// Filling makes no system call and uses no memory: it happens in every process that has the library.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace bypass::runtime {

/// The value of `name` in an environment block; null when absent.
const char* find_variable(const char* const* environment, std::string_view name);

class EnvironmentCopy {
 public:
  /// Copies the variables that begin with BYPASS_. Those that do not fit are left out; the first such name is
  /// remembered.
  void take(const char* const* environment);
  void take_program(const char* name);

  /// The entries, in the form of `environ`.
  [[nodiscard]] const char* const* entries() const { return entries_.data(); }
  [[nodiscard]] const char* program() const { return program_.data(); }
  /// The name of the first variable that did not fit; "" if all did.
  [[nodiscard]] const char* left_out() const { return left_out_.data(); }

  static constexpr std::size_t kMaxEntries = 128;
  static constexpr std::size_t kMaxBytes = 32 << 10;  // all of them together

 private:
  void remember(const char* entry);

  std::array<const char*, kMaxEntries + 1> entries_{};
  std::array<char, kMaxBytes> text_{};
  std::array<char, 64> left_out_{};
  std::array<char, 256> program_{};  // a file's name is 255 bytes at most
  std::size_t count_ = 0;
  std::size_t used_ = 0;
};

}  // namespace bypass::runtime
