#include "backends/packet/frames/frame_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace bypass::packet {
namespace {

constexpr std::size_t kBytes = 3 * FrameMemory::kHugePage - 5000;

// More than any machine has. Address space for it can still be had, since no page is touched.
constexpr std::size_t kTooMany = std::size_t{1} << 44;

std::string address_space_problem() {
  std::ifstream file("/proc/sys/vm/overcommit_memory");
  int policy = 0;
  rlimit limit{};
  if (file >> policy; policy == 2) return "memory is not overcommitted here (vm.overcommit_memory)";
  return getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur < 2 * kTooMany ? "address space is limited (ulimit -v)"
                                                                            : "";
}

// This process sees a child's writes.
void expect_shared(std::byte& at) {
  const pid_t child = fork();
  if (child == 0) {
    at = std::byte{7};
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  EXPECT_EQ(at, std::byte{7});
}

TEST(FrameMemory, OnSmallPages_ZeroAndShared) {
  FrameMemory memory;
  std::string problem;
  ASSERT_TRUE(memory.map(kBytes, Hugepages::kOff, problem)) << problem;
  EXPECT_FALSE(memory.is_huge());
  EXPECT_EQ(memory.all().size(), kBytes);
  EXPECT_EQ(memory.all().back(), std::byte{0});
  expect_shared(memory.all().front());
  memory.unmap();
  EXPECT_TRUE(memory.all().empty());
}

TEST(FrameMemory, OnHugePages_WholeOnesAndShared) {
  FrameMemory memory;
  std::string problem;
  if (!memory.map(kBytes, Hugepages::kOn, problem)) {
    EXPECT_NE(problem.find("BYPASS_HUGEPAGES=on: this process cannot have the 3 huge pages"), std::string::npos)
        << problem;
    GTEST_SKIP() << problem;
  }
  EXPECT_TRUE(memory.is_huge());
  EXPECT_EQ(memory.all().size(), 3 * FrameMemory::kHugePage);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.all().data()) % FrameMemory::kHugePage, 0U);
  expect_shared(memory.all().back());
  memory.unmap();
}

TEST(FrameMemory, TooFewHugePages_AreToldOrDoneWithout) {
  FrameMemory memory;
  std::string problem;
  EXPECT_FALSE(memory.map(kTooMany, Hugepages::kOn, problem));
  EXPECT_NE(problem.find("BYPASS_HUGEPAGES=on: this process cannot have the 8388608 huge pages"), std::string::npos)
      << problem;
  EXPECT_NE(problem.find("accepted are auto and off"), std::string::npos) << problem;
  if (const std::string lacks = address_space_problem(); !lacks.empty()) GTEST_SKIP() << lacks;
  EXPECT_TRUE(memory.map(kTooMany, Hugepages::kAuto, problem)) << problem;
  EXPECT_FALSE(memory.is_huge());
  memory.unmap();
}

}  // namespace
}  // namespace bypass::packet
