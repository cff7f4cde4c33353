// A card's I/O ports by the kernel's file. A plain file stands for that here.
#include "backends/dpdk/card/io_ports.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "backends/dpdk/eal/libc.h"
#include "backends/plain_host.h"

namespace bypass::dpdk {
namespace {

class IoPorts : public ::testing::Test {
 protected:
  IoPorts() {
    const char* missing = nullptr;
    EXPECT_TRUE(bind_libc(&PlainHost::host(), &missing)) << missing;
    std::string pattern = std::filesystem::temp_directory_path() / "bypass-ports-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    std::ofstream(folder_ / "resource0") << "abcdefghij";
    name_card_of_ports(folder_);
  }
  ~IoPorts() override {
    close_ports(this);
    std::filesystem::remove_all(folder_);
  }
  std::string read_text(std::size_t bytes, std::size_t offset) const {
    std::string text(bytes, '?');
    read_ports(this, reinterpret_cast<std::byte*>(text.data()), bytes, offset);
    return text;
  }

  std::filesystem::path folder_;
};

TEST_F(IoPorts, ReadAndWriteTheCardsFile) {
  ASSERT_TRUE(open_ports(this, 0));
  EXPECT_EQ(read_text(7, 1), "bcdefgh");
  const std::array bytes{std::byte{'X'}, std::byte{'Y'}, std::byte{'Z'}};
  write_ports(this, bytes.data(), bytes.size(), 2);
  EXPECT_EQ(read_text(8, 0), "abXYZfgh");
}

TEST_F(IoPorts, WithoutAFileTheyDoNotOpen) {
  EXPECT_FALSE(open_ports(this, 1));
}

TEST_F(IoPorts, WhatIsNotThereReadsAsOnes) {
  ASSERT_TRUE(open_ports(this, 0));
  EXPECT_EQ(read_text(4, 100), "\xff\xff\xff\xff");
  close_ports(this);
  EXPECT_EQ(read_text(2, 0), "\xff\xff");
}

TEST_F(IoPorts, TheFileIsClosedOnExec) {
  ASSERT_TRUE(open_ports(this, 0));
  int found = 0;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(each.path(), gone) != folder_ / "resource0") continue;
    found++;
    EXPECT_NE(fcntl(std::stoi(each.path().filename()), F_GETFD) & FD_CLOEXEC, 0);
  }
  EXPECT_EQ(found, 1);
}

TEST_F(IoPorts, EightCardsHaveThem) {
  const std::array<int, 9> keys{};
  for (std::size_t i = 0; i < 8; i++) EXPECT_TRUE(open_ports(&keys[i], 0));
  EXPECT_FALSE(open_ports(&keys[8], 0));
  for (const int& key : keys) close_ports(&key);
}

}  // namespace
}  // namespace bypass::dpdk
