#include "verbs_trace/call.h"

#include <string.h>
#include <time.h>

#include <cerrno>
#include <cstdio>

#include "verbs_trace/objects.h"
#include "verbs_trace/output.h"

namespace bypass::verbs_trace {

namespace {

thread_local int depth = 0;

void add_json(std::string& json, std::string_view name, std::string_view value, bool quoted) {
  if (!json.empty()) json += ',';
  json += quote(name);
  json += ':';
  json += quoted ? quote(value) : std::string(value);
}

void add_text(std::string& text, std::string_view name, std::string_view value) {
  if (!text.empty()) text += ", ";
  const bool is_said = value.size() > name.size() && value.starts_with(name) && value[name.size()] == ' ';  // "qp 0x11"
  if (!is_said) text.append(name) += ' ';
  text.append(value);
}

/// "EINVAL (Invalid argument)"
std::string error_text(int error) {
  const char* const name = strerrorname_np(error);
  char number[16];
  std::snprintf(number, sizeof number, "%d", error);
  const char* const description = strerrordesc_np(error);
  return std::string(name != nullptr ? name : number) + " (" + (description != nullptr ? description : "unknown") + ")";
}

}  // namespace

std::int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

Call::Call(const char* verb) : verb_(verb), told_(depth == 0 && is_on()) {}

Call::Clock::Clock(Call& owner) : call(owner) {
  depth++;
  if (call.told_) call.began_ = now_ns();
}

Call::Clock::~Clock() {
  const int left = errno;
  if (call.told_) call.took_ = now_ns() - call.began_;
  depth--;
  call.errno_ = left;
  errno = left;
}

Call& Call::arg(std::string_view name, std::string_view value) {
  if (!told_) return *this;
  add_text(arguments_, name, value);
  add_json(json_, name, value, true);
  return *this;
}

Call& Call::arg(std::string_view name, std::uint64_t value) {
  if (!told_) return *this;
  const std::string text = std::to_string(value);
  add_text(arguments_, name, text);
  add_json(json_, name, text, false);
  return *this;
}

Call& Call::hex(std::string_view name, std::uint64_t value) {
  if (!told_) return *this;
  return arg(name, hex_text(value));
}

void Call::returns(int error) {
  if (!told_) return;
  if (error < 0) error = errno_ != 0 ? errno_ : -error;  // some verbs return -1 with errno, some a negative error
  failed_ = error != 0;
  result_ = failed_ ? error_text(error) : "0";
}

void Call::returns_count(int count) {
  if (!told_) return;
  failed_ = count < 0;
  result_ = failed_ ? error_text(-count) : std::to_string(count);
}

void Call::returns_object(const void* object, std::string_view what) {
  if (!told_) return;
  failed_ = object == nullptr;
  result_ = failed_ ? "null, " + error_text(errno_) : new_name(object, what);
}

void Call::tell(std::string_view name, std::string_view value) {
  if (!told_) return;
  add_text(told_text_, name, value);
  add_json(told_json_, name, value, true);
}

Call::~Call() {
  if (!told_) return;
  const int left = errno;
  write_call({verb_, began_, took_, failed_, repeats_, arguments_, json_, result_, told_text_, told_json_});
  errno = left;
}

}  // namespace bypass::verbs_trace
