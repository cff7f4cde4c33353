// How much a test tries: BYPASS_TEST_LONG=1 asks for the long forms.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace bypass::test {

inline bool long_form() {
  const char* const text = std::getenv("BYPASS_TEST_LONG");
  return text != nullptr && *text != '\0' && std::string_view(text) != "0";
}

/// The build looks at each access of memory: what it runs takes five to ten times as long.
constexpr bool is_sanitized() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#else
  return false;
#endif
}

/// Of `count` seeds or rounds: a quarter in a sanitizer build's short form, since the release build runs them all;
/// `factor` times as many in the long form. At least one.
constexpr std::uint64_t tries(std::uint64_t count, std::uint64_t factor, bool in_long_form) {
  constexpr std::uint64_t kShare = 4;
  if (in_long_form) return count * factor;
  return is_sanitized() && count > kShare ? count / kShare : count;
}
inline std::uint64_t tries(std::uint64_t count, std::uint64_t factor) {
  return tries(count, factor, long_form());
}

}  // namespace bypass::test
