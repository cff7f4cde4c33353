// RcWorker: a task that is handed over runs once, on another thread. Its result is seen when it is done.
#include "backends/verbs/rc/worker.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <memory>
#include <thread>
#include <vector>

#include "backends/packet/libc.h"
#include "backends/plain_host.h"

namespace bypass::verbs {
namespace {

class Task final : public RcTask {
 public:
  [[nodiscard]] bool is_done() const { return done(); }
  int runs = 0;  // read when done
  std::thread::id thread;
  std::atomic<bool>* gate = nullptr;  // run() waits for it

 private:
  void run() override {
    while (gate != nullptr && !gate->load(std::memory_order_acquire)) std::this_thread::yield();
    runs++;
    thread = std::this_thread::get_id();
  }
};

class RcWorkerTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* missing = nullptr;
    ASSERT_TRUE(packet::bind_libc(&PlainHost::host(), &missing)) << missing;
    wakeup = std::make_unique<packet::Wakeup>();
    worker = std::make_unique<RcWorker>(*wakeup);
  }
  void await(const Task& task) const {
    while (!task.is_done()) {
      pollfd one{wakeup->descriptor(), POLLIN, 0};
      ASSERT_EQ(poll(&one, 1, 10'000), 1);
      wakeup->fetch();
    }
  }

  std::unique_ptr<packet::Wakeup> wakeup;
  std::unique_ptr<RcWorker> worker;
};

TEST_F(RcWorkerTest, WithoutAThread_RunsAtOnce) {
  Task task;
  EXPECT_TRUE(worker->submit(task));
  EXPECT_TRUE(task.is_done());
  EXPECT_EQ(task.thread, std::this_thread::get_id());
}

TEST_F(RcWorkerTest, WithAThread_RunsThere_AndWakes) {
  ASSERT_EQ(worker->start(), 0);
  Task task;
  for (int i = 1; i <= 200; i++) {
    ASSERT_TRUE(worker->submit(task));
    await(task);
    ASSERT_EQ(task.runs, i);
    ASSERT_NE(task.thread, std::this_thread::get_id());
  }
}

TEST_F(RcWorkerTest, TooMany_AreRefused_TheRestRunsBeforeItStops) {
  ASSERT_EQ(worker->start(), 0);
  std::atomic<bool> gate{false};
  std::array<Task, RcWorker::kMost + 2> tasks;
  std::size_t taken = 0;
  for (Task& each : tasks) {
    each.gate = &gate;
    taken += worker->submit(each) ? 1U : 0U;
  }
  EXPECT_GE(taken, RcWorker::kMost);
  EXPECT_LT(taken, tasks.size());  // one at most was under way
  gate.store(true, std::memory_order_release);
  worker->stop();
  std::size_t ran = 0;
  for (const Task& each : tasks) ran += static_cast<std::size_t>(each.runs);
  EXPECT_EQ(ran, taken);
}

}  // namespace
}  // namespace bypass::verbs
