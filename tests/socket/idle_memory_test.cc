// What an idle connection takes of the arena: 1 KiB at most, with what finds it. Ten thousand connections pay for each
// byte that an object here grows by.
#include <gtest/gtest.h>

#include "socket/objects.h"
#include "stack/tcp/tcb.h"

namespace bypass::test {
namespace {

using socket::Details;
using socket::LocalEnd;
using socket::Socket;

/// Beside each object in its slab, and in the flow table, which is half full at least.
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
