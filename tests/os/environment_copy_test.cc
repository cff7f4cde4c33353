#include "os/log/environment_copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace bypass::runtime {
namespace {

TEST(EnvironmentCopy, FindVariable_NeedsTheWholeName) {
  const char* const block[] = {"BYPASS_PORTS=1", "BYPASS_PORT=2", nullptr};
  EXPECT_STREQ(find_variable(block, "BYPASS_PORT"), "2");
  EXPECT_EQ(find_variable(block, "BYPASS"), nullptr);
}

TEST(EnvironmentCopy, ProgramThatWritesOverItsEnvironment_ChangesNothing) {
  char port[] = "BYPASS_PORT=tap:a", other[] = "PATH=/bin", address[] = "BYPASS_ADDR=10.9.0.1/24";
  const char* const block[] = {port, other, address, nullptr};
  EnvironmentCopy copy;
  char program[] = "nginx";
  copy.take(block);
  copy.take_program(program);
  for (char* entry : {port, other, address, program}) std::memset(entry, 'x', std::strlen(entry));
  EXPECT_STREQ(find_variable(copy.entries(), "BYPASS_PORT"), "tap:a");
  EXPECT_STREQ(find_variable(copy.entries(), "BYPASS_ADDR"), "10.9.0.1/24");
  EXPECT_EQ(find_variable(copy.entries(), "PATH"), nullptr);
  EXPECT_STREQ(copy.program(), "nginx");
  EXPECT_STREQ(copy.left_out(), "");
}

TEST(EnvironmentCopy, TooLong_IsLeftOutAndNamed) {
  const std::string rules = "BYPASS_RULES=" + std::string(EnvironmentCopy::kMaxBytes, 'x');
  const char* const block[] = {"BYPASS_PORT=tap:a", rules.c_str(), "BYPASS_LOG=info", nullptr};
  const auto copy = std::make_unique<EnvironmentCopy>();
  copy->take(block);
  EXPECT_STREQ(copy->left_out(), "BYPASS_RULES");
  EXPECT_STREQ(find_variable(copy->entries(), "BYPASS_PORT"), "tap:a");
  EXPECT_STREQ(find_variable(copy->entries(), "BYPASS_LOG"), "info");
}

TEST(EnvironmentCopy, TooMany_AreLeftOutAndTheFirstNamed) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i <= EnvironmentCopy::kMaxEntries; i++) texts.push_back("BYPASS_V" + std::to_string(i) + "=");
  std::vector<const char*> block;
  for (const std::string& text : texts) block.push_back(text.c_str());
  block.push_back(nullptr);
  EnvironmentCopy copy;
  copy.take(block.data());
  EXPECT_STREQ(copy.left_out(), "BYPASS_V128");
  EXPECT_EQ(copy.entries()[EnvironmentCopy::kMaxEntries], nullptr);
}

TEST(EnvironmentCopy, NoEnvironment_IsEmpty) {
  EnvironmentCopy copy;
  copy.take(nullptr);
  EXPECT_EQ(copy.entries()[0], nullptr);
}

}  // namespace
}  // namespace bypass::runtime
