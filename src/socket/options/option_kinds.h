// What happens with each option of Linux's socket(7), tcp(7), ip(7), ipv6(7) and udp(7) on a socket of the stack.
//
// An undecided socket, or a datagram socket's kernel half, has every option from the kernel. This table concerns the
// stack's side. Success without effect would mislead the program. So an option that is not built is refused, as by a
// kernel without it.
// Tests: tests/socket/option_table_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "socket/file.h"

namespace bypass::socket {

enum class OptionKind : std::uint8_t {
  kBuilt,     // it has its effect
  kHarmless,  // a program cannot notice that it has no effect: the value is kept, and read back
  kKernels,   // about the kernel's own paths (its routing, its queues): an undecided socket is left to the kernel; on a
              // decided one the value is kept without effect
  kRefused,   // not built: an undecided socket is left to the kernel; a decided one answers ENOPROTOOPT
};

struct OptionName {
  int level, name;
  const char* text;
  OptionKind stream, datagram;

  [[nodiscard]] OptionKind kind(FileKind of) const { return of == FileKind::kDatagram ? datagram : stream; }
};

[[nodiscard]] std::span<const OptionName> option_names();
/// Null: Linux's manual pages do not have it.
[[nodiscard]] const OptionName* find_option_name(int level, int name);
/// An unknown option counts as not built.
[[nodiscard]] OptionKind option_kind(FileKind of, int level, int name);
/// Whether the value turns an option off, or leaves it off: then having no effect is right.
[[nodiscard]] bool turns_off(std::span<const std::byte> value);

}  // namespace bypass::socket
