// Text of another user's process, made fit for a terminal and for JSON.
#pragma once

#include <array>
#include <cstring>
#include <string>
#include <string_view>

namespace bypass::observe {

/// `text` in which each byte of a control character, of a character that turns the direction of writing, and of what
/// is no UTF-8 (RFC 3629) stands as \xNN. What is printed of a stats file or of a file's name has gone through this.
std::string printable(std::string_view text);

/// The same of a field of fixed size: it ends at its first zero, or where the field does.
template <std::size_t size>
std::string printable(const std::array<char, size>& field) {
  return printable({field.data(), strnlen(field.data(), size)});
}

}  // namespace bypass::observe
