#include "runtime/family/rights/spare.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "os/kernel.h"
#include "os/os.h"

namespace bypass::runtime {
namespace {

// A process makes a counter once. A worker that has kept the descriptor may fill it.
TEST(Spare, ARecall_NeverWaits) {
  if (geteuid() != 0) GTEST_SKIP() << "only a process that may change its user makes a spare";
  static socket::Kernel libc{};
  libc.close = close;
  libc.epoll_create1 = epoll_create1;
  libc.eventfd = eventfd;
  libc.fcntl = fcntl;
  socket::kernel = &libc;
  spare::make();
  ASSERT_GE(spare::recall_descriptor(), 0);
  constexpr std::uint64_t kMost = UINT64_MAX - 1;
  ASSERT_EQ(write(spare::recall_descriptor(), &kMost, sizeof kMost), 8);
  spare::recall();
  EXPECT_TRUE(spare::is_recalling());
  EXPECT_TRUE(spare::await_recall());
  spare::recall();
  spare::forget_recalls();  // a process that asked an earlier driver does not ask the next one
  EXPECT_FALSE(os::readable(spare::recall_descriptor()));
  spare::forget_recalls();
  spare::drop();
}

}  // namespace
}  // namespace bypass::runtime
