// The message if the library that has a device is missing or is the wrong one.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "backends/packet/libc.h"
#include "backends/plain_host.h"
#include "backends/verbs/verbs.h"

namespace {

const char* missing_library = nullptr;  // dlopen() does not find it
std::string reason;

}  // namespace

// verbs.cc's calls end here (-Wl,--wrap).
extern "C" {
void* __real_dlopen(const char* path, int flags);
char* __real_dlerror();
void* __wrap_dlopen(const char* path, int flags);
char* __wrap_dlerror();

void* __wrap_dlopen(const char* path, int flags) {
  reason.clear();
  if (missing_library == nullptr || std::strcmp(path, missing_library) != 0) return __real_dlopen(path, flags);
  reason = std::string(path) + ": cannot open shared object file: No such file or directory";
  return nullptr;
}
char* __wrap_dlerror() {
  return reason.empty() ? __real_dlerror() : reason.data();
}
}

namespace bypass::verbs {
namespace {

class LibraryTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* missing = nullptr;
    ASSERT_TRUE(packet::bind_libc(&PlainHost::host(), &missing)) << missing;
    missing_library = nullptr;
  }
  std::string problem;
};

TEST_F(LibraryTest, NoLibibverbs_SaysWhatToInstall) {
  missing_library = "libibverbs.so.1";
  EXPECT_EQ(verbs_for("mlx5_0", problem), nullptr);
  EXPECT_EQ(
      problem,
      "libibverbs.so.1: cannot open shared object file: No such file or directory (Debian: apt install libibverbs1 "
      "ibverbs-providers)");
}

TEST_F(LibraryTest, SoftwareLibraryElsewhere_SaysWhereItBelongs) {
  EXPECT_EQ(verbs_for("soft0", problem), nullptr);
  EXPECT_EQ(problem, "libbypass-softverbs.so, which makes the device, is not beside libbypass.so");
}

TEST_F(LibraryTest, Libibverbs_HasEveryCall) {
  const Verbs* const verbs = verbs_for("mlx5_0", problem);
  ASSERT_NE(verbs, nullptr) << problem;
  EXPECT_NE(verbs->fork_init, nullptr);
  EXPECT_NE(verbs->qp_to_qp_ex, nullptr);
  EXPECT_EQ(verbs->wire_mtu, nullptr);
  EXPECT_EQ(verbs_for("mlx5_1", problem), verbs);
}

TEST(IsSoft, NamesOfSoftwareDevicesAlone) {
  EXPECT_TRUE(is_soft("soft12"));
  for (const char* const other : {"softx", "mlx5_0"}) EXPECT_FALSE(is_soft(other)) << other;
}

}  // namespace
}  // namespace bypass::verbs
