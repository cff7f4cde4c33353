// What the tests of a family share: memory that forked processes share, and children that end with the scope.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <new>
#include <utility>

#include "socket/family/family.h"
#include "socket/shard_lock.h"

namespace bypass::socket {

/// A T that forked processes share; all bytes are zero at first.
template <typename T>
class Shared {
 public:
  Shared() : place_(mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {}
  ~Shared() { munmap(place_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  T& operator*() { return *static_cast<T*>(place_); }
  T* operator->() { return static_cast<T*>(place_); }

 private:
  void* place_;
};

/// A forked process that runs `body` and ends; killed and waited for at the end of the scope.
class Child {
 public:
  template <typename F>
  explicit Child(F&& body) : pid_(fork()) {
    if (pid_ != 0) return;
    body();
    _exit(0);
  }
  ~Child() {
    if (pid_ <= 0) return;
    kill();
    wait();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  void kill() { ::kill(pid_, SIGKILL); }
  /// Waits until the child has ended and is a zombie.
  void wait_for_end() {
    siginfo_t info{};
    waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
  }
  int wait() {
    int status = -1;
    waitpid(std::exchange(pid_, 0), &status, 0);
    return status;
  }

 private:
  pid_t pid_;
};

/// The family of one shard, as each process sees it.
struct Household {
  Shared<FamilyTable> table;
  Shared<LockState> state;
  Family family;
  ShardLock lock{*state, family};

  Household() { EXPECT_TRUE(family.attach(*table)); }
};

template <typename Predicate>
void spin_until(Predicate&& predicate) {
  while (!predicate()) sched_yield();
}

}  // namespace bypass::socket
