#include "runtime/links/prepare_links.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "config/config.h"
#include "fastpath/link/links_config.h"
#include "fastpath/link/peer_link.h"
#include "fastpath/link/peer_links.h"
#include "fastpath/reason.h"
#include "observe/region.h"
#include "os/log/log.h"
#include "os/os.h"
#include "runtime/links/link_words.h"
#include "runtime/process_graph.h"
#include "socket/shard.h"
#include "stack/context.h"

namespace bypass::runtime {

namespace {

using observe::Reason;

std::uint64_t random_number() {
  std::uint64_t value = 0;
  return os::fill_random(&value, sizeof value) ? value : 0;
}

/// Called with the shard's lock held, a few times a second at most.
void note_link(const fastpath::PeerLink& link) {
  const LinkWord word = word_of(link, g_process->config, g_process->ports, g_process->place);
  BYPASS_LOG_INFO("%s", word.log.data());
  if (word.reason != Reason::kNone)
    g_process->region.why(word.reason, -1, IPPROTO_TCP, {link.peer, 0}, word.detail.data());
}

/// Where there can be no links, a connection only has the reason noted for `bypass why`.
void report_no_links(void*, const tcp::Tcb& tcb) {
  constexpr auto kWhy = fastpath::Reason::kNotHere;
  const std::uint16_t port = tcb.path.port;
  for (const fastpath::Mover mover : {fastpath::Mover::kRc, fastpath::Mover::kShm})
    if (g_process->told.add({{}, port, mover, kWhy})) note_link(fastpath::refused_link(mover, {}, port, kWhy));
}

constexpr Hooks kNoLinks{.plain = report_no_links};

}  // namespace

/// Called before any connection is made: each connection is asked whether it may be framed.
void prepare_links(Process& p, Stack& stack, Memory& memory, fastpath::PeerTable* table) {
  const auto wants = [&p](const PortConfig& port) { return p.config.wants_links(port); };
  const bool rdma = std::any_of(p.config.ports.begin(), p.config.ports.end(), wants);
  const bool shm = !p.config.ports.empty() && p.place != 0;
  if (!rdma && !shm) {
    p.shard.context().hooks = &kNoLinks;
    return;
  }
  fastpath::LinksConfig config;
  config.capabilities = static_cast<std::uint8_t>((rdma ? fastpath::kCapRoce : 0) | (shm ? fastpath::kCapShm : 0));
  config.place = shm ? p.place : 0;
  config.random = random_number;
  config.routed_peers = p.rdma_peers;
  config.note = note_link;
  config.table = table;
  p.links = std::make_unique<fastpath::PeerLinks>(stack.tcp(), memory, config);
  if (p.links->valid()) p.shard.use_links(*p.links);
}

}  // namespace bypass::runtime
