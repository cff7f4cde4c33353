#include "backends/packet/flows/flow_map.h"

#include <netinet/in.h>

#include "backends/packet/libc.h"

namespace bypass::packet {
namespace {

bool is_every_frame(const FlowKey& key) {
  return key == FlowKey{};
}

// The name of a flow in claims and messages.
std::string flow_text(const FlowSpec& flow) {
  if (flow.protocol == 0) return "every frame";
  return (flow.protocol == IPPROTO_TCP ? "TCP port " : "UDP port ") + std::to_string(flow.local.port) + " of " +
         text_of(flow.local.address);
}

}  // namespace

bool FlowMap::create(const std::string& interface) {
  interface_ = interface;
  return table_.create();
}

bool FlowMap::steer(const FlowSpec& flow, bool add_it) {
  const auto key = key_of(flow);
  return key && (add_it ? add(*key, flow) : remove(*key));
}

bool FlowMap::add(const FlowKey& key, const FlowSpec& flow) {
  Claim claim;
  const bool shareable = !is_every_frame(key) && key.remote_port != 0;
  if (!shareable && !claims_.contains(key) && !claim.take(interface_, flow_text(flow))) {
    const std::string text =
        interface_ + ": another process" + claim.holder() + " has " + flow_text(flow) + " steered to it";
    host->log(LogLevel::kWarn, text.c_str());
    return false;
  }
  if (!table_.add(key)) return false;
  if (!shareable) claims_.emplace(key, std::move(claim));
  return true;
}

bool FlowMap::remove(const FlowKey& key) {
  const bool removed = table_.remove(key);
  claims_.erase(key);
  return removed;
}

}  // namespace bypass::packet
