// How a call changes a process's standing, and which processes may share memory.
#include "runtime/family/standing.h"

#include <gtest/gtest.h>
#include <linux/capability.h>

namespace bypass::runtime {
namespace {

constexpr std::uint64_t bit(int capability) {
  return std::uint64_t{1} << capability;
}

constexpr std::uint64_t kAll = (std::uint64_t{1} << (CAP_LAST_CAP + 1)) - 1;
/// As root in a container has it.
constexpr std::uint64_t kContainers = bit(CAP_CHOWN) | bit(CAP_SETUID) | bit(CAP_SETGID) | bit(CAP_NET_RAW);
constexpr std::uint32_t kWww = 33;

Standing root(std::uint64_t capabilities = kAll) {
  return {.users = {}, .groups = {}, .permitted = capabilities, .capable = capabilities, .user_namespace = 1};
}

Standing user(std::uint32_t id) {
  return {.users = {id, id, id}, .groups = {id, id, id}, .permitted = 0, .capable = 0, .user_namespace = 1};
}

TEST(Standing, RootGivenUp_SharesNothingWithRoot) {
  for (const std::uint64_t capabilities : {kAll, kContainers, bit(CAP_SETUID) | bit(CAP_SETGID)}) {
    const Standing before = root(capabilities);
    const Standing group = after_setgid(before, kWww);
    EXPECT_TRUE(may_share(before, group)) << "it could have its group back";
    const Standing after = after_setuid(group, kWww);
    EXPECT_FALSE(may_share(before, after));
    EXPECT_TRUE(may_share(after, user(kWww)));
  }
}

TEST(Standing, EveryWayOfGivingRootUp_IsOne) {
  const Standing group = after_setresgid(root(), {kWww, kWww, kWww});
  EXPECT_FALSE(may_share(root(), after_setresuid(group, {kWww, kWww, kWww})));
  EXPECT_FALSE(may_share(root(), after_setreuid(group, kWww, kWww)));
  EXPECT_FALSE(may_share(root(), after_capset(root(), kContainers)));
  EXPECT_FALSE(may_share(root(), after_capset(root(), 0)));
  EXPECT_FALSE(may_share(root(), after_new_user_namespace(root())));
}

TEST(Standing, WhatCanBeTakenBack_ChangesNothing) {
  EXPECT_TRUE(may_share(root(), after_setresuid(root(), {kSameId, kWww, kSameId})));
  EXPECT_TRUE(may_share(root(), after_setreuid(root(), kSameId, kWww))) << "its real user is root";
  const Standing switched = after_setresuid(user(1000), {kSameId, 1000, kSameId});
  EXPECT_TRUE(may_share(user(1000), switched));
}

TEST(Standing, WithTheCapability_MayChangeUser) {
  EXPECT_TRUE(may_change_user(root()));
  EXPECT_TRUE(may_change_user(after_capset(root(), kContainers)));
  EXPECT_FALSE(may_change_user(after_capset(root(), bit(CAP_NET_RAW))));
  EXPECT_FALSE(may_change_user(after_setuid(root(), kWww)));
}

TEST(Standing, OtherUsers_DoNotShare) {
  EXPECT_TRUE(may_share(user(1000), user(1000)));
  EXPECT_FALSE(may_share(user(1000), user(1001)));
  Standing group = user(1000);
  group.groups = {5, 5, 5};
  EXPECT_FALSE(may_share(user(1000), group));
}

TEST(Standing, RefusedCall_ChangesNothing) {
  const Standing before = user(1000);
  EXPECT_EQ(after_setuid(before, kWww).users, before.users);
  EXPECT_EQ(after_setresuid(before, {0, 0, 0}).users, before.users);
  EXPECT_EQ(after_setgid(before, kWww).groups, before.groups);
}

TEST(Standing, SavedUser_FollowsAsSetreuidHasIt) {
  EXPECT_EQ(after_setreuid(root(), kWww, kSameId).users, (Standing::Ids{kWww, 0, 0}));
  EXPECT_EQ(after_setreuid(root(), kSameId, kWww).users, (Standing::Ids{0, kWww, kWww}));
  EXPECT_EQ(after_setreuid(root(), kSameId, 0).users, (Standing::Ids{0, 0, 0}));
}

TEST(Standing, Now_IsWhatTheKernelSays) {
  const Standing now = Standing::now();
  EXPECT_TRUE(may_share(now, Standing::now()));
  EXPECT_NE(now.user_namespace, 0U);
}

}  // namespace
}  // namespace bypass::runtime
