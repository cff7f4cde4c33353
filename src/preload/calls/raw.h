// System calls by their number, as syscall(2) and a program's own instructions make them.
#pragma once

#include <optional>
#include <type_traits>

namespace bypass::preload {

/// The six words of a system call on x86-64: syscall(2).
struct RawArguments {
  long word[6];

  template <typename T>
  [[nodiscard]] T at(int index) const {
    if constexpr (std::is_pointer_v<T>) {
      return reinterpret_cast<T>(word[index]);
    } else {
      return static_cast<T>(word[index]);
    }
  }
};

/// Makes the call, if it concerns a socket or a process of ours: the result is that of libc's function, -1 with errno
/// if it failed. nullopt: the call is for the kernel, and was not made.
std::optional<long> answer_by_number(long number, const RawArguments& arguments);

}  // namespace bypass::preload
