// libibverbs by the names that mlx5's driver calls. They are our functions, and they lead to the library once it is
// needed.
#include "backends/dpdk/eal/verbs_calls.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "backends/dpdk/eal/libc.h"
#include "backends/plain_host.h"

extern "C" const char* ibv_port_state_str(int state);  // verbs.h declares an enumeration, which is an int

namespace bypass::dpdk {
namespace {

TEST(VerbsCalls, LeadToTheLibraryOnceItIsWanted) {
  const char* missing = nullptr;
  ASSERT_TRUE(bind_libc(&PlainHost::host(), &missing)) << missing;
  errno = 0;
  EXPECT_EQ(ibv_port_state_str(4), nullptr);
  EXPECT_EQ(errno, ENOSYS);
  std::string problem;
  if (!bind_verbs(problem)) {
    EXPECT_NE(problem.find("apt-get install ibverbs-providers"), std::string::npos) << problem;
    GTEST_SKIP() << problem;
  }
  EXPECT_STREQ(ibv_port_state_str(4), "active");
  EXPECT_TRUE(bind_verbs(problem)) << "again";
}

}  // namespace
}  // namespace bypass::dpdk
