// What becomes of each option of Linux's socket(7), tcp(7), ip(7), ipv6(7) and udp(7) on a socket of the stack's.
//
// A socket that is undecided, or a datagram socket's kernel half, has every option from the kernel. This is about the
// stack's side: success without effect would be a lie, so what is not built is refused, as by a kernel without it.
// Tests: tests/socket/option_table_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "socket/file.h"

namespace bypass::socket {

enum class OptionKind : std::uint8_t {
  kBuilt,     // it has its effect
  kHarmless,  // it has none that a program could miss: it is kept, and read back
  kKernels,  // about the kernel's own paths (its routing, its queues): an undecided socket is left to the kernel by it,
             // on a decided one it is kept without effect
  kRefused,  // not built: an undecided socket is left to the kernel by it, a decided one answers ENOPROTOOPT
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
/// What is not known counts as not built.
[[nodiscard]] OptionKind option_kind(FileKind of, int level, int name);
/// Whether the value turns an option off, or leaves it so: no effect is what it asks for.
[[nodiscard]] bool turns_off(std::span<const std::byte> value);

}  // namespace bypass::socket
