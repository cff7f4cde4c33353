// Where the trace goes, and in which form: one line a call, one JSON object a call, or counts and times at the end.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace bypass::verbs_trace {

struct Told {
  const char* verb;
  std::int64_t began, took;  // ns
  bool failed, repeats;      // see Call::may_repeat()
  const std::string &arguments, &json, &result, &told_text, &told_json;
};

/// Whether the program is traced: the variable is set, and the output can be written.
[[nodiscard]] bool is_on();
void write_call(const Told& call);
/// As a JSON string, with its quotation marks.
[[nodiscard]] std::string quote(std::string_view text);
[[nodiscard]] std::string hex_text(std::uint64_t value);

}  // namespace bypass::verbs_trace
