#include "softverbs/abi/adapter/setup.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <string>
#include <utility>

#include "os/log/log.h"
#include "os/os.h"
#include "os/own/cancellation.h"
#include "runtime/high_numbers.h"
#include "runtime/host.h"
#include "runtime/ports/plugin.h"

namespace bypass::softverbs {
namespace {

using runtime::Config;

constexpr int kStrictStatus = 78;

const Host* g_host = nullptr;
std::mutex g_problem_mutex;
std::string g_problem;  // for libbypass

void open_log(Config& config) {
  int fd = -1;
  if (!config.log_file.empty()) {
    fd = runtime::open_log_file(config.log_file.c_str(), runtime::copy_high);
    if (fd < 0)
      config.problems.push_back({"BYPASS_LOG_FILE", config.log_file, "environment",
                                 std::string("cannot be opened for writing: ") + strerror(errno)});
  }
  runtime::start_log(config.log_level, fd);
}

const Config* load() {
  const socket::CancellationOff uncancelled;
  auto* const config = new Config(runtime::load_config(host().environment(), runtime::toml_reader()));
  open_log(*config);
  return config;
}

}  // namespace

const Config& setup() {
  static const Config* const config = load();
  static const bool said = [] {
    if (is_hosted()) return true;  // libbypass has reported it
    for (const runtime::ConfigProblem& problem : config->problems) BYPASS_LOG_ERROR("%s", problem.message().c_str());
    if (!config->problems.empty() && config->strict) _exit(kStrictStatus);
    return true;
  }();
  (void)said;
  return *config;
}

void report(const char* text) {
  if (is_hosted()) {
    const std::lock_guard lock(g_problem_mutex);
    g_problem = text;
    return;
  }
  host().log(LogLevel::kError, text);
  if (setup().strict) _exit(kStrictStatus);
}

const Host& host() {
  return g_host != nullptr ? *g_host : runtime::backend_host();
}

bool is_hosted() {
  return g_host != nullptr;
}

int own_high(int fd) {
  if (fd < 0) return fd;
  if (const int high = host().copy_high(fd); high >= 0) {
    os::close(fd);
    fd = high;
  }
  host().own_descriptor(fd, true);
  return fd;
}

void close_own(int fd) {
  if (fd < 0) return;
  host().own_descriptor(fd, false);
  os::close(fd);
}

}  // namespace bypass::softverbs

void bypass_softverbs_use_host(const bypass::Host* host) {
  bypass::softverbs::g_host = host;
}

void bypass_softverbs_problem(char* out, std::size_t room) {
  const std::lock_guard lock(bypass::softverbs::g_problem_mutex);
  const std::string text = std::exchange(bypass::softverbs::g_problem, {});
  if (room != 0) out[text.copy(out, room - 1)] = 0;
}
