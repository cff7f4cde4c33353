// Sleeping: a thread that sleeps in a call until another thread wakes it.
#pragma once

#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

namespace bypass::test {

class Sleeping {
 public:
  /// When it returns, the thread sleeps in `call`, or has come back from the call.
  template <typename Call>
  explicit Sleeping(Call call)
      : thread_([this, call = std::move(call)] {
          thread_id_ = gettid();
          call();
          is_back_ = true;
        }) {
    while (!is_back_ && !sleeps()) std::this_thread::yield();
  }
  ~Sleeping() {
    if (thread_.joinable()) thread_.join();
  }
  Sleeping(const Sleeping&) = delete;
  Sleeping& operator=(const Sleeping&) = delete;

  void join() { thread_.join(); }

 private:
  // proc(5), stat: the state stands behind the name in parentheses.
  [[nodiscard]] bool sleeps() const {
    if (thread_id_ == 0) return false;
    std::string line;
    std::getline(std::ifstream("/proc/self/task/" + std::to_string(thread_id_) + "/stat"), line);
    const std::size_t name_end = line.rfind(')');
    return name_end != std::string::npos && line.compare(name_end, 3, ") S") == 0;
  }

  std::atomic<pid_t> thread_id_{0};
  std::atomic<bool> is_back_{false};
  std::thread thread_;
};

}  // namespace bypass::test
