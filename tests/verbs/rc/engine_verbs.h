// EngineVerbs: libibverbs over software devices' engines that share a simulated wire, in virtual time. The verbs of the
// code under test end here (it stands in verbs.cc's place). What a device may do wrong, it does when it is told to.
//
//   EngineVerbs verbs(seed);  verbs.add_device();  verbs.add_device();   // "end0" at 10.9.0.1, "end1" at 10.9.0.2
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/verbs/verbs.h"
#include "softverbs/fabric.h"

namespace bypass::verbs {

class EngineVerbs {
 public:
  /// An errno for each call; 0: the call works.
  struct Errors {
    int open = 0, alloc_pd = 0, register_memory = 0, create_channel = 0, create_cq = 0, create_qp = 0;
    int to_init = 0, to_rtr = 0, to_rts = 0, to_err = 0;
    int arm = 0;
  };
  /// A request to send, as it was posted.
  struct Posted {
    ibv_wr_opcode opcode{};
    unsigned flags = 0;
    std::size_t bytes = 0;
    int pieces = 0;
  };
  struct End {
    std::string name;
    rdma::test::End* engine = nullptr;
    Errors errors;
    std::optional<std::size_t> refuse_sends_after, refuse_receives_after;                  // so many; then EINVAL
    bool silent = false;                                                                   // nothing completes any more
    enum class Hold : std::uint8_t { kNothing, kReceives, kSends } hold = Hold::kNothing;  // it does not tell of them
    bool poll_fails = false;                                                               // poll_cq says -1
    bool has_iova = true;                                                                  // ibv_reg_mr_iova
    std::uint32_t most_inline = 512;
    std::uint8_t reads = 0;  // and atomic operations that queue pairs may have under way, whatever they are told
    std::uint8_t link_layer = IBV_LINK_LAYER_ETHERNET;
    std::vector<Posted> posted;
    std::size_t doorbells = 0;
    std::size_t polls = 0;     // of completion queues
    int alive = 0;             // objects that were made and not given back
    ibv_qp_attr rtr{}, rts{};  // as the last queue pair was told
    [[nodiscard]] IpAddress address() const { return IpAddress{std::to_array(engine->gid().raw)}; }
  };

  explicit EngineVerbs(std::uint64_t seed = 1);
  EngineVerbs(const EngineVerbs&) = delete;
  EngineVerbs& operator=(const EngineVerbs&) = delete;
  ~EngineVerbs();

  End& add_device(const rdma::test::EndConfig& config = {});
  End& end(std::size_t i) { return *ends_[i]; }
  rdma::test::Fabric& fabric() { return fabric_; }
  [[nodiscard]] Instant now() const { return fabric_.now(); }
  /// Lets that much time pass: what is under way arrives, and events are passed on.
  void run_for(Duration time);
  /// The device reports an event: of its newest queue pair or completion queue, or of its port.
  void report(std::size_t end, ibv_event_type type, std::uint8_t port = 1);
  /// The device's driver has taken it away.
  void take_away(std::size_t end);
  void bring_back(std::size_t end);
  /// The newest queue pair goes to the error state by itself.
  void break_pair(std::size_t end);
  /// The same after that many more requests, of either end.
  struct Break {
    std::uint64_t requests;
    std::size_t end;
  };
  std::optional<Break> break_after;

 private:
  friend struct EngineCalls;
  struct Context;
  struct Channel;
  struct Queue;
  struct Pair;
  template <typename Base, typename Object>
  struct Wrapped;

  void hand_on_events();
  void count_request();

  rdma::test::Fabric fabric_;
  std::vector<std::unique_ptr<End>> ends_;
  std::vector<std::unique_ptr<Context>> contexts_;
};

}  // namespace bypass::verbs
