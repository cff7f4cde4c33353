// Policy: the answers of a process that has no ports, no rules and no numbers of its own to protect.
#include "socket/policy.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "socket/shared/local.h"
#include "socket/world.h"

namespace bypass::socket {
namespace {

const Policy plain;

TEST(Policy, OfAPlainProcess_LeavesAllToTheKernel) {
  const sockaddr name{};
  EXPECT_EQ(plain.decide_connect(-1, SOCK_STREAM, nullptr, &name), Decision::kKernel);
  EXPECT_EQ(plain.decide_listen(-1, SOCK_STREAM, &name), Decision::kKernel);
  EXPECT_EQ(plain.routes_to(&name), Decision::kKernel);
  EXPECT_FALSE(plain.is_taken(&name));
}

TEST(Policy, OfAPlainProcess_HasTheWireAndTellsNobody) {
  EXPECT_TRUE(plain.open_wire());
  plain.ask_for_wire();
  plain.record_why(-1, 0, "");
  plain.record_why_at(-1, 0, {}, "");
}

TEST(Policy, OwnDescriptor_StaysWhereItIs) {
  EXPECT_EQ(plain.own_descriptor(7), 7);
  EXPECT_EQ(plain.own_descriptor(-1), -1) << "a call that failed";
}

TEST(Policy, OwnCopy_IsAnotherNumberThatNoProgramInherits) {
  test::World::get();
  const int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const int copy = plain.own_copy(fd);
  ASSERT_GE(copy, 0);
  EXPECT_NE(copy, fd);
  EXPECT_EQ(::fcntl(copy, F_GETFD), FD_CLOEXEC);
  plain.disown_descriptor(copy);
  EXPECT_EQ(::close(copy), 0) << "it is for the caller to close";
  ::close(fd);
  EXPECT_LT(plain.own_copy(fd), 0);
}

TEST(LocalPolicy, OfAPlainProcess_HasNothingLocalAndNoBound) {
  const LocalPolicy local;
  EXPECT_EQ(local.directory, nullptr);
  EXPECT_EQ(local.most_links(), UINT32_MAX);
  EXPECT_TRUE(local.need_progress());
  local.call_progress();
}

}  // namespace
}  // namespace bypass::socket
