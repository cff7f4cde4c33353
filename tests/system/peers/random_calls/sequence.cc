#include "sequence.h"

#include <random>

namespace random_calls {
namespace {

enum class Kind : std::uint8_t { kNothing, kStream, kListener, kConnection, kDatagram, kEpoll };

using Table = std::array<Kind, kSlots>;

/// Knows roughly what each slot is, so that most calls make sense.
class Maker {
 public:
  Maker(std::uint64_t seed, unsigned length) : random_(seed * 0x9e3779b97f4a7c15u + 1), length_(length) {}

  std::vector<Step> make() {
    open_first();
    for (unsigned i = 0; i < length_; ++i) add_random();
    return steps_;
  }

 private:
  unsigned below(unsigned bound) { return static_cast<unsigned>(random_() % bound); }
  bool one_in(unsigned n) { return below(n) == 0; }

  Table& table(Actor actor) {
    if (actor == Actor::kClient) return client_;
    return actor == Actor::kChild ? child_ : server_;
  }

  void add(Actor actor, Op op, unsigned slot, unsigned other = 0, unsigned amount = 0, std::uint32_t choice = 0) {
    steps_.push_back({actor, op, static_cast<std::uint8_t>(slot), static_cast<std::uint8_t>(other),
                      static_cast<std::uint16_t>(amount), choice});
  }

  void open_first() {
    const Actor caller = one_in(4) ? Actor::kServer : Actor::kClient;
    if (one_in(6)) return open_datagrams(caller);
    add(Actor::kServer, Op::kSocket, 0, 0, 0, below(4));
    add(Actor::kServer, Op::kBind, 0, one_in(3) ? 1 : 0, 0);
    add(Actor::kServer, Op::kListen, 0, 0, below(4));
    table(Actor::kServer)[0] = Kind::kListener;
    connect(caller, 1);
    if (one_in(10)) return;
    add(Actor::kServer, Op::kAccept, 0, 2, 0, below(4));
    table(Actor::kServer)[2] = Kind::kConnection;
  }

  void connect(Actor caller, unsigned slot) {
    add(caller, Op::kSocket, slot, 0, 0, below(4));
    add(caller, Op::kConnect, slot, 0, one_in(10) ? 1 : 0);
    table(caller)[slot] = Kind::kConnection;
  }

  void open_datagrams(Actor caller) {
    add(Actor::kServer, Op::kSocket, 0, 1, 0, below(4));
    add(Actor::kServer, Op::kBind, 0, 0, 0);
    table(Actor::kServer)[0] = Kind::kDatagram;
    add(caller, Op::kSocket, 1, 1, 0, below(4));
    if (one_in(2)) add(caller, Op::kConnect, 1, 0, 0);
    table(caller)[1] = Kind::kDatagram;
  }

  Actor any_actor() {
    const unsigned at = below(20);
    if (at < 9) return Actor::kServer;
    if (at < 11) return Actor::kThread;
    return at < 15 && has_child_ ? Actor::kChild : Actor::kClient;
  }

  unsigned free_slot(const Table& slots) {
    for (unsigned i = 0; i < kSlots; ++i) {
      if (slots[i] == Kind::kNothing) return i;
    }
    return below(kSlots);
  }

  unsigned used_slot(const Table& slots) {
    for (unsigned tries = 0; tries < 12; ++tries) {
      const unsigned slot = below(kSlots);
      if (slots[slot] != Kind::kNothing) return slot;
    }
    return below(kSlots);
  }

  void add_random() {
    const Actor actor = any_actor();
    Table& slots = table(actor);
    const unsigned what = below(100);
    if (what < 4) return open_another(actor, slots);
    if (what < 7) return processes();
    if (what < 11) return add_epoll(actor, slots);
    const unsigned slot = used_slot(slots);
    if (what < 22) return add_on_any(actor, slots, slot);
    switch (slots[slot]) {
      case Kind::kListener:
        return add_on_listener(actor, slots, slot);
      case Kind::kDatagram:
        return add_on_datagrams(actor, slots, slot);
      case Kind::kEpoll:
        return add(actor, Op::kEpollWait, slot, 0, 1 + below(4));
      default:
        return add_on_connection(actor, slots, slot);
    }
  }

  void open_another(Actor actor, Table& slots) {
    const unsigned slot = free_slot(slots);
    if (one_in(4)) {
      add(actor, Op::kSocket, slot, 1, 0, below(4));
      add(actor, Op::kBind, slot, one_in(2) ? 1 : 0, actor == Actor::kClient ? 2 : 1);
      slots[slot] = Kind::kDatagram;
      return;
    }
    connect(actor, slot);
  }

  void processes() {
    if (!has_child_) {
      if (!one_in(3)) return;
      add(Actor::kServer, Op::kFork, 0);
      child_ = server_;
      has_child_ = true;
      return;
    }
    if (one_in(8)) return add(Actor::kChild, Op::kExecute, 0);
    if (one_in(2)) return pass();
    if (one_in(2)) return;
    add(Actor::kServer, one_in(2) ? Op::kKillChild : Op::kEndChild, 0);
    has_child_ = false;
  }

  void pass() {
    const Actor from = one_in(2) ? Actor::kServer : Actor::kChild;
    Table& sender = table(from);
    Table& receiver = from == Actor::kServer ? child_ : server_;
    const unsigned slot = used_slot(sender), other = free_slot(receiver);
    add(from, Op::kPass, slot, other, 0, below(2));
    receiver[other] = sender[slot];
  }

  void add_epoll(Actor actor, Table& slots) {
    for (unsigned i = 0; i < kSlots; ++i) {
      if (slots[i] != Kind::kEpoll) continue;
      if (one_in(2)) return add(actor, Op::kEpollWait, i, 0, 1 + below(4));
      return add(actor, Op::kEpollControl, i, used_slot(slots), below(6), static_cast<std::uint32_t>(random_()));
    }
    const unsigned slot = free_slot(slots);
    add(actor, Op::kEpollCreate, slot, 0, 0, below(2));
    slots[slot] = Kind::kEpoll;
    add(actor, Op::kEpollControl, slot, used_slot(slots), 0, static_cast<std::uint32_t>(random_()));
  }

  void add_on_any(Actor actor, Table& slots, unsigned slot) {
    static constexpr std::array kOps{Op::kGetFlags,  Op::kName,        Op::kPeerName, Op::kGetOption,
                                     Op::kSetOption, Op::kSetOption,   Op::kControl,  Op::kSelect,
                                     Op::kDuplicate, Op::kDuplicateTo, Op::kClose};
    const Op op = kOps[below(kOps.size())];
    unsigned other = 0;
    if (op == Op::kDuplicate || op == Op::kDuplicateTo) {
      other = op == Op::kDuplicate ? free_slot(slots) : below(kSlots);
      slots[other] = slots[slot];
    }
    add(actor, op, slot, other, below(8), static_cast<std::uint32_t>(random_()));
    if (op == Op::kClose) slots[slot] = Kind::kNothing;
  }

  void add_on_listener(Actor actor, Table& slots, unsigned slot) {
    if (one_in(12)) return add_wild(actor, slot);
    const unsigned other = free_slot(slots);
    add(actor, Op::kAccept, slot, other, 0, below(4));
    slots[other] = Kind::kConnection;
  }

  void add_on_datagrams(Actor actor, Table& slots, unsigned slot) {
    static constexpr std::array kOps{Op::kSendTo,      Op::kSendTo,         Op::kReceiveFrom, Op::kReceiveFrom,
                                     Op::kSendMessage, Op::kReceiveMessage, Op::kWrite,       Op::kRead,
                                     Op::kConnect,     Op::kShutDown,       Op::kClose};
    const Op op = kOps[below(kOps.size())];
    add(actor, op, slot, 0, op == Op::kConnect ? below(kPorts) : below(1'400), static_cast<std::uint32_t>(random_()));
    if (op == Op::kClose) slots[slot] = Kind::kNothing;
  }

  void add_on_connection(Actor actor, Table& slots, unsigned slot) {
    static constexpr std::array kOps{Op::kSend,     Op::kSend,        Op::kSend,           Op::kReceive, Op::kReceive,
                                     Op::kReceive,  Op::kSendMessage, Op::kReceiveMessage, Op::kWrite,   Op::kRead,
                                     Op::kShutDown, Op::kClose,       Op::kReceiveFrom};
    if (one_in(25)) return add_wild(actor, slot);
    const Op op = kOps[below(kOps.size())];
    add(actor, op, slot, 0, below(1'400), static_cast<std::uint32_t>(random_()));
    if (op == Op::kClose) slots[slot] = Kind::kNothing;
  }

  /// Any call on any kind of descriptor.
  void add_wild(Actor actor, unsigned slot) {
    static constexpr std::array kOps{Op::kBind, Op::kListen,  Op::kConnect, Op::kAccept,
                                     Op::kSend, Op::kReceive, Op::kShutDown};
    add(actor, kOps[below(kOps.size())], slot, below(2), actor == Actor::kClient ? 2 : below(2),
        static_cast<std::uint32_t>(random_()));
  }

  std::mt19937_64 random_;
  unsigned length_;
  bool has_child_ = false;
  Table server_{}, client_{}, child_{};
  std::vector<Step> steps_;
};

}  // namespace

std::vector<Step> make_sequence(std::uint64_t seed, unsigned length) {
  return Maker(seed, length).make();
}

}  // namespace random_calls
