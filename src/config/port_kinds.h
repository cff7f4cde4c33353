// The kinds of port that BYPASS_PORT may name, and the plugin behind each. Private to the configuration's own files.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace bypass::runtime {

/// What stands behind the colon in "KIND:TARGET".
enum class Target : std::uint8_t { kNone, kPath, kInterface, kPci, kDevargs, kDevice };

struct KindInfo {
  std::string_view kind;
  const char* plugin;
  Target target;
  bool needs_address;
};

/// All kinds, in the order in which a message names them.
std::span<const KindInfo> port_kinds();

/// Null: there is no such kind.
const KindInfo* find_kind(std::string_view kind);

}  // namespace bypass::runtime
