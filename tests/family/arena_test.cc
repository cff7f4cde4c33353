// The arena is the process's own and is taken once. So each case runs in a process of its own.
#include "runtime/family/arena.h"

#include <sys/resource.h>

#include <cstring>
#include <fstream>

#include "family/fixture.h"
#include "long_form.h"
#include "os/kernel.h"

namespace bypass::runtime {
namespace {

constexpr std::size_t kBudget = std::size_t{64} << 20;

using socket::Child;
using socket::Shared;

void use_libc() {
  static socket::Kernel libc{};
  libc.close = close;
  socket::kernel = &libc;
}

void limit(decltype(RLIMIT_AS) resource, std::size_t bytes) {
  const rlimit value{bytes, bytes};
  if (setrlimit(resource, &value) != 0) _exit(9);
}

/// Runs `body` in a child. What it returns is the child's exit status.
template <typename F>
int in_a_child(F&& body) {
  Child child([&] {
    use_libc();
    _exit(body());
  });
  const int status = child.wait();
  return WIFEXITED(status) ? WEXITSTATUS(status) : -status;
}

std::size_t resident_pages() {
  std::ifstream statm("/proc/self/statm");
  std::size_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident;
}

TEST(Arena, Taken_IsSeenByAChildAtTheSameAddress) {
  EXPECT_EQ(in_a_child([] {
              arena::reserve();
              std::string problem;
              arena::Mapped* mapped = arena::take(kBudget, problem);
              if (mapped == nullptr || mapped->memory == nullptr) return 1;
              auto* block = static_cast<char*>(mapped->memory->allocate(4096));
              {
                Child child([&] {
                  if (!mapped->family.on_fork_child() || !mapped->lock.lock()) _exit(1);
                  std::strcpy(block, "from the child");
                  mapped->lock.unlock();
                });
                if (child.wait() != 0) return 2;
              }
              return std::strcmp(block, "from the child") == 0 ? 0 : 3;
            }),
            0);
}

TEST(Arena, Reserved_TouchesNothingAndTakenNearlyNothing) {
  if (test::is_sanitized()) GTEST_SKIP();  // a sanitizer maps shadow pages for what it sees mapped
  EXPECT_EQ(in_a_child([] {
              const std::size_t before = resident_pages();
              arena::reserve();
              if (resident_pages() > before + 64) return 1;
              std::string problem;
              if (arena::take(kBudget, problem) == nullptr) return 2;
              return resident_pages() > before + 256 ? 3 : 0;
            }),
            0);
}

TEST(Arena, AddressSpaceLimited_IsSmaller) {
  if (test::is_sanitized()) GTEST_SKIP();
  EXPECT_EQ(in_a_child([] {
              limit(RLIMIT_AS, std::size_t{4} << 30);
              arena::reserve();
              std::string problem;
              arena::Mapped* mapped = arena::take(kBudget, problem);
              if (mapped == nullptr) return 1;
              return mapped->memory->stats().region_bytes <= (std::size_t{512} << 20) ? 0 : 2;
            }),
            0);
}

TEST(Arena, AddressSpaceTooSmall_SaysWhy) {
  if (test::is_sanitized()) GTEST_SKIP();
  EXPECT_EQ(in_a_child([] {
              limit(RLIMIT_AS, std::size_t{256} << 20);
              arena::reserve();
              std::string problem;
              if (arena::take(kBudget, problem) != nullptr) return 1;
              return problem.find("RLIMIT_AS") != std::string::npos ? 0 : 2;
            }),
            0);
}

TEST(Arena, FileSizeLimited_NoSignalReachesTheProgram) {
  EXPECT_EQ(in_a_child([] {
              limit(RLIMIT_FSIZE, std::size_t{1} << 20);
              arena::reserve();
              std::string problem;
              if (arena::take(kBudget, problem) != nullptr) return 1;
              return problem.find("RLIMIT_FSIZE") != std::string::npos ? 0 : 2;
            }),
            0);
}

TEST(Arena, FileSizeLimitedAboveTheBudget_IsSmaller) {
  EXPECT_EQ(in_a_child([] {
              limit(RLIMIT_FSIZE, std::size_t{1} << 30);
              arena::reserve();
              std::string problem;
              arena::Mapped* mapped = arena::take(kBudget, problem);
              return mapped != nullptr && mapped->memory->allocate(kBudget / 2) != nullptr ? 0 : 1;
            }),
            0);
}

}  // namespace
}  // namespace bypass::runtime
