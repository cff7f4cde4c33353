// A second thread of the server's process, which makes one call at a time while the first one waits.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace random_calls {

class SecondThread {
 public:
  SecondThread();
  ~SecondThread();
  SecondThread(const SecondThread&) = delete;
  SecondThread& operator=(const SecondThread&) = delete;

  std::string run(std::function<std::string()> call);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<std::string()> call_;
  std::string result_;
  bool has_call_ = false, has_result_ = false, ends_ = false;
  std::thread thread_;
};

}  // namespace random_calls
