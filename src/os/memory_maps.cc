#include "os/memory_maps.h"

#include <fcntl.h>

#include <charconv>

#include "os/os.h"

namespace bypass::os {
namespace {

/// Takes the line's first field, and the spaces behind it.
std::string_view take_field(std::string_view& line) {
  const std::string_view field = line.substr(0, line.find(' '));
  line.remove_prefix(field.size());
  line.remove_prefix(line.find_first_not_of(' ') == std::string_view::npos ? line.size() : line.find_first_not_of(' '));
  return field;
}

/// Takes a hexadecimal number. False: there is none.
bool take_number(std::string_view& text, std::uintptr_t& out) {
  constexpr int kHex = 16;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out, kHex);
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return error == std::errc{};
}

}  // namespace

std::string read_memory_maps() {
  std::string text;
  const auto fd = static_cast<int>(open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
  if (fd < 0) return text;
  char part[4096];
  for (long n = 0; (n = read(fd, part, sizeof part)) > 0;) text.append(part, static_cast<std::size_t>(n));
  close(fd);
  return text;
}

// "7f12-7f34 r-xp 00000000 08:01 123   /a path"
std::optional<MemoryMapping> read_mapping(std::string_view line) {
  constexpr int kFieldsBeforeName = 3;  // the offset, the device, the inode
  MemoryMapping mapping;
  std::string_view range = take_field(line);
  if (!take_number(range, mapping.begin) || range.empty() || range.front() != '-') return std::nullopt;
  range.remove_prefix(1);
  if (!take_number(range, mapping.end) || !range.empty() || mapping.end <= mapping.begin) return std::nullopt;
  mapping.permissions = take_field(line);
  for (int i = 0; i < kFieldsBeforeName; i++) take_field(line);
  mapping.name = line;
  return mapping;
}

}  // namespace bypass::os
