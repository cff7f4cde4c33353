#include "sleeps.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "backends/packet/libc.h"

namespace bypass::verbs {
namespace {

Sleeps* sleeps = nullptr;

}  // namespace

Sleeps::Sleeps() : real_(packet::libc.poll) {
  if (pipe2(over_, O_CLOEXEC) != 0) std::abort();
  sleeps = this;
  packet::libc.poll = poll;
}

Sleeps::~Sleeps() {
  packet::libc.poll = real_;
  close(over_[0]);
  close(over_[1]);
}

int Sleeps::poll(pollfd* items, nfds_t count, int limit_ms) {
  Sleeps& self = *sleeps;
  if (limit_ms < 0) return self.real_(items, count, limit_ms);
  {
    const std::lock_guard lock(self.mutex_);
    self.limits_.push_back(limit_ms);
  }
  std::vector<pollfd> all(items, items + count);
  all.push_back({self.over_[0], POLLIN, 0});
  int ready = self.real_(all.data(), all.size(), -1);
  std::copy_n(all.begin(), count, items);
  char byte = 0;
  if (all.back().revents != 0) {
    ready -= static_cast<int>(read(self.over_[0], &byte, 1));
    self.ended_++;
  }
  return ready;
}

void Sleeps::end() {
  const int before = ended_;
  if (write(over_[1], "", 1) != 1) std::abort();
  while (ended_ == before) std::this_thread::yield();
}

std::size_t Sleeps::count() {
  const std::lock_guard lock(mutex_);
  return limits_.size();
}

int Sleeps::last() {
  const std::lock_guard lock(mutex_);
  return limits_.back();
}

}  // namespace bypass::verbs
