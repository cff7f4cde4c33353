#include "verbs_trace/output.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "verbs_trace/call.h"
#include "verbs_trace/variables.h"

namespace bypass::verbs_trace {

namespace {

enum class Form : std::uint8_t { kOff, kText, kJson, kSummary };

struct Sum {
  std::uint64_t calls = 0, failed = 0;
  std::int64_t total = 0, longest = 0;  // ns
};

/// The thread's last call, which is written, if it may repeat. Equal calls that follow are counted here.
struct Repeated {
  const char* verb = nullptr;  // null: there is none
  std::int64_t began = 0, took = 0;
  bool failed = false;
  std::string arguments, json, result, told_text, told_json;
  std::uint64_t times = 0;  // calls that are not written yet, and `took` their time
};

struct State {
  Form form = Form::kOff;
  int fd = -1;
  std::int64_t started = 0;
  std::mutex mutex;
  std::map<std::string, Sum> sums;
};

void end_in_child();
void print_summary();

State* make_state() {
  auto* const state = new State;  // never freed: threads may still call verbs while the process ends
  const char* const form = getenv(kFormVariable);
  const std::string_view word = form != nullptr ? form : "";
  state->form = word == "text"      ? Form::kText
                : word == "json"    ? Form::kJson
                : word == "summary" ? Form::kSummary
                                    : Form::kOff;
  if (state->form == Form::kOff) return state;
  state->started = now_ns();
  if (const char* const path = getenv(kFileVariable); path != nullptr) {
    state->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (state->fd < 0) std::fprintf(stderr, "verbs-trace: %s: %s; nothing is traced\n", path, std::strerror(errno));
  } else {
    state->fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 1000);
    if (state->fd < 0) state->fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);  // a lower limit (RLIMIT_NOFILE)
  }
  if (state->fd < 0) state->form = Form::kOff;
  pthread_atfork(nullptr, nullptr, end_in_child);
  if (state->form == Form::kSummary) std::atexit(print_summary);
  return state;
}

State& state() {
  static State* const made = make_state();
  return *made;
}

void write_all(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(state().fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

/// "12.345 us", with the unit that leaves one to three digits before the point
std::string duration_text(std::int64_t ns) {
  static constexpr std::array<const char*, 4> kUnits{"ns", "us", "ms", "s"};
  auto value = static_cast<double>(ns);
  std::size_t unit = 0;
  for (; value >= 1000 && unit + 1 < kUnits.size(); unit++) value /= 1000;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text;
}

/// `times`: how many equal calls have followed one that is written; 0: this is that one.
std::string line_of(const Told& call, std::uint64_t times) {
  char head[64];
  const std::int64_t since = std::max<std::int64_t>(call.began - state().started, 0);
  std::snprintf(head, sizeof head, "%d/%d %4lld.%06lld  ", getpid(), gettid(),
                static_cast<long long>(since / 1'000'000'000), static_cast<long long>(since / 1000 % 1'000'000));
  std::string line = head;
  line += call.verb;
  line += '(' + call.arguments + ')';
  if (!call.result.empty()) line += " = " + call.result;
  if (!call.told_text.empty()) line += "  " + call.told_text;
  line += "  " + duration_text(call.took);
  if (times > 0) line += " for " + std::to_string(times) + " more";
  return line + '\n';
}

std::string object_of(const Told& call, std::uint64_t times) {
  std::string line = "{\"pid\":" + std::to_string(getpid()) + ",\"tid\":" + std::to_string(gettid()) +
                     ",\"at_ns\":" + std::to_string(call.began) + ",\"verb\":" + quote(call.verb) + ",\"arguments\":{" +
                     call.json + "}";
  if (!call.result.empty()) line += ",\"result\":" + quote(call.result);
  if (call.failed) line += ",\"failed\":true";
  if (!call.told_json.empty()) line += ",\"told\":{" + call.told_json + "}";
  return line + ",\"times\":" + std::to_string(std::max<std::uint64_t>(times, 1)) +
         ",\"took_ns\":" + std::to_string(call.took) + "}\n";
}

void write_line(const Told& call, std::uint64_t times) {
  write_all(state().form == Form::kJson ? object_of(call, times) : line_of(call, times));
}

/// Writes what is left when the thread ends.
struct Waiting : Repeated {
  ~Waiting() { flush(); }
  void flush() {
    if (times != 0) write_line({verb, began, took, failed, true, arguments, json, result, told_text, told_json}, times);
    times = 0;
    verb = nullptr;
  }
  [[nodiscard]] bool equals(const Told& call) const {
    return verb != nullptr && std::strcmp(verb, call.verb) == 0 && arguments == call.arguments &&
           result == call.result && told_text == call.told_text;
  }
};

thread_local Waiting waiting;

void end_in_child() {
  waiting.times = 0;
  waiting.verb = nullptr;
  state().sums.clear();
  new (&state().mutex) std::mutex;  // another thread of the parent may have had it
}

void print_summary() {
  std::vector<std::pair<std::string, Sum>> rows;
  {
    const std::lock_guard lock(state().mutex);
    rows.assign(state().sums.begin(), state().sums.end());
  }
  if (rows.empty()) return;
  std::ranges::sort(rows, [](const auto& a, const auto& b) { return a.second.total > b.second.total; });
  std::string text =
      "   calls  failed       total     average     longest  verb   (pid " + std::to_string(getpid()) + ")\n";
  for (const auto& [verb, sum] : rows) {
    char line[160];
    std::snprintf(line, sizeof line, "%8llu %7llu %11s %11s %11s  ", static_cast<unsigned long long>(sum.calls),
                  static_cast<unsigned long long>(sum.failed), duration_text(sum.total).c_str(),
                  duration_text(sum.total / static_cast<std::int64_t>(sum.calls)).c_str(),
                  duration_text(sum.longest).c_str());
    text += line + verb + '\n';
  }
  write_all(text);
}

void add_to_summary(const Told& call) {
  const std::lock_guard lock(state().mutex);
  Sum& sum = state().sums[call.verb];
  sum.calls++;
  sum.failed += call.failed ? 1 : 0;
  sum.total += call.took;
  sum.longest = std::max(sum.longest, call.took);
}

}  // namespace

bool is_on() {
  return state().form != Form::kOff;
}

void write_call(const Told& call) {
  if (state().form == Form::kSummary) return add_to_summary(call);
  if (call.repeats && waiting.equals(call)) {
    if (waiting.times++ == 0) waiting.began = call.began;
    waiting.took += call.took;
    return;
  }
  waiting.flush();
  write_line(call, 0);
  if (call.repeats)
    static_cast<Repeated&>(waiting) = {
        call.verb, 0, 0, call.failed, call.arguments, call.json, call.result, call.told_text, call.told_json, 0};
}

std::string quote(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) < ' ') {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(c));
      quoted += code;
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string hex_text(std::uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

}  // namespace bypass::verbs_trace
