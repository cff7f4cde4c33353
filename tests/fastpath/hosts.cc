#include "fastpath/hosts.h"

#include <algorithm>
#include <string>

namespace bypass::fastpath::test {
namespace {

constexpr std::uint8_t kRingLog2 = kMinRingLog2;

}  // namespace

Hosts::Hosts(std::uint64_t seed, const HostsConfig& config)
    : config_(config), random_(seed), given_up_(config.connections) {
  constexpr std::uint64_t kLine = 64;
  rings_ = (sizeof(LinkBlock) + config.connections * sizeof(CreditBlock) + kLine - 1) / kLine * kLine;
  config_.link.memory_bytes = rings_ + (config.connections << kRingLog2);
  for (End& end : ends_) end.buffers.resize(config.connections << config.buffer_log2);
  for (std::size_t i = 0; i < config.connections; i++) {
    const bool first_opens = random_.chance(0.5);
    for (std::size_t e = 0; e < 2; e++) {
      const auto buffer = std::span(ends_[e].buffers).subspan(i << config.buffer_log2, 1ULL << config.buffer_log2);
      auto stream = std::make_unique<Stream>(config_, (e == 0) == first_opens, buffer);
      stream->total = random_.below(config.bytes + 1);
      ends_[e].streams.push_back(std::move(stream));
    }
  }
  connect_link();
}

void Hosts::connect_link() {
  for (End& end : ends_) {
    for (auto& stream : end.streams) stream->listed = false, stream->lane.queued = 0;
    end.link = LinkEnd(config_.window);
  }
  joint_.reset();
  std::span<const std::byte> buffers[2] = {ends_[0].buffers, ends_[1].buffers};
  joint_ = config_.join ? config_.join(config_.link.memory_bytes, buffers)
                        : std::make_unique<SimJoint>(random_.next(), config_.link);
  joint_->advance(now_);
  link_id_++;
}

LaneAddress Hosts::address(std::size_t i) const {
  LaneAddress at;
  at.lane = static_cast<std::uint16_t>(i);
  at.ring_log2 = kRingLog2;
  at.ring = rings_ + (i << kRingLog2);
  at.credit = sizeof(LinkBlock) + i * sizeof(CreditBlock);
  return at;
}

// --- Programs

void Hosts::write(std::size_t e, std::size_t i) {
  Stream& s = *ends_[e].streams[i];
  if (s.lane.aborted() || s.fin) return;
  s.lane.look(joint_->end(e).memory());
  const std::uint64_t room = s.buffer.size() - (s.lane.end() - s.lane.una());
  const std::uint64_t n = std::min({room, s.total - s.lane.end(), random_.below(3000)});
  for (std::uint64_t k = 0; k < n; k++)
    s.buffer[(s.lane.end() + k) & (s.buffer.size() - 1)] = byte_at(i, e, s.lane.end() + k);
  s.lane.write(n);
  moved_ += n;
  if (room == 0) s.lane.wait_for_buffer();
  if (s.lane.end() == s.total && random_.chance(0.5)) {
    s.fin = true;
    s.lane.shutdown_send();
  }
}

void Hosts::read(std::size_t e, std::size_t i) {
  Stream& s = *ends_[e].streams[i];
  const auto next = s.lane.readable();
  const std::uint64_t n = std::min(next.bytes, random_.below(4000));
  if (n == 0) return;
  for (std::uint64_t k = 0; k < n; k++) {
    std::byte byte;
    if (next.from == Lane::From::kTcp) {
      byte = s.received.front();
      s.received.pop_front();
    } else {
      byte = joint_->end(e).memory()[s.lane.local().ring + next.position + k];
    }
    s.corrupt = s.corrupt || byte != byte_at(i, 1 - e, s.read);
    s.read++;
  }
  if (next.from == Lane::From::kRing) lane_bytes_ += n;
  moved_ += n;
  s.lane.consume(n);
}

// --- TCP

void Hosts::send_records(std::size_t e, std::size_t i) {
  Stream& s = *ends_[e].streams[i];
  Stream& peer = *ends_[1 - e].streams[i];
  Record record;
  std::array<std::byte, kMaxControl> room;
  while (!s.end_sent && peer.tcp.size() < 8192 && s.lane.next_record(record, 2000)) {
    const std::size_t n = encode(record, room);
    peer.tcp.insert(peer.tcp.end(), room.begin(), room.begin() + static_cast<std::ptrdiff_t>(n));
    moved_++;
    if (record.type != RecordType::kData) continue;
    for (std::uint32_t k = 0; k < record.length; k++)
      peer.tcp.push_back(s.buffer[(record.value + k) & (s.buffer.size() - 1)]);
    s.lane.on_tcp_acked(record.value + record.length);
  }
  if (s.lane.finished() && !s.end_sent) s.end_sent = peer.tcp_closed = true;
  if (s.lane.aborted()) peer.reset = true;
}

void Hosts::receive_tcp(std::size_t e, std::size_t i) {
  Stream& s = *ends_[e].streams[i];
  if (s.reset) return s.lane.abort();
  std::vector<std::byte> piece(std::min<std::size_t>(s.tcp.size(), random_.below(1500)));
  std::copy_n(s.tcp.begin(), piece.size(), piece.begin());
  s.tcp.erase(s.tcp.begin(), s.tcp.begin() + static_cast<std::ptrdiff_t>(piece.size()));
  moved_ += piece.size();
  for (std::span<const std::byte> rest = piece;;) {
    const Decoder::Step step = s.decoder.next(rest);
    const auto data = rest.first(step.taken).last(step.data);
    rest = rest.subspan(step.taken);
    if (step.event == Decoder::Event::kMore) break;
    if (step.event == Decoder::Event::kBad) return s.lane.abort(Reason::kBadRecord);
    if (step.event == Decoder::Event::kRecord) {
      s.lane.on_record(step.record);
      after_record(e, i);
    } else {
      s.received.insert(s.received.end(), data.begin(), data.end());
      s.lane.on_record({.type = RecordType::kData, .length = step.data});
    }
  }
  if (s.tcp.empty() && s.tcp_closed && !s.end_come) {
    s.end_come = true;
    s.lane.on_tcp_end();
  }
}

/// Decides what the caller of a lane decides: whether an offer is accepted, and what becomes of a link that is said to
/// be dead.
void Hosts::after_record(std::size_t e, std::size_t i) {
  Stream& s = *ends_[e].streams[i];
  if (s.lane.offered()) {
    const bool good = s.lane.link() == link_id_ && ends_[e].link.state() == LinkState::kUp;
    s.listed = s.listed || good;
    good ? s.lane.accept(address(i), config_.link.memory_bytes) : s.lane.decline(Reason::kLinkError);
  }
  if (s.lane.link_suspect() && s.lane.link() == link_id_) {
    Table table{ends_[e]};
    ends_[e].link.fail(Reason::kPeerLinkDown, table);
    joint_->end(e).fail();
  }
}

// --- Lanes

void Hosts::open(std::size_t i) {
  for (std::size_t e = 0; e < 2; e++) {
    Stream& s = *ends_[e].streams[i];
    const bool may_offer = s.lane.detached() && !s.lane.aborted() && !s.end_sent && s.tried_link != link_id_;
    if (!may_offer || !s.lane.opens() || ends_[e].link.state() != LinkState::kUp) continue;
    s.tried_link = link_id_;
    s.listed = true;
    s.lane.offer(link_id_, address(i), config_.link.memory_bytes);
  }
}

void Hosts::unlist(std::size_t e, std::size_t i) {
  Stream& s = *ends_[e].streams[i];
  if (!s.listed || !s.lane.detached()) return;
  Table table{ends_[e]};
  ends_[e].link.dequeue(static_cast<std::uint16_t>(i), table);
  s.listed = false;
}

void Hosts::turn(std::size_t e, std::size_t i) {
  Stream& s = *ends_[e].streams[i];
  Table table{ends_[e]};
  if (random_.chance(0.4)) write(e, i);
  if (random_.chance(0.4)) read(e, i);
  if (s.lane.can_cut() && random_.chance(0.3)) s.lane.cut();
  if (config_.leaves && random_.chance(0.002)) s.lane.leave();
  send_records(e, i);
  if (random_.chance(0.5)) receive_tcp(e, i);
  unlist(e, i);
  ends_[e].link.enqueue(static_cast<std::uint16_t>(i), table);
}

void Hosts::step() {
  now_ += Duration{static_cast<std::int64_t>(random_.below(3000))};
  joint_->advance(now_);
  for (std::size_t i = 0; i < config_.connections; i++) {
    if (random_.chance(0.2)) open(i);
    for (std::size_t e = 0; e < 2; e++) turn(e, i);
  }
  for (std::size_t e = 0; e < 2; e++) {
    Table table{ends_[e]};
    ends_[e].link.poll(joint_->end(e), table);
    ends_[e].link.flush(joint_->end(e), table);
  }
  const bool both_final = ends_[0].link.state() == LinkState::kDrained && ends_[1].link.state() == LinkState::kDrained;
  const auto attached = [&](const End& end) {
    return std::any_of(end.streams.begin(), end.streams.end(),
                       [](const auto& s) { return s->listed && !s->lane.released(); });
  };
  if (deaths_ < config_.kills && !joint_->dead() && random_.chance(0.05)) {
    deaths_++;
    joint_->kill_after(random_.below(20));
  }
  // The old link's memory is needed until its rings are read.
  const auto unread = [](const End& end) {
    return std::any_of(end.streams.begin(), end.streams.end(), [](const auto& s) {
      return s->listed && !s->lane.detached() && !s->end_sent && !s->lane.aborted();
    });
  };
  if (both_final && !attached(ends_[0]) && !attached(ends_[1]) && !unread(ends_[0]) && !unread(ends_[1]))
    connect_link();
}

bool Hosts::done() const {
  for (std::size_t e = 0; e < 2; e++) {
    for (std::size_t i = 0; i < config_.connections; i++) {
      const Stream& s = *ends_[e].streams[i];
      if (!given_up_[i] && !(s.lane.at_eof() && s.end_sent && s.end_come)) return false;
    }
  }
  return true;
}

bool Hosts::run() {
  for (unsigned still = 0; still < 3000 && !done(); still++) {
    const std::uint64_t before = moved_;
    step();
    if (moved_ != before) still = 0;
  }
  return report().empty();
}

std::string Hosts::report() const {
  std::string text;
  for (std::size_t i = 0; i < config_.connections; i++) {
    for (std::size_t e = 0; e < 2 && !given_up_[i]; e++) {
      const Stream& s = *ends_[e].streams[i];
      const Stream& peer = *ends_[1 - e].streams[i];
      const bool all = s.lane.at_eof() && s.read == peer.total && s.end_come;
      if (all && !s.corrupt && !s.lane.aborted()) continue;
      text += "connection " + std::to_string(i) + " end " + std::to_string(e) + ": read " + std::to_string(s.read) +
              " of " + std::to_string(peer.total) + (s.corrupt ? ", wrong bytes" : "") + ", " +
              to_string(s.lane.reason()) + ", tx path " + std::to_string(static_cast<int>(s.lane.tx_path())) +
              ", rx path " + std::to_string(static_cast<int>(s.lane.rx_path())) + "\n";
    }
  }
  return text;
}

}  // namespace bypass::fastpath::test
