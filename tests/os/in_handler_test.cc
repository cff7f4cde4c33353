#include "os/own/in_handler.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <thread>

namespace bypass::socket {
namespace {

int seen = -1;

void look(int) {
  seen = is_in_handler() ? 1 : 0;
}

[[gnu::noinline]] void look_with_information(int, siginfo_t*, void*) {
  seen = is_in_handler() ? 1 : 0;
}

/// What a handler sees that is installed in this way and runs now.
int seen_in(int flags) {
  struct sigaction action {
  }, before;
  if ((flags & SA_SIGINFO) != 0)
    action.sa_sigaction = look_with_information;
  else
    action.sa_handler = look;
  action.sa_flags = flags;
  sigaction(SIGUSR2, &action, &before);
  seen = -1;
  raise(SIGUSR2);
  sigaction(SIGUSR2, &before, nullptr);
  return seen;
}

TEST(InHandler, Plainly_IsFalse) {
  EXPECT_FALSE(is_in_handler());
  EXPECT_EQ(seen_in(0), 1);
  EXPECT_FALSE(is_in_handler());
}

TEST(InHandler, WithAnyFlags_IsTrue) {
  EXPECT_EQ(seen_in(SA_SIGINFO), 1);
  EXPECT_EQ(seen_in(SA_RESTART | SA_NODEFER), 1);
  EXPECT_EQ(seen_in(SA_RESETHAND), 1);  // the kernel has forgotten the handler by then
}

TEST(InHandler, OnAnotherThread_IsTrueThereAlone) {
  std::thread([] {
    EXPECT_FALSE(is_in_handler());
    EXPECT_EQ(seen_in(0), 1);
  }).join();
  EXPECT_FALSE(is_in_handler());
}

TEST(InHandler, OnAnotherStack_IsTrue) {
  alignas(16) static std::array<char, 128 << 10> room;
  const stack_t stack{.ss_sp = room.data(), .ss_flags = 0, .ss_size = room.size()};
  stack_t before;
  ASSERT_EQ(sigaltstack(&stack, &before), 0);
  EXPECT_EQ(seen_in(SA_ONSTACK), 1);
  EXPECT_EQ(seen_in(SA_ONSTACK | SA_RESETHAND), 1);
  EXPECT_FALSE(is_in_handler());
  sigaltstack(&before, nullptr);
}

// What sigaction() leaves on the stack: the restorer, a mask, and whatever lies after them.
TEST(InHandler, RestorerOfAStaleSigaction_IsNoFrame) {
  struct KernelAction {
    unsigned long handler, flags, restorer, mask;
  } action{};
  struct sigaction any {
  }, before;
  any.sa_handler = look;
  sigaction(SIGUSR2, &any, &before);
  syscall(SYS_rt_sigaction, SIGUSR2, nullptr, &action, sizeof action.mask);
  volatile unsigned long stale[64];
  for (volatile unsigned long& word : stale) word = 0;
  stale[0] = action.restorer;
  stale[1] = ~0UL;       // the mask, where a frame has its flags
  stale[5] = ~0UL >> 1;  // where a frame has the size of the other stack
  EXPECT_FALSE(is_in_handler());
  EXPECT_NE(stale[0], 0UL);
  sigaction(SIGUSR2, &before, nullptr);
}

}  // namespace
}  // namespace bypass::socket
