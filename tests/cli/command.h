// Runs the bypass command with an environment of its own.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace bypass::tool {

struct Ran {
  int code = -1;
  std::string out;
  std::string err;
};

inline std::string read_all(int fd) {
  std::string text(static_cast<std::size_t>(lseek(fd, 0, SEEK_END)), 0);
  EXPECT_EQ(pread(fd, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  close(fd);
  return text;
}

/// `variables`: the whole environment.
inline Ran run_command(std::vector<std::string> arguments, std::vector<std::string> variables = {}) {
  const auto pointers = [](std::vector<std::string>& strings) {
    std::vector<char*> out;
    for (std::string& string : strings) out.push_back(string.data());
    out.push_back(nullptr);
    return out;
  };
  arguments.insert(arguments.begin(), "bypass");
  char out_name[] = "/tmp/bypass-cli-XXXXXX";
  char err_name[] = "/tmp/bypass-cli-XXXXXX";
  const int out = mkstemp(out_name);
  const int err = mkstemp(err_name);
  unlink(out_name);
  unlink(err_name);
  const pid_t child = fork();
  if (child == 0) {
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    execve(BYPASS_COMMAND, pointers(arguments).data(), pointers(variables).data());
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_all(out), read_all(err)};
}

}  // namespace bypass::tool
