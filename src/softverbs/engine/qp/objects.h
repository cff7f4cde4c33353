// The device's objects other than queue pairs: completion queues, receive queues, address handles.
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "softverbs/engine/memory_table.h"
#include "softverbs/engine/qp/requests.h"
#include "stack/address.h"
#include "stack/frame/checksum.h"

namespace bypass::rdma {

/// Objects that live until they are destroyed, or the device is.
template <typename T>
class Owned {
 public:
  T* add(std::unique_ptr<T> object) {
    T* raw = object.get();
    objects_.emplace(raw, std::move(object));
    return raw;
  }
  void remove(T& object) { objects_.erase(&object); }
  [[nodiscard]] std::size_t count() const { return objects_.size(); }
  /// The first for which f() holds; null: for none of them.
  template <typename F>
  [[nodiscard]] T* find(F&& f) const {
    const auto at = std::find_if(objects_.begin(), objects_.end(), [&](const auto& each) { return f(*each.first); });
    return at == objects_.end() ? nullptr : at->first;
  }
  template <typename F>
  [[nodiscard]] bool any(F&& f) const {
    return std::any_of(objects_.begin(), objects_.end(), [&](const auto& each) { return f(*each.first); });
  }

 private:
  std::unordered_map<T*, std::unique_ptr<T>> objects_;
};

/// An intrusive list's link; each object is in each of the engine's lists at most once.
template <typename T>
struct Link {
  T* next = nullptr;
  bool queued = false;
};

/// A first-in-first-out list through a Link member; pushing an object that is in it changes nothing.
template <typename T, Link<T> T::*Member>
class Fifo {
 public:
  void push(T& object) {
    Link<T>& link = object.*Member;
    if (link.queued) return;
    link = {nullptr, true};
    (tail_ != nullptr ? (tail_->*Member).next : head_) = &object;
    tail_ = &object;
  }
  T* pop() {
    T* object = head_;
    if (object == nullptr) return nullptr;
    head_ = (object->*Member).next;
    if (head_ == nullptr) tail_ = nullptr;
    object->*Member = {};
    return object;
  }
  void remove(T& object) {
    if (!(object.*Member).queued) return;
    T* previous = nullptr;
    for (T* at = head_; at != &object; at = (at->*Member).next) previous = at;
    (previous != nullptr ? (previous->*Member).next : head_) = (object.*Member).next;
    if (tail_ == &object) tail_ = previous;
    object.*Member = {};
  }
  [[nodiscard]] bool empty() const { return head_ == nullptr; }

 private:
  T* head_ = nullptr;
  T* tail_ = nullptr;
};

/// What asynchronous events name. Kinds of events that wait to be reported have a bit each.
struct EventSource {
  void* user = nullptr;
  std::uint32_t events = 0;  // 1 << ibv_event_type
  Link<EventSource> event_link;
};
using EventSources = Fifo<EventSource, &EventSource::event_link>;

enum class Notify : std::uint8_t { kNo, kSolicited, kAny };

struct Cq : EventSource {
  std::unique_ptr<Completion[]> ring;
  std::uint32_t places = 0;  // the ring's size, a power of two
  std::uint32_t head = 0, tail = 0;
  std::uint32_t size = 0;   // the size that was promised
  std::uint32_t shown = 0;  // at the head: completions that the program has seen, whose requests' places are free again
  std::uint32_t references = 0;
  Notify notify = Notify::kNo;
  bool overrun = false;
  Link<Cq> notify_link;

  [[nodiscard]] std::uint32_t count() const { return tail - head; }
  [[nodiscard]] bool is_full() const { return count() - shown >= size || count() >= places; }
  [[nodiscard]] Completion& at(std::uint32_t n) { return ring[n & (places - 1)]; }
  [[nodiscard]] const Completion& at(std::uint32_t n) const { return ring[n & (places - 1)]; }
};

struct ReceiveWqe {
  std::uint64_t wr_id;
  std::uint16_t sges;
};

/// Receive requests in the order of posting, for one queue pair or shared.
class ReceiveQueue {
 public:
  void create(std::uint32_t max_wr, std::uint32_t max_sge) {
    max_wr_ = max_wr;
    max_sge_ = max_sge;
    ring_.resize(std::bit_ceil(std::max(max_wr, 1U)));
    sges_.resize(ring_.size() * max_sge);
  }
  int post(const ReceiveRequest& request);
  [[nodiscard]] std::uint32_t count() const { return tail_ - head_; }
  [[nodiscard]] bool empty() const { return tail_ == head_; }
  [[nodiscard]] const ReceiveWqe& front() const { return ring_[index(head_)]; }
  [[nodiscard]] std::span<const ibv_sge> front_sges() const {
    return {sges_.data() + std::size_t{index(head_)} * max_sge_, front().sges};
  }
  void pop() { head_++; }
  void clear() { head_ = tail_; }
  /// Keeps the requests that wait; the caller has checked that they fit.
  void resize(std::uint32_t max_wr);
  [[nodiscard]] std::uint32_t max_wr() const { return max_wr_; }
  [[nodiscard]] std::uint32_t max_sge() const { return max_sge_; }

 private:
  [[nodiscard]] std::uint32_t index(std::uint32_t n) const { return n & static_cast<std::uint32_t>(ring_.size() - 1); }
  std::vector<ReceiveWqe> ring_;
  std::vector<ibv_sge> sges_;  // max_sge_ for each request
  std::uint32_t max_wr_ = 0, max_sge_ = 0, head_ = 0, tail_ = 0;
};

/// An XRC domain (InfiniBand specification, annex A14): queue pairs that receive in it may use its receive queues.
struct Xrcd {
  std::uint32_t openings = 0, references = 0;
  bool has_file = false;  // it is shared by those that open it by this file
  XrcFile file{};
};

struct Srq : EventSource {
  Pd* pd = nullptr;
  // Of an XRC receive queue: what peers name it by, and where its completions go
  Xrcd* xrcd = nullptr;
  Cq* cq = nullptr;
  std::uint32_t number = 0;
  ReceiveQueue queue;
  std::uint32_t limit = 0;
  std::uint32_t references = 0;
};

/// The beginning of packets to one destination: Ethernet, IP and UDP headers, complete except for lengths,
/// identification, checksums and the destination's MAC.
struct Path {
  static constexpr std::size_t kMaxHeader = 14 + 40 + 8;
  std::array<std::byte, kMaxHeader> header{};
  std::uint8_t header_len = 0;
  PartialSum ip_sum;  // the sum of the IPv4 header as it is stored there
  bool v6 = false;
  bool local = false;           // to the device itself
  std::uint16_t neighbour = 0;  // place in the table of neighbours; unused when `known_mac`
  bool known_mac = false;       // multicast
  IpAddress peer;
};

struct Ah {
  Pd* pd = nullptr;
  Path path;
  ibv_ah_attr attr{};
};

}  // namespace bypass::rdma
