// A card's I/O ports by the kernel's file. A plain file stands for that here.
#include "backends/dpdk/card/io_ports.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "backends/dpdk/eal/eal.h"
#include "backends/dpdk/eal/libc.h"
#include "backends/plain_host.h"

struct rte_pci_device;
struct rte_pci_ioport;

extern "C" {
int __real_pci_uio_ioport_map(rte_pci_device* device, int bar, rte_pci_ioport* ports);
int __real_pci_uio_ioport_unmap(rte_pci_ioport* ports);
void __real_pci_uio_ioport_read(rte_pci_ioport* ports, void* data, size_t length, off_t offset);
void __real_pci_uio_ioport_write(rte_pci_ioport* ports, const void* data, size_t length, off_t offset);
int __wrap_pci_uio_ioport_map(rte_pci_device* device, int bar, rte_pci_ioport* ports);
int __wrap_pci_uio_ioport_unmap(rte_pci_ioport* ports);
void __wrap_pci_uio_ioport_read(rte_pci_ioport* ports, void* data, size_t length, off_t offset);
}

namespace bypass::dpdk {
namespace {

std::uint64_t mapped_base = 0;
std::string noted;

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
    noted.clear();
    std::filesystem::remove_all(folder_);
  }
  std::string read_text(std::size_t bytes, std::size_t offset) const {
    std::string text(bytes, '?');
    read_ports(this, reinterpret_cast<std::byte*>(text.data()), bytes, offset);
    return text;
  }

  std::filesystem::path folder_;
  std::string problem_;
};

TEST_F(IoPorts, ReadAndWriteTheCardsFile) {
  ASSERT_TRUE(open_ports(this, 0, problem_)) << problem_;
  EXPECT_EQ(read_text(7, 1), "bcdefgh");
  const std::array bytes{std::byte{'X'}, std::byte{'Y'}, std::byte{'Z'}};
  write_ports(this, bytes.data(), bytes.size(), 2);
  EXPECT_EQ(read_text(8, 0), "abXYZfgh");
}

TEST_F(IoPorts, WithoutAFileTheyDoNotOpen) {
  EXPECT_FALSE(open_ports(this, 1, problem_));
  EXPECT_EQ(problem_, (folder_ / "resource1").string() + ", the card's I/O ports: No such file or directory");
}

TEST_F(IoPorts, WhatIsNotThereReadsAsOnes) {
  ASSERT_TRUE(open_ports(this, 0, problem_)) << problem_;
  EXPECT_EQ(read_text(4, 100), "\xff\xff\xff\xff");
  close_ports(this);
  EXPECT_EQ(read_text(2, 0), "\xff\xff");
}

TEST_F(IoPorts, TheFileIsClosedOnExec) {
  ASSERT_TRUE(open_ports(this, 0, problem_)) << problem_;
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
  for (std::size_t i = 0; i < 8; i++) EXPECT_TRUE(open_ports(&keys[i], 0, problem_));
  EXPECT_FALSE(open_ports(&keys[8], 0, problem_));
  EXPECT_NE(problem_.find("8 cards already"), std::string::npos) << problem_;
  for (const int& key : keys) close_ports(&key);
}

// The child's descriptors are closed, and the program's next file takes the number.
TEST_F(IoPorts, AForkedChildHasNone) {
  ASSERT_TRUE(open_ports(this, 0, problem_));
  forget_ports_in_child();
  EXPECT_EQ(read_text(2, 0), "\xff\xff");
  close_ports(this);  // of nothing
  int open = 0;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(each.path(), gone) != folder_ / "resource0") continue;
    open++;
    close(std::stoi(each.path().filename()));
  }
  EXPECT_EQ(open, 1);
}

class PortIo : public IoPorts {
 protected:
  struct {  // rte_pci_ioport
    void* device = nullptr;
    std::uint64_t base = 0, bytes = 0;
  } ports_;
  std::string read_two() {
    std::string text(2, '?');
    __wrap_pci_uio_ioport_read(handle(), text.data(), 2, 0);
    return text;
  }
  rte_pci_ioport* handle() { return reinterpret_cast<rte_pci_ioport*>(&ports_); }
};

TEST_F(PortIo, PortsAreReadByTheCardsFile) {
  mapped_base = 0xc000;
  ASSERT_EQ(__wrap_pci_uio_ioport_map(nullptr, 0, handle()), 0);
  EXPECT_EQ(read_two(), "ab");
  __wrap_pci_uio_ioport_unmap(handle());
}

// A card may have the registers of virtio's older form in memory.
TEST_F(PortIo, RegistersInMemoryStayDpdks) {
  const std::string registers = "MN";
  mapped_base = reinterpret_cast<std::uint64_t>(registers.data());
  ASSERT_EQ(__wrap_pci_uio_ioport_map(nullptr, 1, handle()), 0) << "no file is needed";
  EXPECT_EQ(read_two(), "MN");
  __wrap_pci_uio_ioport_unmap(handle());
}

TEST_F(PortIo, WhyPortsDoNotOpenIsSaid) {
  mapped_base = 0xc000;
  EXPECT_NE(__wrap_pci_uio_ioport_map(nullptr, 1, handle()), 0);
  EXPECT_NE(noted.find("resource1"), std::string::npos) << noted;
}

}  // namespace

void note_error(const std::string& line) {
  noted = line;
}

}  // namespace bypass::dpdk

// DPDK's own.
int __real_pci_uio_ioport_map(rte_pci_device*, int, rte_pci_ioport* ports) {
  std::memcpy(reinterpret_cast<char*>(ports) + 8, &bypass::dpdk::mapped_base, 8);
  return 0;
}
int __real_pci_uio_ioport_unmap(rte_pci_ioport*) {
  return 0;
}
void __real_pci_uio_ioport_read(rte_pci_ioport* ports, void* data, size_t length, off_t) {
  const void* memory = nullptr;
  std::memcpy(&memory, reinterpret_cast<const char*>(ports) + 8, sizeof memory);
  std::memcpy(data, memory, length);
}
void __real_pci_uio_ioport_write(rte_pci_ioport*, const void*, size_t, off_t) {}
