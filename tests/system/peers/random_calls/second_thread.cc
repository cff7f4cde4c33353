#include "second_thread.h"

#include <utility>

namespace random_calls {

SecondThread::SecondThread() : thread_([this] { work(); }) {}

SecondThread::~SecondThread() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::string SecondThread::run(std::function<std::string()> call) {
  std::unique_lock lock(mutex_);
  call_ = std::move(call);
  has_call_ = true;
  changed_.notify_all();
  changed_.wait(lock, [this] { return has_result_; });
  has_result_ = false;
  return result_;
}

void SecondThread::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return has_call_ || ends_; });
    if (ends_) return;
    has_call_ = false;
    result_ = call_();
    has_result_ = true;
    changed_.notify_all();
  }
}

}  // namespace random_calls
