// Driver: a wire_driver process in a test's hands; Folder: the temporary directory its socket lies in.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>

namespace bypass::test {

class Folder {
 public:
  Folder() {
    std::string pattern = std::filesystem::temp_directory_path() / "bypass-dpdk-XXXXXX";
    path_ = mkdtemp(pattern.data());
    chmod(path_.c_str(), 01777);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string operator/(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

class Driver {
 public:
  /// `before` runs in the new process before it becomes the driver (limits, another user).
  explicit Driver(const std::function<void()>& before = {}, const char* plugin = PLUGIN) {
    ::signal(SIGPIPE, SIG_IGN);  // a driver that died is a failed expectation
    int to[2], from[2], errors[2];
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0 || pipe2(errors, O_CLOEXEC) != 0) abort();
    pid_ = fork();
    if (pid_ == 0) {
      ::signal(SIGPIPE, SIG_DFL);
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      dup2(to[0], 0);
      dup2(from[1], 1);
      dup2(errors[1], 2);
      if (before) before();
      execl(WIRE_DRIVER, WIRE_DRIVER, plugin, nullptr);
      _exit(127);
    }
    close(to[0]);
    close(from[1]);
    close(errors[1]);
    in_ = to[1];
    out_ = from[0];
    errors_ = errors[0];
  }
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;
  ~Driver() {
    kill_now();
    close(in_);
    close(out_);
    close(errors_);
  }

  void say(const std::string& line) {
    const std::string text = line + "\n";
    if (write(in_, text.data(), text.size()) < 0) ADD_FAILURE() << "driver is gone: " << line;
  }
  /// The next line that the driver writes. The test fails if none comes (a hang). The time limit measures nothing.
  std::string hear() {
    std::string line;
    for (char c = 0;;) {
      pollfd p{out_, POLLIN, 0};
      constexpr int kHangMs = 200'000;  // on a busy machine every hand-over of the processor may take 0.1 s
      if (poll(&p, 1, kHangMs) <= 0) {
        ADD_FAILURE() << "the driver hangs";
        return "hangs";
      }
      if (read(out_, &c, 1) != 1) return "gone, wait status " + std::to_string(join()) + " " + errors();
      if (c == '\n') return line;
      line += c;
    }
  }
  std::string ask(const std::string& line) {
    say(line);
    return hear();
  }
  void signal(int number) const { kill(pid_, number); }
  void kill_now() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  /// Waits for the driver's end; returns its wait status.
  int join() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return status;
  }
  [[nodiscard]] pid_t pid() const { return pid_; }
  /// What has been written to stderr.
  std::string errors() {
    std::string text;
    char part[4096];
    fcntl(errors_, F_SETFL, O_NONBLOCK);
    for (ssize_t n; (n = read(errors_, part, sizeof part)) > 0;) text.append(part, static_cast<std::size_t>(n));
    return text;
  }

 private:
  pid_t pid_ = 0;
  int in_ = -1, out_ = -1, errors_ = -1;
};

/// How often the tests that restart, kill and freeze a peer do so.
inline int rounds() {
  const char* text = std::getenv("BYPASS_TEST_LONG");
  return text != nullptr ? std::max(1, std::atoi(text)) : 4;
}

inline bool starts_with_ok(const std::string& answer) {
  return answer.rfind("ok", 0) == 0;
}
#define EXPECT_OK(answer)                                        \
  do {                                                           \
    const std::string heard = (answer);                          \
    EXPECT_TRUE(::bypass::test::starts_with_ok(heard)) << heard; \
  } while (false)
#define ASSERT_OK(answer)                                        \
  do {                                                           \
    const std::string heard = (answer);                          \
    ASSERT_TRUE(::bypass::test::starts_with_ok(heard)) << heard; \
  } while (false)

/// A vhost and a virtio end on one path.
struct Wire {
  Folder folder;
  std::string path = folder / "wire.sock";
  Driver vhost, virtio;

  explicit Wire(const char* plugin = PLUGIN) : vhost({}, plugin), virtio({}, plugin) {}

  std::string open_vhost() { return vhost.ask("open vhost " + path); }
  std::string open_virtio() { return virtio.ask("open virtio " + path); }
  void open() {
    ASSERT_OK(open_vhost());
    ASSERT_OK(open_virtio());
    ASSERT_OK(virtio.ask("wait-link up"));
    ASSERT_OK(vhost.ask("wait-link up"));
  }
};

}  // namespace bypass::test
