#include "os/log/environment_copy.h"

#include <cstring>

namespace bypass::runtime {
namespace {

constexpr char kPrefix[] = "BYPASS_";

}  // namespace

const char* find_variable(const char* const* environment, std::string_view name) {
  for (; environment != nullptr && *environment != nullptr; environment++) {
    const char* const entry = *environment;
    if (std::strncmp(entry, name.data(), name.size()) == 0 && entry[name.size()] == '=') return entry + name.size() + 1;
  }
  return nullptr;
}

void EnvironmentCopy::take(const char* const* environment) {
  for (; environment != nullptr && *environment != nullptr; environment++) {
    const char* const entry = *environment;
    if (std::strncmp(entry, kPrefix, sizeof kPrefix - 1) != 0) continue;
    const std::size_t bytes = std::strlen(entry) + 1;
    if (count_ == kMaxEntries || bytes > text_.size() - used_) {
      remember(entry);
      continue;
    }
    std::memcpy(text_.data() + used_, entry, bytes);
    entries_[count_++] = text_.data() + used_;
    used_ += bytes;
  }
}

void EnvironmentCopy::take_program(const char* name) {
  std::strncpy(program_.data(), name, program_.size() - 1);
}

void EnvironmentCopy::remember(const char* entry) {
  if (left_out_[0] != 0) return;
  for (std::size_t i = 0; i + 1 < left_out_.size() && entry[i] != 0 && entry[i] != '='; i++) left_out_[i] = entry[i];
}

}  // namespace bypass::runtime
