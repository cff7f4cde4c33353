// A fabric of software RDMA devices on one simulated wire, in virtual time.
//
//   Fabric fabric;  End& a = fabric.add_end();  End& b = fabric.add_end();
//   Pair pair{fabric, IBV_QPT_RC};  pair.a.send({.opcode = IBV_WR_RDMA_WRITE, …});  fabric.settle();
#pragma once

#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/sim/sim_wire.h"
#include "softverbs/engine/device.h"
#include "stack/world.h"

namespace bypass::rdma::test {

/// Rights of memory that a peer may not read, and may not use by atomic operations.
inline constexpr unsigned kNoReads = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
inline constexpr unsigned kNoAtomics = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

using namespace std::chrono_literals;
using bypass::test::ip;
using bypass::test::mac;

struct EndConfig {
  std::uint32_t mtu = 1500;
  std::uint32_t buffer_bytes = 2048;
  std::size_t buffers = 4096;
  std::size_t rx_segment = 0;
  PortCaps caps{};
  DeviceConfig device{};
};

/// A device on the wire, with one protection domain, one region of memory and one completion queue for everything.
class End {
 public:
  static constexpr std::size_t kMemory = std::size_t{1} << 20;
  static constexpr unsigned kAllAccess =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

  End(sim::Wire& wire, unsigned number, const EndConfig& config);
  ~End();
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  Device& device() { return *device_; }
  sim::SimPort& port() { return port_; }
  Pd& pd() { return *pd_; }
  Cq& cq() { return *cq_; }
  Mr& mr() { return *mr_; }
  /// GID 1: the IPv4 address.
  [[nodiscard]] ibv_gid gid(std::size_t index = 1) const { return device_->gids()[index]; }
  [[nodiscard]] const Counters& counters() const { return device_->counters(); }

  std::byte* at(std::size_t offset) { return memory_.get() + offset; }
  std::uint64_t address(std::size_t offset) { return reinterpret_cast<std::uintptr_t>(at(offset)); }
  ibv_sge sge(std::size_t offset, std::size_t length) {
    return {address(offset), static_cast<std::uint32_t>(length), Device::lkey(*mr_)};
  }
  std::uint32_t rkey() { return Device::rkey(*mr_); }
  /// Bytes that show where they are from.
  void fill(std::size_t offset, std::size_t length, unsigned salt);
  bool holds(std::size_t offset, std::size_t length, unsigned salt);

  Qp& add_qp(QpInit init);
  std::vector<ibv_wc> poll() { return poll(cq()); }
  std::vector<ibv_wc> poll(Cq& cq);
  std::vector<AsyncEvent> events();

 private:
  sim::SimPort& port_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<std::byte[]> memory_;
  Pd* pd_;
  Mr* mr_;
  Cq* cq_;
};

class Fabric {
 public:
  explicit Fabric(std::uint64_t seed = 1) : wire_(seed) {}

  End& add_end(const EndConfig& config = {});
  End& end(std::size_t index) { return *ends_[index]; }
  sim::Wire& wire() { return wire_; }
  [[nodiscard]] Instant now() const { return now_; }

  /// Runs until `done` holds; false when `limit` passed first.
  bool run_until(const std::function<bool()>& done, Duration limit);
  void run_for(Duration limit) {
    run_until([] { return false; }, limit);
  }
  /// How the ends poll: as a program that polls all the time, or as one that is away.
  Acks acks = Acks::kSend;
  /// Runs until nothing is under way or due within `limit`.
  void settle(Duration limit = 10s);

 private:
  void turn();
  [[nodiscard]] Instant next_moment();

  sim::Wire wire_;
  std::vector<std::unique_ptr<End>> ends_;
  Instant now_ = Instant{} + 1s;
};

/// The parameters of a connection's ends; a test changes those that it is about.
struct PairConfig {
  ibv_qp_type type = IBV_QPT_RC;
  ibv_mtu mtu = IBV_MTU_1024;
  std::uint32_t depth = 128, sges = 4, inline_bytes = 128;
  std::uint8_t timeout = 14, retries = 7, rnr_retries = 7, rnr_timer = 1, rd_atomic = 4;
  unsigned access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  bool sq_sig_all = true;
  bool use_srq = false;
  Srq* srq = nullptr;    // one that there is already
  Xrcd* xrcd = nullptr;  // of XRC_RECV, the same
  std::uint32_t qkey = 0x11111111;
  std::uint32_t psn = 0xfffff0;  // the numbers wrap early
  std::size_t gid = 1;
  EndConfig end{};
};

/// One end of a connection.
class Half {
 public:
  Half(End& device_end, const PairConfig& config);

  /// With elements of the end's region: bytes [offset, offset + length).
  int send(SendRequest request, std::size_t offset, std::size_t length);
  int send(const SendRequest& request, std::span<const ibv_sge> sges);
  int receive(std::uint64_t wr_id, std::size_t offset, std::size_t length);
  [[nodiscard]] ibv_qp_state state() const { return Device::state(*qp); }
  int modify(ibv_qp_attr attr, unsigned mask) { return end.device().modify_qp(*qp, attr, mask); }
  int to_state(ibv_qp_state state);
  [[nodiscard]] const Counters& counters() const { return end.counters(); }

  End& end;
  PairConfig config;
  Srq* srq = nullptr;
  Xrcd* xrcd = nullptr;
  std::uint32_t remote_srqn = 0;  // XRC_SEND: where requests go
  Qp* qp = nullptr;
  Ah* ah = nullptr;  // of datagrams: to the other half
};

/// Two connected queue pairs on two devices. Of XRC, `a` sends and `b` receives.
class Pair {
 public:
  explicit Pair(const PairConfig& pair_config = {}, std::uint64_t seed = 1);
  explicit Pair(ibv_qp_type type) : Pair(PairConfig{.type = type}) {}

  static int init(Half& half);
  static int to_rtr(Half& half, Half& peer);
  static int to_rts(Half& half);

  PairConfig config;
  Fabric fabric;
  Half a, b;
};

/// The only completion there is, or one with an impossible status.
ibv_wc only(End& end);
constexpr ibv_wc_status kNoStatus = static_cast<ibv_wc_status>(99);

}  // namespace bypass::rdma::test
