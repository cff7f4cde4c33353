#include "stack/ip/ip_fragments.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "stack/copy.h"
#include "stack/frame/wire.h"
#include "stack/ip/ipv4.h"
#include "stack/memory/arena_packet.h"

namespace bypass {
namespace {

constexpr std::uint32_t kMaxPacket = 65535;
constexpr std::uint32_t kTcpFlagsEnd = 16;        // RFC 1858 §3.2.1: the shortest first fragment of TCP
constexpr std::uint32_t kTcpOverlapOffset = 8;    // RFC 3128 §2.1: a second fragment that would overwrite the flags
constexpr unsigned kNotEct = 0, kCongestion = 3;  // codepoints of RFC 3168 §5

// While a fragment waits here, the packet's scratch fields hold its place: seq and payload_len are its range, offset is
// where it lies in the frame. The first fragment of a run also knows the run's last one.
std::uint32_t end_of(const Packet& fragment) {
  return fragment.seq + fragment.payload_len;
}
Packet* run_tail(const Packet& first) {
  Packet* tail;
  static_assert(sizeof first.scratch == sizeof tail);
  std::memcpy(&tail, first.scratch, sizeof tail);
  return tail;
}
void set_run_tail(Packet& first, Packet* tail) {
  std::memcpy(first.scratch, &tail, sizeof tail);
}

std::uint32_t buffers_of(const Packet& frame) {
  std::uint32_t count = 0;
  for (const Packet* p = &frame; p != nullptr; p = p->next_segment) count++;
  return count;
}

bool in_arena(const Packet& frame) {
  return (frame.flags & kInArena) != 0;
}

// Copies payload to a chain of empty packets, one after the other.
class ChainCursor {
 public:
  explicit ChainCursor(Packet* chain) : at_(chain) {}

  void append(const Packet& frame, std::uint32_t offset, std::uint32_t len) {
    for (const Packet* p = &frame; p != nullptr && len != 0; p = p->next_segment) {
      const std::uint32_t skip = std::min(offset, p->len);
      const std::uint32_t take = std::min(p->len - skip, len);
      copy({p->data + skip, take});
      offset -= skip;
      len -= take;
    }
  }

 private:
  void copy(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      if (at_->tailroom() == 0) at_ = at_->next_segment;
      const std::size_t n = std::min(bytes.size(), at_->tailroom());
      copy_bytes(at_->data + at_->len, bytes.data(), n);
      at_->len += static_cast<std::uint32_t>(n);
      bytes = bytes.subspan(n);
    }
  }

  Packet* at_;
};

// RFC 3168 §5.3: congestion that one fragment met holds for the datagram. A datagram in which only some fragments are
// ECN-capable comes from no honest sender. False: drop it.
bool merge_codepoints(std::uint8_t seen, wire::Ipv4& ip) {
  const bool not_capable = (seen & 1U << kNotEct) != 0;
  if (not_capable && seen != 1U << kNotEct) return false;
  if ((seen & 1U << kCongestion) != 0) ip.tos |= kCongestion;
  return true;
}

void make_whole(Packet& packet, std::uint32_t len) {
  auto& ip = wire::at<wire::Ipv4>(packet, sizeof(wire::Ethernet));
  ip.total_len = static_cast<std::uint16_t>(len);
  ip.fragment = 0;
  ip.checksum = 0;
  ip.checksum.set_raw(checksum_finish(checksum(&ip, ip.header_len())));
}

}  // namespace

// --- What comes in

bool IpFragments::take(Context& ctx, L4Input& input) {
  counters_.ip_fragments_in++;
  const auto& ip = wire::at<wire::Ipv4>(*input.packet, sizeof(wire::Ethernet));
  const std::uint32_t begin = (ip.fragment & wire::kFragmentOffset) * 8U;
  const Range range{begin, begin + input.l4_len, (ip.fragment & wire::kMoreFragments) == 0};
  const bool uneven = !range.last && input.l4_len % 8 != 0;
  const bool tcp_trick = input.protocol == wire::kProtocolTcp &&
                         (begin == kTcpOverlapOffset || (begin == 0 && input.l4_len < kTcpFlagsEnd));
  if (input.l4_len == 0 || uneven || range.end > kMaxPacket - sizeof(wire::Ipv4) || tcp_trick)
    return drop(ctx, input.packet, counters_.drop_ip_fragment);

  const Key key{ip.source, ip.destination, ip.id, input.port, input.protocol, {}};
  const unsigned codepoint = ip.tos & 3U;
  Packet* frame = keep(ctx, input.packet);
  if (frame == nullptr) return false;
  frame->seq = range.begin;
  frame->payload_len = input.l4_len;
  frame->offset = input.l4_offset;
  const std::uint32_t cost = memory_of(*frame);
  Datagram* datagram = make_room(ctx, cost) ? find_or_add(key, ctx.now) : nullptr;
  if (datagram == nullptr) return drop(ctx, frame, counters_.drop_ip_fragment_memory);

  const Fit fit = agrees_about_end(*datagram, range) ? link(*datagram, frame) : Fit::kWrong;
  if (fit == Fit::kDuplicate) return drop(ctx, frame, counters_.drop_ip_fragment_duplicate);
  if (fit != Fit::kNew) {
    std::uint64_t& reason = fit == Fit::kWrong ? counters_.drop_ip_fragment_overlap : counters_.drop_ip_fragment_memory;
    discard(ctx, *datagram, reason);
    return drop(ctx, frame, reason);
  }
  datagram->fragments++;
  account(*datagram, *frame);
  datagram->codepoints |= static_cast<std::uint8_t>(1U << codepoint);
  datagram->broadcast = input.broadcast;
  if (range.last) datagram->end = range.end;
  return is_whole(*datagram) && finish(ctx, *datagram, input);
}

bool IpFragments::drop(Context& ctx, Packet* frame, std::uint64_t& reason) {
  reason++;
  ctx.release(frame);
  return false;
}

// Keeps the frame, or a copy if the port needs its buffers. Null: there is no memory for a copy, and the frame was
// dropped.
Packet* IpFragments::keep(Context& ctx, Packet* frame) {
  if ((frame->flags & kInReserve) != 0 && memory_.is_short()) {
    drop(ctx, frame, counters_.drop_ip_fragment_memory);
    return nullptr;
  }
  frame->flags &= static_cast<std::uint16_t>(~kInReserve);
  if (in_arena(*frame)) return frame;
  if (held_frames_ + buffers_of(*frame) <= kMaxHeldFrames && !ctx.queue(frame->port).scarce()) return frame;
  Packet* copy = copy_to_arena(memory_, *frame);
  if (copy == nullptr) counters_.drop_ip_fragment_memory++;
  ctx.release(frame);
  return copy;
}

// --- A datagram's list

// A fragment may not reach beyond the end that the last fragment gave, and there may be only one such end.
bool IpFragments::agrees_about_end(const Datagram& datagram, const Range& range) {
  if (datagram.end != 0 && (range.last ? range.end != datagram.end : range.end > datagram.end)) return false;
  return !range.last || datagram.last_run == nullptr || end_of(*run_tail(*datagram.last_run)) <= range.end;
}

IpFragments::Fit IpFragments::link(Datagram& datagram, Packet* frame) {
  const std::uint32_t begin = frame->seq, end = end_of(*frame);
  Packet* before = nullptr;          // the run below
  Packet* after = datagram.first;    // the run above
  Packet* last = datagram.last_run;  // most fragments come in order and belong after it
  if (last != nullptr && begin >= end_of(*run_tail(*last))) {
    before = last;
    after = nullptr;
  }
  while (after != nullptr && end > after->seq) {
    const std::uint32_t run_end = end_of(*run_tail(*after));
    if (begin < run_end) return begin >= after->seq && end <= run_end ? Fit::kDuplicate : Fit::kWrong;
    before = after;
    after = run_tail(*after)->queue_next;
  }
  const bool joins_before = before != nullptr && end_of(*run_tail(*before)) == begin;
  const bool joins_after = after != nullptr && after->seq == end;
  if (!joins_before && !joins_after && datagram.runs == kMaxRuns) return Fit::kScattered;

  frame->queue_next = after;
  (before != nullptr ? run_tail(*before)->queue_next : datagram.first) = frame;
  Packet* head = joins_before ? before : frame;
  set_run_tail(*head, joins_after ? run_tail(*after) : frame);
  if (after == nullptr || (joins_after && after == last)) datagram.last_run = head;
  datagram.runs += 1U - (joins_before ? 1U : 0U) - (joins_after ? 1U : 0U);
  return Fit::kNew;
}

bool IpFragments::is_whole(const Datagram& datagram) {
  return datagram.end != 0 && datagram.runs == 1 && datagram.first->seq == 0 &&
         end_of(*run_tail(*datagram.first)) == datagram.end;
}

// The datagram gets the header of its first fragment.
bool IpFragments::finish(Context& ctx, Datagram& datagram, L4Input& input) {
  const std::uint32_t header = datagram.first->offset;
  const std::uint32_t packet_len = header - static_cast<std::uint32_t>(sizeof(wire::Ethernet)) + datagram.end;
  if (packet_len > kMaxPacket) {
    discard(ctx, datagram, counters_.drop_ip_fragment);
    return false;
  }
  Packet* whole = allocate_arena_chain(memory_, header + datagram.end);
  if (whole == nullptr) {
    discard(ctx, datagram, counters_.drop_ip_fragment_memory);
    return false;
  }
  ChainCursor to(whole);
  to.append(*datagram.first, 0, header);
  for (const Packet* p = datagram.first; p != nullptr; p = p->queue_next) to.append(*p, p->offset, p->payload_len);
  whole->frame_len = header + datagram.end;
  whole->flags |= kRxIpChecksumGood;
  whole->port = input.port;
  if (!merge_codepoints(datagram.codepoints, wire::at<wire::Ipv4>(*whole, sizeof(wire::Ethernet)))) {
    ctx.release(whole);
    discard(ctx, datagram, counters_.drop_ip_fragment_ecn);
    return false;
  }
  make_whole(*whole, packet_len);
  const bool broadcast = datagram.broadcast;
  const std::uint16_t port = input.port;
  std::uint64_t spent = 0;
  discard(ctx, datagram, spent);
  (void)parse_ipv4(*whole, input);  // this header was parsed before
  input.port = port;
  input.broadcast = broadcast;
  input.checksum_good = false;
  counters_.ip_reassembled++;
  return true;
}

// --- The datagrams

IpFragments::Datagram* IpFragments::find_or_add(const Key& key, Instant now) {
  const std::size_t bucket = tcp::siphash24(secret_, std::as_bytes(std::span{&key, 1})) % kBuckets;
  for (Datagram* d = buckets_[bucket]; d != nullptr; d = d->next)
    if (d->key == key) return d;
  Datagram* datagram = slab_.allocate();
  if (datagram == nullptr) return nullptr;
  datagram->key = key;
  datagram->bucket = static_cast<std::uint16_t>(bucket);
  datagram->source =
      static_cast<std::uint16_t>(tcp::siphash24(secret_, std::as_bytes(std::span{&key.source, 1})) % kSources);
  datagram->created = now;
  datagram->next = buckets_[bucket];
  buckets_[bucket] = datagram;
  Source& source = sources_[datagram->source];
  datagram->older = source.newest;
  (source.newest != nullptr ? source.newest->newer : source.oldest) = datagram;
  source.newest = datagram;
  next_ = std::min(next_, now + kTimeout);
  return datagram;
}

void IpFragments::remove(Datagram& datagram) {
  Datagram** link = &buckets_[datagram.bucket];
  while (*link != &datagram) link = &(*link)->next;
  *link = datagram.next;
  Source& source = sources_[datagram.source];
  (datagram.older != nullptr ? datagram.older->newer : source.oldest) = datagram.newer;
  (datagram.newer != nullptr ? datagram.newer->older : source.newest) = datagram.older;
  slab_.free(&datagram);
}

// Takes the oldest datagram from the source that holds most. False: there will never be room for so much.
bool IpFragments::make_room(Context& ctx, std::uint32_t cost) {
  if (cost > limit_) return false;
  while (bytes_ + cost > limit_ || slab_.size() >= kMaxDatagrams) {
    const auto most = std::max_element(sources_.begin(), sources_.end(),
                                       [](const Source& a, const Source& b) { return a.bytes < b.bytes; });
    discard(ctx, *most->oldest, counters_.drop_ip_fragment_memory);
  }
  return true;
}

void IpFragments::discard(Context& ctx, Datagram& datagram, std::uint64_t& reason) {
  reason += datagram.fragments;
  while (Packet* frame = datagram.first) {
    datagram.first = frame->queue_next;
    account_no_more(datagram, *frame);
    ctx.release(frame);
  }
  remove(datagram);
}

void IpFragments::account(Datagram& datagram, const Packet& frame) {
  const std::uint32_t cost = memory_of(frame);
  bytes_ += cost;
  sources_[datagram.source].bytes += cost;
  if (!in_arena(frame)) held_frames_ += buffers_of(frame);
}

void IpFragments::account_no_more(Datagram& datagram, const Packet& frame) {
  const std::uint32_t cost = memory_of(frame);
  bytes_ -= cost;
  sources_[datagram.source].bytes -= cost;
  if (!in_arena(frame)) held_frames_ -= buffers_of(frame);
}

// --- The ports' frames

std::size_t IpFragments::move_frames_to_arena(Context& ctx) {
  std::size_t stayed = 0;
  if (held_frames_ != 0) slab_.for_each([&](Datagram& datagram) { stayed += move_to_arena(ctx, datagram); });
  return stayed;
}

// Finds the ends of the runs again on the way.
std::size_t IpFragments::move_to_arena(Context& ctx, Datagram& datagram) {
  std::size_t stayed = 0;
  Packet* run = nullptr;
  std::uint32_t run_end = 0;
  for (Packet** link = &datagram.first; *link != nullptr; link = &(*link)->queue_next) {
    Packet* const next = (*link)->queue_next;
    account_no_more(datagram, **link);
    Packet* fragment = bypass::move_to_arena(ctx, *link);
    account(datagram, *fragment);
    if (!in_arena(*fragment)) stayed++;
    fragment->queue_next = next;
    *link = fragment;
    if (run == nullptr || fragment->seq != run_end) run = fragment;
    set_run_tail(*run, fragment);
    run_end = end_of(*fragment);
  }
  datagram.last_run = run;
  return stayed;
}

// --- Time

void IpFragments::on_timers(Context& ctx) {
  if (ctx.now < next_) return;
  next_ = kNever;
  for (Source& source : sources_) {
    while (source.oldest != nullptr && source.oldest->created + kTimeout <= ctx.now) expire(ctx, *source.oldest);
    if (source.oldest != nullptr) next_ = std::min(next_, source.oldest->created + kTimeout);
  }
}

void IpFragments::expire(Context& ctx, Datagram& datagram) {
  Packet* first = datagram.first;
  if (first->seq == 0 && !datagram.broadcast) {
    datagram.first = first->queue_next;
    account_no_more(datagram, *first);
    expired_.push(first);
  }
  discard(ctx, datagram, counters_.drop_ip_fragment_timeout);
}

PacketList IpFragments::take_expired() {
  const PacketList taken = expired_;
  expired_ = {};
  return taken;
}

// --- After a death inside the lock

void IpFragments::rebuild(Context& ctx) {
  const bool sees_frames = ctx.sees_frames();
  buckets_ = {};
  sources_ = {};
  expired_ = {};
  bytes_ = held_frames_ = 0;
  next_ = kNever;
  if (!slab_.rebuild()) return;
  slab_.for_each([&](Datagram& datagram) {
    Packet* frame = datagram.first;
    for (std::uint32_t left = datagram.fragments; frame != nullptr && left != 0; left--) {
      const bool ours = memory_.contains(frame);  // it becomes free because it is not marked
      if (!ours && !sees_frames) break;
      Packet* next = frame->queue_next;
      if (!ours) ctx.release(frame);
      frame = next;
    }
    slab_.free(&datagram);
  });
}

}  // namespace bypass
