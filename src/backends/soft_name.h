// The names of software RDMA devices (BYPASS_SOFT): soft0, soft1, … This file tells them from the names of the kernel's
// devices.
#pragma once

#include <charconv>
#include <cstddef>
#include <optional>
#include <string_view>

namespace bypass {

/// A hint for a user who names a device that does not exist.
inline constexpr std::string_view kSoftMaking = "BYPASS_SOFT=WIRE makes soft0, a second wire soft1";

/// The device's index: 1 for "soft1" and for "soft1:1" (port 1 of that device). Nothing: no software device has such a
/// name.
inline std::optional<std::size_t> soft_index(std::string_view target) {
  constexpr std::string_view kPrefix = "soft";
  const std::string_view name = target.substr(0, target.find(':'));
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kPrefix.size());
  const char* const end = digits.data() + digits.size();
  std::size_t index = 0;
  const auto read = std::from_chars(digits.data(), end, index);
  if (read.ec != std::errc{} || read.ptr != end || (digits.size() > 1 && digits[0] == '0')) return std::nullopt;
  return index;
}

}  // namespace bypass
