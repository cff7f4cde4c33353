// SimPort (sim_wire.h): one end of the simulated wire. Frames are cut, joined and checked as a card would.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "backends/sim/offload.h"
#include "backends/sim/sim_wire.h"
#include "stack/frame/wire.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) (static_cast<void>(address), static_cast<void>(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) (static_cast<void>(address), static_cast<void>(size))
#endif

namespace bypass::sim {
namespace {

// Ethernet, the longest IPv4 header, the longest TCP header: packet.h promises that these lie in the head.
constexpr std::size_t kHeadPromise = 14 + 60 + 60;

[[noreturn]] void misuse(const char* what) {
  std::fprintf(stderr, "sim port: %s\n", what);
  std::abort();
}

bool later(const auto& a, const auto& b) {
  return a.at != b.at ? a.at > b.at : a.order > b.order;
}

}  // namespace

struct SimPort::Slot {
  explicit Slot(std::size_t bytes) : size(bytes), memory(new (std::align_val_t{64}) std::byte[bytes]) {}
  ~Slot() {
    ASAN_UNPOISON_MEMORY_REGION(memory, size);
    ::operator delete[](memory, std::align_val_t{64});
  }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  Packet packet{};  // the first member: a Packet of this port is its slot
  SimPort* owner = nullptr;
  bool out = false;
  std::size_t size;
  std::byte* memory;
};

SimPort::SimPort(Wire& wire, std::size_t index, const PortConfig& config)
    : wire_(wire), index_(index), config_(config) {
  for (std::size_t i = 0; i < config.buffers; i++) {
    auto slot = std::make_unique<Slot>(config.caps.buffer_bytes);
    slot->owner = this;
    slot->packet.buffer = slot->memory;
    slot->packet.capacity = config.caps.buffer_bytes;
    ASAN_POISON_MEMORY_REGION(slot->memory, slot->size);
    free_.push_back(&slot->packet);
    slots_.push_back(std::move(slot));
  }
}

SimPort::~SimPort() = default;

Packet* SimPort::take_slot() {
  if (free_.empty()) return nullptr;
  Packet* packet = free_.back();
  free_.pop_back();
  auto* slot = reinterpret_cast<Slot*>(packet);
  slot->out = true;
  ASAN_UNPOISON_MEMORY_REGION(slot->memory, slot->size);
  packet->flags = 0;
  packet->reset(kTxHeadroom);
  return packet;
}

void SimPort::put_slot(Packet* packet) {
  auto* slot = reinterpret_cast<Slot*>(packet);
  if ((packet->flags & kInArena) != 0) misuse("an arena packet was given to a port");
  if (slot->owner != this) misuse("a frame of another port");
  if (!slot->out) misuse("a frame that was free already");
  slot->out = false;
  ASAN_POISON_MEMORY_REGION(slot->memory, slot->size);
  free_.push_back(packet);
}

std::size_t SimPort::alloc(std::uint16_t, std::span<Packet*> out) {
  std::size_t n = 0;
  while (n < out.size() && (out[n] = take_slot()) != nullptr) n++;
  return n;
}

void SimPort::free(std::span<Packet* const> frames) {
  for (Packet* segment : frames) {
    while (segment != nullptr) {
      Packet* next = segment->next_segment;
      put_slot(segment);
      segment = next;
    }
  }
}

// --- Sending

// Checks a frame as no device would: a device trusts its driver.
bool SimPort::takes(const Packet& head) const {
  std::size_t sum = head.external_len[0] + head.external_len[1];
  for (const Packet* p = &head; p != nullptr; p = p->next_segment) {
    if (!reinterpret_cast<const Slot*>(p)->out) misuse("sends a frame that is free");
    if (p->data < p->buffer || p->headroom() + p->len > p->capacity) misuse("sends bytes outside of its buffer");
    sum += p->len;
  }
  const PortCaps& caps = config_.caps;
  if (sum != head.frame_len) misuse("frame_len is not the sum of its parts");
  if (sum > head.len && head.external_len[0] != 0 && !caps.gather) misuse("external bytes without gather");
  if ((head.flags & kTxL4Checksum) != 0 && !caps.tx_l4_checksum) misuse("L4 checksum offload without the capability");
  if ((head.flags & kTxIpChecksum) != 0 && !caps.tx_ip_checksum) misuse("IP checksum offload without the capability");
  const bool tso = (head.flags & kTxTso) != 0;
  if (tso && !caps.tso) misuse("TSO without the capability");
  const std::size_t headers = std::size_t{head.l2_len} + head.l3_len + head.l4_len;
  if (tso && (head.tso_mss == 0 || sum <= headers || headers > head.len)) misuse("TSO without lengths");
  if (tso && sum - headers > caps.tso_max_bytes) misuse("TSO frame above tso_max_bytes");
  return tso || sum <= caps.mtu + sizeof(wire::Ethernet);
}

Bytes SimPort::gather(const Packet& head) const {
  Bytes bytes;
  bytes.reserve(head.frame_len);
  for (const Packet* p = &head; p != nullptr; p = p->next_segment) bytes.insert(bytes.end(), p->data, p->data + p->len);
  for (int i = 0; i < 2; i++) bytes.insert(bytes.end(), head.external[i], head.external[i] + head.external_len[i]);
  return bytes;
}

std::size_t SimPort::send(std::uint16_t, std::span<Packet* const> frames) {
  std::size_t sent = 0;
  for (Packet* head : frames) {
    if (link_ == LinkState::kUp && !wire_.has_room(index_)) {
      stats_.tx_full++;
      break;
    }
    sent++;
    const bool carried = takes(*head) && link_ == LinkState::kUp;
    if (carried) {
      stats_.tx_frames++;
      stats_.tx_bytes += head->frame_len;
      Bytes bytes = gather(*head);
      const bool tso = (head->flags & kTxTso) != 0;
      const std::size_t l2 = head->l2_len, l3 = head->l3_len;
      if (tso && !wire_.receivers_take_large(index_)) {
        for (Bytes& piece : cut_tcp(bytes, l2, l3, head->l4_len, head->tso_mss))
          wire_.transmit(index_, std::move(piece), 0);
      } else {
        if ((head->flags & kTxIpChecksum) != 0) fill_ip_checksum(bytes, l2, l3);
        if ((head->flags & kTxL4Checksum) != 0) fill_l4_checksum(bytes, l2, l3);
        wire_.transmit(index_, std::move(bytes), tso ? head->tso_mss : std::uint16_t{0});
      }
    }
    free({&head, 1});
  }
  return sent;
}

// --- Receiving

void SimPort::arrive(Arrival arrival) {
  inbox_.push_back(std::move(arrival));
  std::push_heap(inbox_.begin(), inbox_.end(), [](const Arrival& a, const Arrival& b) { return later(a, b); });
}

void SimPort::fill_ring() {
  while (!inbox_.empty() && inbox_.front().at <= wire_.now()) {
    std::pop_heap(inbox_.begin(), inbox_.end(), [](const Arrival& a, const Arrival& b) { return later(a, b); });
    if (ring_.size() < config_.rx_ring && link_ == LinkState::kUp)
      ring_.push_back(std::move(inbox_.back()));
    else
      stats_.rx_dropped++;
    inbox_.pop_back();
  }
}

std::size_t SimPort::receive(std::uint16_t, std::span<Packet*> out) {
  fill_ring();
  std::size_t n = 0;
  while (n < out.size() && !ring_.empty()) {
    Packet* head = to_packets(ring_.front());
    if (head != nullptr) {
      stats_.rx_frames++;
      stats_.rx_bytes += head->frame_len;
      out[n++] = head;
    } else {
      stats_.rx_no_buffer++;
    }
    ring_.pop_front();
  }
  return n;
}

Packet* SimPort::to_packets(const Arrival& arrival) {
  const Bytes& bytes = arrival.bytes;
  const std::size_t room = config_.caps.buffer_bytes - kTxHeadroom;
  Packet* head = nullptr;
  Packet** link = &head;
  for (std::size_t at = 0; at < bytes.size() || head == nullptr;) {
    Packet* packet = take_slot();
    if (packet == nullptr) {
      if (head != nullptr) free({&head, 1});
      return nullptr;
    }
    std::size_t take = std::min(room, bytes.size() - at);
    if (config_.rx_segment != 0) take = std::min(take, std::size_t{1} + wire_.random().below(config_.rx_segment));
    if (at == 0) take = std::min(bytes.size(), std::max(take, kHeadPromise));
    std::memcpy(packet->data, bytes.data() + at, take);
    packet->len = static_cast<std::uint32_t>(take);
    at += take;
    *link = packet;
    link = &packet->next_segment;
  }
  head->frame_len = static_cast<std::uint32_t>(bytes.size());
  head->tso_mss = arrival.tso_mss;
  if (arrival.tso_mss != 0) head->flags |= kRxLro;
  if (config_.caps.rx_checksum) note_checksums(*head, bytes);
  return head;
}

void SimPort::note_checksums(Packet& head, const Bytes& bytes) const {
  const ChecksumVerdict verdict = verify_checksums(bytes);
  if (verdict.ip_good) head.flags |= kRxIpChecksumGood;
  if (verdict.l4_good) head.flags |= kRxL4ChecksumGood;
  if (verdict.bad) head.flags |= kRxChecksumBad;
}

Instant SimPort::next_arrival() const {
  if (!ring_.empty()) return wire_.now();
  return inbox_.empty() ? kNever : inbox_.front().at;
}

bool SimPort::arm(std::uint16_t) {
  return next_arrival() > wire_.now();
}

PortStats SimPort::stats() const {
  PortStats stats = stats_;
  stats.buffers_total = slots_.size();
  stats.buffers_free = free_.size();
  return stats;
}

}  // namespace bypass::sim
