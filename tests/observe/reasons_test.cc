#include "observe/reasons.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace bypass::observe {
namespace {

TEST(Reasons, EveryRow_HasItsOwnNameAndASentence) {
  std::set<std::string> names;
  for (const ReasonInfo& reason : reasons()) {
    EXPECT_TRUE(names.insert(reason.name).second) << reason.name;
    EXPECT_GT(std::string(reason.sentence).size(), 10U) << reason.name;
  }
}

TEST(Reasons, Rows_LieUnderTheirNumbers) {
  const auto name = [](Reason reason) { return std::string(reason_info(static_cast<std::uint16_t>(reason)).name); };
  EXPECT_EQ(name(Reason::kNoPortConfigured), "no_port_configured");
  EXPECT_EQ(name(Reason::kRuleKernel), "rule_kernel");
  EXPECT_EQ(name(Reason::kPluginMissing), "plugin_missing");
  EXPECT_EQ(name(Reason::kRlimitFsize), "rlimit_fsize");
  EXPECT_EQ(name(Reason::kEscapedIoUring), "escaped_io_uring");
  EXPECT_EQ(name(Reason::kForkedChild), "forked_child");
  EXPECT_EQ(name(Reason::kStatsUnavailable), "stats_unavailable");
}

TEST(Reasons, NumberOfANewerBuild_IsUnknown) {
  EXPECT_STREQ(reason_info(60000).name, "unknown");
}

}  // namespace
}  // namespace bypass::observe
