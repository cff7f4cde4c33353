#include "stack/tcp/script.h"

#include "stack/frame/checksum.h"
#include "stack/frame/wire.h"
#include "stack/tcp/input/options.h"

namespace bypass::test {
namespace {

using tcp::SeqNum;
using tcp::TcpHeader;

constexpr unsigned kPeerMac = 99;

HostConfig host_config(const Given& given) {
  HostConfig config;
  config.stack = given.stack;
  config.stack.tcp.secret[0] = 0x0123456789abcdef;
  config.stack.tcp.secret[1] = 0xfedcba9876543210;
  config.caps = given.caps;
  config.buffers = given.buffers;
  return config;
}

std::string flags_text(std::uint8_t flags) {
  std::string text;
  const char* names = "FSRP.U";
  for (int i = 0; i < 6; i++)
    if ((flags >> i & 1) != 0) text += names[i];
  return text;
}

void put32(std::vector<std::uint8_t>& to, std::uint32_t v) {
  for (int shift = 24; shift >= 0; shift -= 8) to.push_back(static_cast<std::uint8_t>(v >> shift));
}

}  // namespace

std::string pattern(std::size_t offset, std::size_t n) {
  std::string text(n, '\0');
  for (std::size_t i = 0; i < n; i++) text[i] = static_cast<char>('a' + (offset + i) % 23);
  return text;
}

Script::Script(const Given& given)
    : given_(given), host_(world_.add_host(host_config(given))), probe_(world_.add_probe(kPeerMac)) {
  pump();
  sent_.clear();
}

Script::~Script() {
  check();
}

void Script::new_peer(std::uint16_t port, std::uint32_t iss) {
  peer_port = port;
  peer_iss = iss;
  tcb_ = nullptr;
}

// --- The program

Script& Script::listen() {
  auto listener = engine().listen({host_.address(), local_port}, given_.backlog, given_.options, this);
  EXPECT_TRUE(listener.ok());
  listener_ = *listener;
  return *this;
}

Script& Script::connect(std::uint16_t from_port) {
  local_port = from_port;
  ctx().now = world_.now();
  auto tcb = engine().connect(ctx(), {host_.address(), from_port}, {ip("10.9.0.2"), peer_port}, given_.options, this);
  EXPECT_TRUE(tcb.ok());
  tcb_ = *tcb;
  local_port = engine().local(*tcb_).port;
  pump();
  return *this;
}

Script& Script::establish() {
  if (listener_ == nullptr) listen();
  Seg syn = seg().syn().seq(0).mss(given_.mss).window(given_.window);
  if (given_.sack) syn.sack_ok();
  if (given_.timestamps) syn.ts(1, 0);
  if (given_.scale) syn.scale(*given_.scale);
  inject(syn).expect(seg().syn().seq(0).ack(1));
  Seg ack = seg().seq(1).ack(1).window(given_.window >> given_.scale.value_or(0));
  if (given_.timestamps) ack.ts(2, 0);
  return inject(ack).accept().ignore_all();
}

Script& Script::establish_active() {
  connect().expect(seg().syn().seq(0));
  Seg syn = seg().syn().seq(0).ack(1).mss(given_.mss).window(given_.window);
  if (given_.sack) syn.sack_ok();
  if (given_.timestamps) syn.ts(1, 0);
  if (given_.scale) syn.scale(*given_.scale);
  return inject(syn).expect(seg().seq(1).ack(1).len(0)).ignore_all();
}

Script& Script::accept() {
  auto tcb = engine().accept(ctx(), *listener_, this);
  EXPECT_TRUE(tcb.ok());
  tcb_ = tcb.ok() ? *tcb : nullptr;
  pump();
  return *this;
}

Script& Script::write(std::size_t bytes, bool more) {
  ctx().now = world_.now();
  while (bytes != 0) {
    auto room = engine().reserve(*tcb_, bytes);
    if (!room.ok()) {
      ADD_FAILURE() << "write: error " << static_cast<int>(room.error());
      return *this;
    }
    std::size_t offset = static_cast<std::size_t>(tcb_->ring.end());
    for (auto& part : room->part) {
      const std::string text = pattern(offset, part.size());
      if (!text.empty()) std::memcpy(part.data(), text.data(), text.size());
      offset += part.size();
    }
    bytes -= room->size();
    engine().commit(ctx(), *tcb_, room->size(), more || bytes != 0);
  }
  pump();
  return *this;
}

std::string Script::read(std::size_t most) {
  ctx().now = world_.now();
  std::string text;
  while (engine().readable(*tcb_) != 0 && most != 0) {
    std::span<const std::byte> spans[8];
    const std::size_t n = engine().peek(*tcb_, spans);
    std::size_t taken = 0;
    for (std::size_t i = 0; i < n && taken < most; i++) {
      const std::size_t part = std::min(most - taken, spans[i].size());
      text.append(reinterpret_cast<const char*>(spans[i].data()), part);
      taken += part;
    }
    engine().consume(ctx(), *tcb_, taken);
    most -= taken;
  }
  pump();
  return text;
}

Script& Script::shutdown_send() {
  ctx().now = world_.now();
  engine().shutdown_send(ctx(), *tcb_);
  pump();
  return *this;
}

Script& Script::close() {
  ctx().now = world_.now();
  engine().close(ctx(), *tcb_);
  tcb_ = nullptr;
  pump();
  return *this;
}

Script& Script::abort() {
  ctx().now = world_.now();
  engine().abort(ctx(), *tcb_);
  tcb_ = nullptr;
  pump();
  return *this;
}

Script& Script::abort_orphans() {
  ctx().now = world_.now();
  engine().abort_orphans(ctx());
  pump();
  return *this;
}

Script& Script::set_options(const tcp::Options& options) {
  ctx().now = world_.now();
  engine().set_options(ctx(), *tcb_, options);
  pump();
  return *this;
}

Script& Script::push() {
  ctx().now = world_.now();
  engine().push(ctx(), *tcb_);
  pump();
  return *this;
}

// --- The wire

sim::Bytes Script::build(const Seg& s) const {
  std::vector<std::uint8_t> options = s.raw_options_;
  if (s.mss_)
    options.insert(options.end(), {2, 4, static_cast<std::uint8_t>(*s.mss_ >> 8), static_cast<std::uint8_t>(*s.mss_)});
  if (s.sack_permitted_) options.insert(options.end(), {4, 2});
  if (s.scale_) options.insert(options.end(), {3, 3, *s.scale_});
  if (s.ts_value_) {
    options.insert(options.end(), {1, 1, 8, 10});
    put32(options, *s.ts_value_);
    put32(options, s.ts_echo_.value_or(0));
  }
  if (!s.sack_.empty()) {
    options.insert(options.end(), {1, 1, 5, static_cast<std::uint8_t>(2 + 8 * s.sack_.size())});
    for (const auto& [begin, end] : s.sack_) {
      put32(options, host_iss + static_cast<std::uint32_t>(begin));
      put32(options, host_iss + static_cast<std::uint32_t>(end));
    }
  }
  while (options.size() % 4 != 0) options.push_back(1);
  const std::string payload =
      !s.text_.empty() ? s.text_ : pattern(static_cast<std::size_t>(s.seq_.value_or(1) - 1), s.len_.value_or(0));
  sim::Bytes l4(sizeof(TcpHeader) + options.size() + payload.size());
  auto& h = *reinterpret_cast<TcpHeader*>(l4.data());
  h.source = peer_port;
  h.destination = s.port_ != 0 ? s.port_ : local_port;
  h.seq = peer_iss + static_cast<std::uint32_t>(s.seq_.value_or(0));
  h.ack = s.ack_ ? host_iss + static_cast<std::uint32_t>(*s.ack_) : 0;
  h.data_offset = static_cast<std::uint8_t>((sizeof(TcpHeader) + options.size()) / 4 << 4);
  h.flags = s.flags_.value_or(tcp::kAck);
  h.window = static_cast<std::uint16_t>(
      s.window_.value_or(std::min<std::uint32_t>(given_.window >> given_.scale.value_or(0), 65535)));
  h.urgent = 0;
  // Empty ranges may be null, which memcpy does not take.
  if (!options.empty()) std::memcpy(l4.data() + sizeof(TcpHeader), options.data(), options.size());
  if (!payload.empty()) std::memcpy(l4.data() + sizeof(TcpHeader) + options.size(), payload.data(), payload.size());
  h.checksum.set_raw(0);
  h.checksum.set_raw(checksum_finish(
      checksum(l4.data(), l4.size()) +
      checksum_pseudo(ip("10.9.0.2"), ip("10.9.0.1"), wire::kProtocolTcp, static_cast<std::uint32_t>(l4.size()))));
  return ipv4_frame({.from_mac = mac(kPeerMac), .protocol = wire::kProtocolTcp}, l4);
}

Script& Script::inject(const Seg& segment) {
  return burst({segment});
}

Script& Script::burst(std::initializer_list<Seg> segments) {
  for (const Seg& s : segments) world_.wire().inject(0, build(s));
  pump();
  return *this;
}

Script& Script::announce_all(std::initializer_list<const char*> addresses) {
  for (const char* address : addresses)
    world_.wire().inject(
        0, arp_frame(
               {.from_mac = mac(kPeerMac), .sender_mac = mac(kPeerMac), .sender_ip = address, .target_ip = address}));
  pump();
  return *this;
}

// One turn of the host. Its ARP requests are answered, and its segments are kept.
void Script::pump() {
  for (int i = 0; i < 4; i++) {
    world_.wire().set_now(world_.now());
    host_.poll(world_.now());
    const auto frames = world_.read(probe_);
    for (const auto& frame : frames) take_frame(frame);
    if (frames.empty()) break;
  }
  check();
}

void Script::check() {
  const char* broken = engine().violated();
  EXPECT_EQ(broken, nullptr) << broken;
}

void Script::answer_arp(const sim::Bytes& frame) {
  if (is_announcement(frame)) return;
  world_.wire().inject(0, arp_frame({.operation = 2,
                                     .to_mac = mac(1),
                                     .from_mac = mac(kPeerMac),
                                     .sender_mac = mac(kPeerMac),
                                     .sender_ip = "10.9.0.2",
                                     .target_mac = mac(1),
                                     .target_ip = "10.9.0.1"}));
}

void Script::take_frame(const sim::Bytes& frame) {
  const auto& ethernet = *reinterpret_cast<const wire::Ethernet*>(frame.data());
  if (ethernet.type == wire::kEtherTypeArp) return answer_arp(frame);
  const auto& ip_header = *reinterpret_cast<const wire::Ipv4*>(frame.data() + 14);
  if (ip_header.protocol != wire::kProtocolTcp) return;
  const std::size_t at = 14 + ip_header.header_len();
  const std::size_t l4_len = ip_header.total_len - ip_header.header_len();
  Sent sent;
  sent.header = *reinterpret_cast<const TcpHeader*>(frame.data() + at);
  const std::size_t header_len = sent.header.header_len();
  auto options = tcp::parse_options({frame.data() + at + sizeof(TcpHeader), header_len - sizeof(TcpHeader)});
  EXPECT_TRUE(options.ok());
  sent.options = *options;
  sent.text.assign(reinterpret_cast<const char*>(frame.data() + at + header_len), l4_len - header_len);
  sent.at = world_.now();
  EXPECT_TRUE(checksum_is_good(
      checksum(frame.data() + at, l4_len) +
      checksum_pseudo(ip("10.9.0.1"), ip("10.9.0.2"), wire::kProtocolTcp, static_cast<std::uint32_t>(l4_len))));
  if ((sent.header.flags & tcp::kSyn) != 0) host_iss = sent.header.seq;
  sent_.push_back(std::move(sent));
}

std::string Script::Sent::describe(const Script& script) const {
  std::string line = flags_text(header.flags) + " seq " +
                     std::to_string(static_cast<std::int32_t>(header.seq - script.host_iss)) + " len " +
                     std::to_string(text.size());
  if ((header.flags & tcp::kAck) != 0)
    line += " ack " + std::to_string(static_cast<std::int32_t>(header.ack - script.peer_iss));
  return line + " window " + std::to_string(header.window) + " at " + std::to_string((at - Instant{}).count() / 1000) +
         " us";
}

namespace {

template <typename Want, typename Got>
void same(const char* field, const std::optional<Want>& want, const Got& got, const std::string& what) {
  if (!want) return;
  EXPECT_EQ(static_cast<std::int64_t>(got), static_cast<std::int64_t>(*want)) << field << " of " << what;
}

}  // namespace

void Script::compare(const Seg& want, const Sent& got) {
  const std::string what = got.describe(*this);
  const auto& h = got.header;
  const bool push = want.flags_ && (*want.flags_ & tcp::kPsh) != 0;
  const auto flags = static_cast<std::uint8_t>(push ? h.flags : h.flags & ~tcp::kPsh);
  // A segment may have an ACK flag that the script does not mention.
  const auto silent = static_cast<std::uint8_t>(want.ack_ ? 0 : h.flags & tcp::kAck);
  if (want.flags_) {
    EXPECT_EQ(flags_text(flags), flags_text(static_cast<std::uint8_t>(*want.flags_ | silent))) << what;
  }
  same("seq", want.seq_, static_cast<std::int32_t>(h.seq - host_iss), what);
  same("ack", want.ack_, static_cast<std::int32_t>(h.ack - peer_iss), what);
  same("length", want.len_, got.text.size(), what);
  same("window", want.window_, h.window, what);
  same("MSS", want.mss_, got.options.mss, what);
  same("window scale", want.scale_, got.options.window_scale, what);
  same("SACK permitted", want.sack_permitted_, got.options.sack_permitted, what);
  same("timestamp echo", want.ts_echo_, got.options.ts_echo, what);
  if (!want.text_.empty()) {
    EXPECT_EQ(got.text, want.text_) << what;
  }
  if (want.sack_.empty()) return;
  ASSERT_EQ(got.options.sack_count, want.sack_.size()) << what;
  for (std::size_t i = 0; i < want.sack_.size(); i++) {
    EXPECT_EQ(got.options.sack[i].begin.v - peer_iss, want.sack_[i].first) << what;
    EXPECT_EQ(got.options.sack[i].end.v - peer_iss, want.sack_[i].second) << what;
  }
}

Script& Script::expect(const Seg& segment) {
  if (sent_.empty()) {
    ADD_FAILURE() << "nothing was sent by " << now_since_start().count() / 1000 << " us";
    return *this;
  }
  compare(segment, sent_.front());
  sent_.pop_front();
  return *this;
}

Script& Script::no_push() {
  EXPECT_TRUE(sent_.empty() || (sent_.front().header.flags & tcp::kPsh) == 0) << sent_.front().describe(*this);
  return *this;
}

Script& Script::nothing_more() {
  for (const auto& sent : sent_) ADD_FAILURE() << "unexpected " << sent.describe(*this);
  sent_.clear();
  return *this;
}

Script& Script::ignore_all() {
  sent_.clear();
  return *this;
}

// --- Time

Script& Script::link_up() {
  ctx().now = world_.now();
  host_.stack().on_link_up(ctx(), 0);
  pump();
  return *this;
}

Script& Script::at(Duration since_start) {
  const Instant end = Instant{} + since_start;
  pump();
  while (world_.now() < end) {
    const Instant next = std::min(end, std::max(host_.next_turn(world_.now()), world_.now() + 1us));
    world_.run_for(next - world_.now());
    pump();
  }
  return *this;
}

}  // namespace bypass::test
