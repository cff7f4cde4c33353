// Memory windows, and invalidating their keys from here and from the peer (InfiniBand specification, 10.6.7).
#include <gtest/gtest.h>

#include <algorithm>

#include "softverbs/engine/qp/qp.h"
#include "softverbs/fabric.h"
#include "softverbs/on_the_wire.h"

namespace bypass::rdma::test {
namespace {

class Window : public ::testing::TestWithParam<ibv_qp_type> {
 protected:
  Window() : pair(GetParam()), a(pair.a), b(pair.b) {
    Device& device = b.end.device();
    region =
        device.reg_mr(b.end.pd(), b.end.at(0), 65'536, b.end.address(0), End::kAllAccess | IBV_ACCESS_MW_BIND).object;
    window = device.alloc_mw(b.end.pd(), IBV_MW_TYPE_2).object;
  }
  SendRequest bind(std::size_t offset, std::size_t length, unsigned access) {
    key = Device::rkey(*window) + (Device::rkey(*window) % 256 == 255 ? -255 : 1);
    return {.opcode = IBV_WR_BIND_MW,
            .rkey = key,
            .window = window,
            .region = region,
            .bind_addr = b.end.address(offset),
            .bind_length = length,
            .bind_access = access};
  }
  ibv_wc_status post(Half& half, const SendRequest& request) {
    EXPECT_EQ(half.send(request, {}), 0);
    pair.fabric.settle();
    return only(half.end).status;
  }
  ibv_wc_status access(ibv_wr_opcode opcode, std::size_t offset, std::size_t length) {
    return access_at(opcode, b.end.address(offset), length);
  }
  ibv_wc_status access_at(ibv_wr_opcode opcode, std::uint64_t address, std::size_t length) {
    EXPECT_EQ(a.send({.opcode = opcode, .remote_addr = address, .rkey = key}, 100'000, length), 0);
    pair.fabric.settle();
    return only(a.end).status;
  }

  Pair pair;
  Half &a, &b;
  Mr *region, *window;
  std::uint32_t key = 0;
};

constexpr unsigned kBoth = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

TEST_P(Window, WhatIsBound_MayBeUsed_AndNoByteMore) {
  ASSERT_EQ(post(b, bind(1000, 3000, kBoth)), IBV_WC_SUCCESS);
  EXPECT_EQ(Device::rkey(*window), key);
  a.end.fill(100'000, 3000, 1);
  EXPECT_EQ(access(IBV_WR_RDMA_WRITE, 1000, 3000), IBV_WC_SUCCESS);
  EXPECT_TRUE(b.end.holds(1000, 3000, 1));
  EXPECT_EQ(access(IBV_WR_RDMA_READ, 3999, 1), IBV_WC_SUCCESS);
  EXPECT_EQ(access(IBV_WR_RDMA_WRITE, 3999, 2), IBV_WC_REM_ACCESS_ERR);
}

TEST_P(Window, RightsAreItsOwn) {
  ASSERT_EQ(post(b, bind(1000, 3000, IBV_ACCESS_REMOTE_READ)), IBV_WC_SUCCESS);
  EXPECT_EQ(access(IBV_WR_RDMA_READ, 1000, 8), IBV_WC_SUCCESS);
  EXPECT_EQ(access(IBV_WR_RDMA_WRITE, 1000, 8), IBV_WC_REM_ACCESS_ERR);
}

TEST_P(Window, ZeroBased_CountsFromItsBeginning) {
  ASSERT_EQ(post(b, bind(1000, 3000, kBoth | IBV_ACCESS_ZERO_BASED)), IBV_WC_SUCCESS);
  a.end.fill(100'000, 8, 2);
  EXPECT_EQ(access_at(IBV_WR_RDMA_WRITE, 16, 8), IBV_WC_SUCCESS);
  EXPECT_TRUE(b.end.holds(1016, 8, 2));
  EXPECT_EQ(access(IBV_WR_RDMA_WRITE, 1000, 8), IBV_WC_REM_ACCESS_ERR);
}

TEST_P(Window, Unbound_HasNoMemory) {
  key = Device::rkey(*window);
  EXPECT_EQ(access(IBV_WR_RDMA_READ, 1000, 8), IBV_WC_REM_ACCESS_ERR);
}

TEST_P(Window, LocalInvalidation_EndsIt_AndItMayBeBoundAgain) {
  ASSERT_EQ(post(b, bind(0, 100, kBoth)), IBV_WC_SUCCESS);
  const std::uint32_t first = key;
  ASSERT_EQ(post(b, {.opcode = IBV_WR_LOCAL_INV, .rkey = key}), IBV_WC_SUCCESS);
  EXPECT_EQ(b.end.device().dereg_mr(*b.end.device().reg_mr(b.end.pd(), b.end.at(0), 1, 0, 0).object), 0);
  ASSERT_EQ(post(b, bind(200, 100, kBoth)), IBV_WC_SUCCESS);
  EXPECT_NE(key, first);
  EXPECT_EQ(access(IBV_WR_RDMA_WRITE, 200, 100), IBV_WC_SUCCESS);
  key = first;
  EXPECT_EQ(access(IBV_WR_RDMA_WRITE, 200, 100), IBV_WC_REM_ACCESS_ERR);
}

TEST_P(Window, RemoteInvalidation_EndsIt_AndIsReported) {
  ASSERT_EQ(post(b, bind(0, 100, kBoth)), IBV_WC_SUCCESS);
  for (const std::size_t length : {8U, 3000U}) {
    b.receive(1, 8192, 4000);
    ASSERT_EQ(a.send({.opcode = IBV_WR_SEND_WITH_INV, .rkey = key}, 0, length), 0);
    pair.fabric.settle();
    const ibv_wc received = only(b.end);
    EXPECT_EQ(only(a.end).status, IBV_WC_SUCCESS);
    EXPECT_EQ(received.byte_len, length);
    EXPECT_EQ(received.wc_flags, unsigned{IBV_WC_WITH_INV});
    EXPECT_EQ(received.invalidated_rkey, key);
    ASSERT_EQ(post(b, bind(0, 100, kBoth)), IBV_WC_SUCCESS) << "it is free again";
  }
}

TEST_P(Window, AKeyThatIsNotThePeersToInvalidate_EndsTheQueuePair) {
  b.receive(1, 8192, 4000);
  a.send({.opcode = IBV_WR_SEND_WITH_INV, .rkey = Device::rkey(*region)}, 0, 8);
  pair.fabric.settle();
  EXPECT_EQ(only(a.end).status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(b.state(), IBV_QPS_ERR);
  EXPECT_EQ(only(b.end).status, IBV_WC_LOC_ACCESS_ERR);
}

TEST_P(Window, WrongBindings_FailAndEndTheQueuePair) {
  Device& device = b.end.device();
  Mr* const without = device.reg_mr(b.end.pd(), b.end.at(0), 100, b.end.address(0), End::kAllAccess).object;
  Mr* const read_only =
      device.reg_mr(b.end.pd(), b.end.at(0), 100, b.end.address(0), IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND).object;
  std::vector<SendRequest> wrong(8, bind(0, 100, kBoth));
  wrong[0].region = without;
  wrong[1].region = read_only;  // a right to write that the region does not have here either
  wrong[2].bind_length = 65'537;
  wrong[3].bind_addr--;
  wrong[4].bind_length = 0;
  wrong[5].region = nullptr;
  wrong[6].rkey += 256;  // another window's key
  wrong[7].bind_access |= IBV_ACCESS_ON_DEMAND;
  for (std::size_t i = 0; i < wrong.size(); i++) {
    Pair fresh(GetParam());
    EXPECT_EQ(post(b, wrong[i]), IBV_WC_MW_BIND_ERR) << i;
    EXPECT_EQ(b.state(), IBV_QPS_ERR);
    b.to_state(IBV_QPS_RESET);
    Pair::init(b), Pair::to_rtr(b, a), Pair::to_rts(b);
  }
  EXPECT_EQ(region->windows, 0U);
}

TEST_P(Window, ABoundWindow_IsBoundOnceMoreOnlyAfterInvalidation) {
  ASSERT_EQ(post(b, bind(0, 100, kBoth)), IBV_WC_SUCCESS);
  EXPECT_EQ(post(b, bind(0, 100, kBoth)), IBV_WC_MW_BIND_ERR);
}

TEST_P(Window, ARegionWithWindows_Stays) {
  Device& device = b.end.device();
  ASSERT_EQ(post(b, bind(0, 100, kBoth)), IBV_WC_SUCCESS);
  EXPECT_EQ(device.dereg_mr(*region), EINVAL);
  EXPECT_EQ(device.rereg_mr(*region, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, End::kAllAccess), EINVAL);
  device.dealloc_mw(*window);
  EXPECT_EQ(device.dereg_mr(*region), 0);
  EXPECT_EQ(access(IBV_WR_RDMA_READ, 0, 8), IBV_WC_REM_ACCESS_ERR);
}

// What a request names may be gone when its turn comes.
TEST_P(Window, OneThatIsGoneWhenItIsToBeBound_IsNotBound) {
  const SendRequest request = bind(0, 100, kBoth);
  ASSERT_EQ(b.send(request, {}), 0);
  b.end.device().dealloc_mw(*window);
  pair.fabric.settle();
  EXPECT_EQ(only(b.end).status, IBV_WC_MW_BIND_ERR);
}

TEST_P(Window, AnotherQueuePairsPeer_MayNotUseIt) {
  ASSERT_EQ(post(b, bind(0, 100, kBoth)), IBV_WC_SUCCESS);
  Half other_a(a.end, a.config), other_b(b.end, b.config);
  for (Half* half : {&other_a, &other_b}) {
    Half& peer = half == &other_a ? other_b : other_a;
    ASSERT_EQ(Pair::init(*half) | Pair::to_rtr(*half, peer) | Pair::to_rts(*half), 0);
  }
  other_a.send({.opcode = IBV_WR_RDMA_READ, .remote_addr = b.end.address(0), .rkey = key}, 100'000, 8);
  pair.fabric.settle();
  EXPECT_EQ(only(a.end).status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(access(IBV_WR_RDMA_READ, 0, 8), IBV_WC_SUCCESS);
}

TEST_P(Window, ItsKey_IsNoLocalKey) {
  ASSERT_EQ(post(b, bind(0, 100, kBoth)), IBV_WC_SUCCESS);
  const ibv_sge sge{b.end.address(0), 8, key};
  b.send({.opcode = IBV_WR_RDMA_WRITE, .remote_addr = a.end.address(0), .rkey = a.end.rkey()}, std::span{&sge, 1});
  pair.fabric.settle();
  EXPECT_EQ(only(b.end).status, IBV_WC_LOC_PROT_ERR);
}

// Local operations complete in their turn, and each at once where nothing is before it.
TEST_P(Window, LocalOperationsBetweenOthers_CompleteInOrder) {
  for (std::uint64_t i = 0; i < 4; i++) {
    SendRequest local = i % 2 == 0 ? bind(0, 100, kBoth) : SendRequest{.opcode = IBV_WR_LOCAL_INV, .rkey = key};
    local.wr_id = 3 * i;
    if (i == 3) local.flags = IBV_SEND_FENCE;
    ASSERT_EQ(b.send(local, {}), 0);
    b.send({.wr_id = 3 * i + 1, .opcode = IBV_WR_RDMA_READ, .remote_addr = a.end.address(0), .rkey = a.end.rkey()},
           100'000, 5000);
    b.send({.wr_id = 3 * i + 2, .opcode = IBV_WR_RDMA_WRITE, .remote_addr = a.end.address(0), .rkey = a.end.rkey()}, 0,
           3000);
    if (i % 2 == 0) pair.fabric.settle();
  }
  pair.fabric.settle();
  const std::vector<ibv_wc> done = b.end.poll();
  ASSERT_EQ(done.size(), 12U);
  for (std::size_t i = 0; i < done.size(); i++) {
    EXPECT_EQ(done[i].wr_id, i);
    EXPECT_EQ(done[i].status, IBV_WC_SUCCESS);
  }
}

INSTANTIATE_TEST_SUITE_P(Services, Window, ::testing::Values(IBV_QPT_RC), [](const auto&) { return "Rc"; });

TEST(WindowOfType1, IsItsDomains_AndIsUnboundByARequestWithoutRegion) {
  Pair pair;
  Half &a = pair.a, &b = pair.b;
  Device& device = b.end.device();
  Mr* const region =
      device.reg_mr(b.end.pd(), b.end.at(0), 100, b.end.address(0), End::kAllAccess | IBV_ACCESS_MW_BIND).object;
  Mr* const window = device.alloc_mw(b.end.pd(), IBV_MW_TYPE_1).object;
  SendRequest request{.opcode = IBV_WR_BIND_MW,
                      .rkey = Device::rkey(*window) ^ 1,
                      .window = window,
                      .region = region,
                      .bind_addr = b.end.address(0),
                      .bind_length = 100,
                      .bind_access = IBV_ACCESS_REMOTE_READ};
  for (int i = 0; i < 2; i++, request.rkey ^= 1) {
    b.send(request, {});
    pair.fabric.settle();
    EXPECT_EQ(only(b.end).status, IBV_WC_SUCCESS);
  }
  request.rkey = Device::rkey(*window);
  a.send({.opcode = IBV_WR_RDMA_READ, .remote_addr = b.end.address(0), .rkey = request.rkey}, 0, 8);
  pair.fabric.settle();
  EXPECT_EQ(only(a.end).status, IBV_WC_SUCCESS);
  request.region = nullptr;
  b.send(request, {});
  pair.fabric.settle();
  EXPECT_EQ(only(b.end).status, IBV_WC_SUCCESS);
  EXPECT_EQ(device.dereg_mr(*region), 0);
  a.send({.opcode = IBV_WR_RDMA_READ, .remote_addr = b.end.address(0), .rkey = request.rkey}, 0, 8);
  pair.fabric.settle();
  EXPECT_EQ(only(a.end).status, IBV_WC_REM_ACCESS_ERR);
}

// On a wire that loses packets, binding and invalidating happens once, whatever is sent again.
TEST(WindowsUnderLoss, RequestsInOrder_AreDoneOnce) {
  for (std::uint64_t seed = 1; seed <= 10; seed++) {
    Pair pair({}, seed);
    Half &a = pair.a, &b = pair.b;
    SCOPED_TRACE(seed);
    pair.fabric.wire().set_impairment({.loss = 0.1});
    Device& device = b.end.device();
    Mr* const region =
        device.reg_mr(b.end.pd(), b.end.at(0), 5000, b.end.address(0), End::kAllAccess | IBV_ACCESS_MW_BIND).object;
    Mr* const window = device.alloc_mw(b.end.pd(), IBV_MW_TYPE_2).object;
    const std::uint32_t key = Device::rkey(*window);
    for (std::uint64_t i = 0; i < 20; i++) {
      b.send({.wr_id = 3 * i,
              .opcode = IBV_WR_BIND_MW,
              .rkey = key,
              .window = window,
              .region = region,
              .bind_addr = b.end.address(0),
              .bind_length = 5000,
              .bind_access = IBV_ACCESS_REMOTE_READ},
             {});
      b.send({.wr_id = 3 * i + 1, .opcode = IBV_WR_RDMA_WRITE, .remote_addr = a.end.address(0), .rkey = a.end.rkey()},
             0, 5000);
      b.send({.wr_id = 3 * i + 2, .opcode = IBV_WR_LOCAL_INV, .rkey = key}, {});
    }
    pair.fabric.settle();
    const std::vector<ibv_wc> done = b.end.poll();
    ASSERT_EQ(done.size(), 60U) << seed;
    for (std::size_t i = 0; i < done.size(); i++) {
      EXPECT_EQ(done[i].wr_id, i);
      EXPECT_EQ(done[i].status, IBV_WC_SUCCESS);
    }
    EXPECT_EQ(region->windows, 0U);
  }
}

}  // namespace
}  // namespace bypass::rdma::test
