#include "os/pump_name.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <string_view>

namespace bypass::socket {
namespace {

const PumpName kName{AF_INET,
                     {IpAddress::from_v4(0x0a090001), 22},
                     {IpAddress::from_v4(0x0a090002), 40000},
                     PumpName::End::kPrograms,
                     7};

TEST(PumpName, WhatIsWritten_IsReadAgain) {
  sockaddr_un name;
  const socklen_t length = write_pump_name(kName, name);
  EXPECT_EQ(read_pump_name(name, length), kName);
  EXPECT_EQ(length, kPumpNameLength);
}

TEST(PumpName, OfIpv6_IsReadAgain) {
  PumpName six{AF_INET6, {IpAddress{}, 65535}, {IpAddress{}, 1}};
  six.local.address.bytes[0] = 0xfd;
  six.remote.address.bytes[15] = 0xff;
  six.end = PumpName::End::kPumps;
  six.serial = UINT64_MAX;
  sockaddr_un name;
  const socklen_t length = write_pump_name(six, name);
  EXPECT_EQ(read_pump_name(name, length), six);
}

TEST(PumpName, OfARelaysEnd_HasTheError) {
  PumpName failed = kName;
  failed.end = PumpName::End::kFailed;
  failed.error = 111;
  sockaddr_un name;
  const socklen_t length = write_pump_name(failed, name);
  EXPECT_EQ(read_pump_name(name, length), failed);
  EXPECT_EQ(connect_error(kName, failed), 111);
  EXPECT_FALSE(are_ends(kName, failed));
  failed.serial++;
  EXPECT_EQ(connect_error(kName, failed), 0) << "another pair's";
  PumpName listener = kName;
  listener.end = PumpName::End::kListener;
  write_pump_name(listener, name);
  EXPECT_EQ(read_pump_name(name, length), listener);
}

TEST(PumpName, OfTwoSerials_IsAnotherAddress) {
  sockaddr_un one, other;
  PumpName another = kName;
  another.serial++;
  write_pump_name(kName, one);
  write_pump_name(another, other);
  EXPECT_NE(std::string_view(one.sun_path, sizeof one.sun_path),
            std::string_view(other.sun_path, sizeof other.sun_path));
}

TEST(PumpName, AnotherName_IsNone) {
  sockaddr_un name;
  const socklen_t length = write_pump_name(kName, name);
  EXPECT_FALSE(read_pump_name(name, length - 1));
  for (const std::size_t place : {0U, 1U, 12U, 13U, 60U}) {
    sockaddr_un changed = name;
    changed.sun_path[place] = 'g';  // no digit, and in no name of ours
    EXPECT_FALSE(read_pump_name(changed, length)) << place;
  }
  write_pump_name({AF_UNIX, {}, {}}, name);
  EXPECT_FALSE(read_pump_name(name, length));
}

TEST(PumpName, OfTheOtherEnd_IsKnown) {
  PumpName pumps = kName;
  EXPECT_FALSE(are_ends(kName, pumps));  // it is the same end
  pumps.end = PumpName::End::kPumps;
  EXPECT_TRUE(are_ends(kName, pumps));
  EXPECT_FALSE(are_ends(pumps, kName));
  PumpName foreign = pumps;
  foreign.serial++;
  EXPECT_FALSE(are_ends(kName, foreign));
  foreign = pumps;
  foreign.remote.port++;
  EXPECT_FALSE(are_ends(kName, foreign));
}

// unix(7): one end of a pair can be bound, and the other end gets its name.
TEST(PumpName, AnEndOfAPair_KeepsIt) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  sockaddr_un name;
  const socklen_t length = write_pump_name(kName, name);
  ASSERT_EQ(::bind(pair[0], reinterpret_cast<const sockaddr*>(&name), length), 0);
  sockaddr_un told{};
  socklen_t told_length = sizeof told;
  ASSERT_EQ(::getpeername(pair[1], reinterpret_cast<sockaddr*>(&told), &told_length), 0);
  EXPECT_EQ(read_pump_name(told, told_length), kName);
  ::close(pair[0]);
  ::close(pair[1]);
}

}  // namespace
}  // namespace bypass::socket
