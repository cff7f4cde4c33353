// Makes text of another user's process safe for a terminal and for JSON.
#pragma once

#include <array>
#include <cstring>
#include <string>
#include <string_view>

namespace bypass::observe {

/// Returns `text` with bytes written as \xNN where they belong to a control character or to a character that changes
/// the direction of writing, or are not UTF-8 (RFC 3629). All output from a stats file or a file's name goes through
/// this function.
std::string printable(std::string_view text);

/// The same for a field of fixed size: its text ends at the first zero byte, or at the end of the field.
template <std::size_t size>
std::string printable(const std::array<char, size>& field) {
  return printable({field.data(), strnlen(field.data(), size)});
}

}  // namespace bypass::observe
