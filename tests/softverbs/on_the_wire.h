// One device on a wire, and a stranger whose packets a test makes by hand and whose answers it reads.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "softverbs/fabric.h"
#include "softverbs/roce_frame.h"

namespace bypass::rdma::test {

using sim::Bytes;

/// One device; the peer is a bare port, 10.9.0.2, whose frames the test makes.
class OnTheWire : public ::testing::Test {
 protected:
  OnTheWire() : end(fabric.add_end()), half(end, config()), probe(add_probe()) {
    end.device().set_neighbour(ip("10.9.0.2"), mac(2));
    Pair::init(half);
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTR;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.sgid_index = 1;
    attr.ah_attr.grh.hop_limit = 1;  // as rdma-core's examples have it
    std::ranges::copy(ip("10.9.0.2").bytes, attr.ah_attr.grh.dgid.raw);
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = 0x77;
    attr.rq_psn = 100;
    attr.max_dest_rd_atomic = 4;
    attr.min_rnr_timer = 12;
    half.modify(attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    Pair::to_rts(half);
  }
  static PairConfig config() { return {.psn = 500}; }
  sim::SimPort& add_probe() {
    sim::PortConfig port;
    port.mac = mac(2);
    return fabric.wire().add_port(port);
  }

  std::vector<Bytes> sent() {
    fabric.run_for(1us);
    std::vector<Bytes> all;
    std::array<Packet*, 16> packets;
    for (std::size_t n; (n = probe.receive(0, packets)) != 0;) {
      for (std::size_t i = 0; i < n; i++) all.emplace_back(packets[i]->data, packets[i]->data + packets[i]->len);
      probe.free(std::span{packets}.first(n));
    }
    return all;
  }
  std::vector<Bytes> exchange(const Bytes& frame) {
    fabric.wire().inject(0, frame);
    return sent();
  }
  std::vector<Bytes> exchange(std::uint8_t opcode, std::uint32_t psn, std::span<const std::byte> rest = {}) {
    return exchange(roce_frame({.opcode = opcode, .psn = psn}, rest));
  }
  template <typename Header>
  static const Header& at(const Bytes& frame, std::size_t offset) {
    return *reinterpret_cast<const Header*>(frame.data() + offset);
  }
  static const Bth& bth(const Bytes& frame) { return at<Bth>(frame, 42); }
  static std::uint8_t syndrome(const Bytes& frame) {
    return static_cast<std::uint8_t>(at<Aeth>(frame, 54).syndrome_msn >> 24);
  }
  // "opcode/psn", with the syndrome where there is one
  static std::string show(const std::vector<Bytes>& frames) {
    std::string text;
    for (const Bytes& frame : frames) {
      char one[64];
      std::snprintf(one, sizeof one, "%02x/%u", bth(frame).opcode, bth(frame).psn & kPsnMask);
      text += (text.empty() ? "" : " ") + std::string(one);
      if (bth(frame).opcode == 0x11) std::snprintf(one, sizeof one, ":%02x", syndrome(frame)), text += one;
    }
    return text;
  }

  Fabric fabric;
  End& end;
  Half half;
  sim::SimPort& probe;
};

}  // namespace bypass::rdma::test
