#include "runtime/life/from_config.h"

#include <cstdint>

#include "runtime/process_graph.h"
#include "socket/policy.h"

namespace bypass::runtime {

namespace {

tcp::EngineConfig engine_config(const Config& config) {
  tcp::EngineConfig tcp;
  tcp.rto_min = config.tcp.rto_min;
  tcp.rto_max = config.tcp.rto_max;
  tcp.delayed_ack = config.tcp.delayed_ack;
  tcp.time_wait = config.tcp.time_wait;
  tcp.syn_retries = config.tcp.syn_retries;
  tcp.syn_queue = config.tcp.syn_queue;
  tcp.syn_cookies = config.tcp.syn_cookies;
  tcp.orphan_retries = config.tcp.orphan_retries;
  tcp.max_orphans = config.tcp.max_orphans;
  tcp.fin_wait2 = config.tcp.fin_wait2;
  tcp.retries2 = config.tcp.retries2;
  tcp.initial_window = config.tcp.initial_window;
  tcp.send_buffer = static_cast<std::uint32_t>(config.tcp.send_buffer);
  tcp.receive_buffer = static_cast<std::uint32_t>(config.tcp.receive_buffer);
  tcp.congestion = config.tcp.congestion == Congestion::kNewReno ? tcp::Congestion::kNewReno : tcp::Congestion::kCubic;
  return tcp;
}

}  // namespace

StackConfig stack_config(const Config& config) {
  StackConfig stack;
  stack.tcp = engine_config(config);
  stack.tso = config.tso;
  stack.checksum_offload = config.checksum_offload;
  stack.fragment_memory = static_cast<std::uint32_t>(config.fragment_memory);
  return stack;
}

socket::Budgets budgets_of(const Config& config) {
  const auto bound = [](Duration time) { return time == kForever ? Duration(-1) : time; };
  socket::Budgets budgets;
  budgets.spin = bound(config.spin);
  budgets.yield = bound(config.yield);
  budgets.kernel_poll = config.kernel_poll;
  budgets.send_buffer = static_cast<std::uint32_t>(config.tcp.send_buffer);
  budgets.receive_buffer = static_cast<std::uint32_t>(config.tcp.receive_buffer);
  budgets.local_after = static_cast<std::uint32_t>(config.local_after);
  return budgets;
}

}  // namespace bypass::runtime
