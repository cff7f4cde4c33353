// How much of the arena an idle connection takes: 1 KiB at most, with the tables that find it. Ten thousand connections
// pay for each byte that an object grows by.
#include <gtest/gtest.h>

#include "socket/objects.h"
#include "stack/tcp/tcb.h"

namespace bypass::test {
namespace {

using socket::Details;
using socket::LocalEnd;
using socket::Socket;

/// What is counted beside each object in its slab and in the flow table, which is at least half full.
constexpr std::size_t kSlot = 8, kBuckets = 2 * sizeof(void*);

template <typename T>
constexpr std::size_t kTaken = sizeof(T) + kSlot;

TEST(IdleMemory, AcceptedConnection_IsTcbAndSocket) {
  EXPECT_LE(kTaken<tcp::Tcb> + kTaken<Socket> + kBuckets, 856U);
}

TEST(IdleMemory, OpenedConnection_HasDetailsBeside) {
  EXPECT_LE(kTaken<tcp::Tcb> + kTaken<Socket> + kTaken<Details> + kBuckets, 1056U);
}

TEST(IdleMemory, ConnectionWithinTheHost_HasItsEndAndNoTcb) {
  EXPECT_LE(kTaken<Socket> + kTaken<Details> + kTaken<LocalEnd>, 568U);
}

}  // namespace
}  // namespace bypass::test
