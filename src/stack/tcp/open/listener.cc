#include "stack/tcp/open/listener.h"

#include <algorithm>

#include "stack/share.h"
#include "stack/tcp/tcb.h"

namespace bypass::tcp {

void ListenerTable::clear() {
  std::fill(std::begin(buckets_), std::end(buckets_), nullptr);
}

void ListenerTable::insert(Listener& listener) {
  Listener*& head = buckets_[listener.local.port % kBuckets];
  listener.port_next = head;
  head = &listener;
}

void ListenerTable::erase(Listener& listener) {
  for (Listener** at = &buckets_[listener.local.port % kBuckets]; *at != nullptr; at = &(*at)->port_next) {
    if (*at != &listener) continue;
    *at = listener.port_next;
    return;
  }
}

Listener* ListenerTable::find(const Endpoint& to, std::uint32_t flow_hash) const {
  Listener* best = nullptr;
  for (Listener* l = buckets_[to.port % kBuckets]; l != nullptr; l = l->port_next) {
    if (!l->matches(to)) continue;
    const bool any = l->local.address.is_any();
    if (best == nullptr || !any) best = l;
    if (!any) break;
  }
  if (best == nullptr || !best->shared) return best;
  return choose_by_flow<&Listener::port_next>(*best, flow_hash,
                                              [best](const Listener& l) { return l.shared && l.local == best->local; });
}

Listener* ListenerTable::conflicting(const Endpoint& local, bool shared) const {
  for (Listener* l = buckets_[local.port % kBuckets]; l != nullptr; l = l->port_next) {
    if (l->local.port != local.port || (shared && l->shared)) continue;
    if (local.address.is_any() || l->local.address.is_any() || l->local.address == local.address) return l;
  }
  return nullptr;
}

void accept_push(Listener& listener, Tcb& tcb) {
  tcb.set(kAccepting);
  tcb.accept_next = nullptr;
  (listener.accept_tail != nullptr ? listener.accept_tail->accept_next : listener.accept_head) = &tcb;
  listener.accept_tail = &tcb;
  listener.accept_count++;
}

Tcb* accept_pop(Listener& listener) {
  Tcb* tcb = listener.accept_head;
  if (tcb == nullptr) return nullptr;
  listener.accept_head = tcb->accept_next;
  if (listener.accept_head == nullptr) listener.accept_tail = nullptr;
  listener.accept_count--;
  tcb->accept_next = nullptr;
  tcb->clear(kAccepting);
  return tcb;
}

}  // namespace bypass::tcp
