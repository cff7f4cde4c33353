#include "os/net/unix_queue.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "os/os.h"

namespace bypass::os {
namespace {

std::uint32_t short_inode_of(int fd) {
  return static_cast<std::uint32_t>(inode_of(fd));
}

TEST(UnixQueue, WhatTheOtherEndHasNotRead_IsTold) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const auto at_first = unread_at_other_end(short_inode_of(pair[0]));
  if (!at_first.has_value()) GTEST_SKIP() << "the kernel has no UNIX_DIAG";
  EXPECT_EQ(*at_first, 0U);
  ASSERT_EQ(::write(pair[0], "three", 5), 5);
  char bytes[2];
  ASSERT_EQ(::read(pair[1], bytes, sizeof bytes), 2);
  EXPECT_EQ(unread_at_other_end(short_inode_of(pair[0])), 3U);
  EXPECT_EQ(unread_at_other_end(short_inode_of(pair[1])), 0U);
  ::close(pair[0]);
  ::close(pair[1]);
}

TEST(UnixQueue, OfASocketThatThereIsNot_NothingIsTold) {
  EXPECT_FALSE(unread_at_other_end(1).has_value());
}

}  // namespace
}  // namespace bypass::os
