// MemoryMaps: the mappings of a process as /proc/PID/maps tells them (proc_pid_maps(5)).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace bypass::os {

/// One mapping: its addresses are from `begin` to below `end`. The views are into the text that was read.
struct MemoryMapping {
  std::uintptr_t begin = 0, end = 0;
  std::string_view permissions;  // four characters: "r-xp"
  std::string_view name;         // a path, "[stack]", "anon_inode:[vfio-device]", or nothing
  [[nodiscard]] std::size_t bytes() const { return end - begin; }
};

/// The text for this process, read by direct system calls. Empty: it cannot be read.
std::string read_memory_maps();

/// One line of that text. nullopt: it is not such a line.
std::optional<MemoryMapping> read_mapping(std::string_view line);

/// Calls `visit` for each mapping, in ascending order, until it returns false.
template <typename Visit>
void for_each_mapping(std::string_view maps, const Visit& visit) {
  while (!maps.empty()) {
    const std::string_view line = maps.substr(0, maps.find('\n'));
    maps.remove_prefix(line.size() < maps.size() ? line.size() + 1 : line.size());
    const std::optional<MemoryMapping> mapping = read_mapping(line);
    if (mapping.has_value() && !visit(*mapping)) return;
  }
}

}  // namespace bypass::os
