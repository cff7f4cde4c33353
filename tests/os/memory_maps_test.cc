#include "os/memory_maps.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <vector>

namespace bypass::os {
namespace {

TEST(MemoryMaps, LineOfAFile_HasAddressesPermissionsAndPath) {
  const auto mapping =
      read_mapping("7f12a000-7f12c000 r-xp 00001000 08:01 123                    /usr/lib/a lib.so (deleted)");
  ASSERT_TRUE(mapping.has_value());
  EXPECT_EQ(mapping->begin, 0x7f12a000U);
  EXPECT_EQ(mapping->bytes(), 0x2000U);
  EXPECT_EQ(mapping->permissions, "r-xp");
  EXPECT_EQ(mapping->name, "/usr/lib/a lib.so (deleted)");
}

TEST(MemoryMaps, LineWithoutAName_HasNone) {
  const auto mapping = read_mapping("1000-2000 rw-p 00000000 00:00 0 ");
  ASSERT_TRUE(mapping.has_value());
  EXPECT_EQ(mapping->name, "");
}

TEST(MemoryMaps, WhatIsNoLine_IsRefused) {
  for (const char* line : {"", "-", "1000", "1000-", "1000-zz rw-p", "2000-1000 rw-p 0 00:00 0", "1000 -2000 rw-p"})
    EXPECT_FALSE(read_mapping(line).has_value()) << line;
}

TEST(MemoryMaps, Visit_EndsWhereItSaysSo) {
  std::vector<std::uintptr_t> seen;
  for_each_mapping("1000-2000 rw-p 0 00:00 0\nno line\n3000-4000 rw-p 0 00:00 0\n5000-6000 rw-p 0 00:00 0",
                   [&](const MemoryMapping& each) {
                     seen.push_back(each.begin);
                     return each.begin != 0x3000;
                   });
  EXPECT_EQ(seen, (std::vector<std::uintptr_t>{0x1000, 0x3000}));
}

TEST(MemoryMaps, OwnMemory_IsFound) {
  constexpr std::size_t kBytes = 4096;
  void* const page = mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  bool found = false;
  const std::string maps = read_memory_maps();
  for_each_mapping(maps, [&](const MemoryMapping& each) {
    found = each.begin <= reinterpret_cast<std::uintptr_t>(page) && reinterpret_cast<std::uintptr_t>(page) < each.end;
    return !found;
  });
  EXPECT_TRUE(found);
  munmap(page, kBytes);
}

}  // namespace
}  // namespace bypass::os
