#include "softverbs/abi/setup.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <cerrno>

#include "runtime/host.h"
#include "runtime/log.h"
#include "runtime/plugin.h"
#include "socket/kernel.h"

namespace bypass::softverbs {
namespace {

using runtime::Config;

constexpr int kStrictStatus = 78;

// Nothing of ours is interposed in this library: what src/runtime asks for is libc's.
socket::Kernel libc() {
  socket::Kernel kernel{};
  kernel.close = ::close;
  kernel.fcntl = ::fcntl;
  return kernel;
}

void open_log(Config& config) {
  int fd = -1;
  if (!config.log_file.empty()) {
    fd = runtime::open_log_file(config.log_file.c_str(), runtime::descriptor_base());
    if (fd < 0)
      config.problems.push_back({"BYPASS_LOG_FILE", config.log_file, "environment",
                                 std::string("cannot be opened for writing: ") + strerror(errno)});
  }
  runtime::start_log(config.log_level, fd);
}

const Config* load() {
  socket::kernel = new socket::Kernel(libc());
  auto* const config = new Config(runtime::load_config(environ, runtime::toml_reader()));
  open_log(*config);
  return config;
}

}  // namespace

const Config& setup() {
  static const Config* const config = load();
  static const bool said = [] {
    for (const runtime::ConfigProblem& problem : config->problems) BYPASS_LOG_ERROR("%s", problem.message().c_str());
    if (!config->problems.empty() && config->strict) _exit(kStrictStatus);
    return true;
  }();
  (void)said;
  return *config;
}

void report(const char* text) {
  BYPASS_LOG_ERROR("%s", text);
  if (setup().strict) _exit(kStrictStatus);
}

}  // namespace bypass::softverbs
