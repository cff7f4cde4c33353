#include "family/fork_tree.h"

#include <utility>

namespace bypass::test {
namespace {

constexpr std::uint16_t kPort = 80, kStrangersPort = 81;
const IpAddress kAddress = IpAddress::from_v4(0x0a090001);

}  // namespace

ForkTree::ForkTree()
    : memory_(Memory::create(shared_->region, kRegion, kRegion)), stack_(Stack::create(*memory_, StackConfig{})) {
  shared_->now = 1'000'000'000;
  context_.queues[0] = PortQueue{&wire_, 0, 0};
  context_.ports = 1;
  context_.memory = memory_;
  const Prefix prefix{kAddress, 24};
  const InterfaceConfig interface {
    .mac = wire_.mac(), .mtu = 1500, .addresses = { &prefix, 1 }
  };
  EXPECT_TRUE(stack_->set_interface(0, interface));
  shared_->listener = tcp().listen({kAddress, kPort}, 128, {}, &*shared_).value();
  shared_->strangers_listener = tcp().listen({kAddress, kStrangersPort}, 8, {}, &*shared_).value();
  turn(0ns);
  for (Pair& pair : shared_->pairs) open(pair);
  settle();
}

void ForkTree::open(Pair& pair) {
  pair.life++;
  pair.end[0] = pair.end[1] = nullptr;
  turn(0ns);
  pair.end[0] = tcp().connect(context_, {}, {kAddress, kPort}, {}, &pair).value();
  for (int i = 0; i < 1000 && pair.end[1] == nullptr; i++) {
    turn(1ms);
    if (auto accepted = tcp().accept(context_, *shared_->listener, &pair)) pair.end[1] = *accepted;
  }
  ASSERT_NE(pair.end[1], nullptr);
}

std::uint8_t ForkTree::byte_at(const Pair& pair, std::size_t pair_index, unsigned from, std::uint64_t offset) {
  std::uint64_t x = (pair_index * 2 + from) * 0x9e3779b97f4a7c15U + pair.life * 0xbf58476d1ce4e5b9U + offset;
  x = (x ^ (x >> 29)) * 0x94d049bb133111ebU;
  return static_cast<std::uint8_t>(x >> 56);
}

void ForkTree::send(std::size_t index, unsigned from, std::size_t bytes) {
  Pair& pair = shared_->pairs[index];
  tcp::Tcb& tcb = *pair.end[from];
  if (auto room = tcp().reserve(tcb, bytes)) {
    std::uint64_t offset = tcb.ring.end();
    const std::size_t given = std::min(bytes, room->size());
    for (std::size_t i = 0; i < given; i++, offset++) {
      const bool first = i < room->part[0].size();
      (first ? room->part[0][i] : room->part[1][i - room->part[0].size()]) =
          std::byte{byte_at(pair, index, from, offset)};
    }
    tcp().commit(context_, tcb, given, false);
  }
}

void ForkTree::receive(std::size_t index, unsigned at, std::size_t bytes) {
  Pair& pair = shared_->pairs[index];
  tcp::Tcb& tcb = *pair.end[at];
  std::span<const std::byte> spans[4];
  std::size_t taken = 0;
  std::uint64_t offset = tcb.received - tcb.rx_bytes;
  for (std::size_t i = 0, n = tcp().peek(tcb, spans); i < n; i++) {
    for (std::size_t j = 0; j < spans[i].size() && taken < bytes; j++, taken++, offset++) {
      if (spans[i][j] != std::byte{byte_at(pair, index, 1 - at, offset)}) shared_->wrong++;
    }
  }
  shared_->moved += taken;
  tcp().consume(context_, tcb, taken);
}

void ForkTree::turn(Duration step) {
  shared_->now += step.count();
  context_.now = Instant{Duration{shared_->now}};
  stack_->resume_output(context_);
  if (stack_->next_timeout() <= context_.now) stack_->on_timers(context_);
  context_.flush();
  stack_->on_flushed(context_);
  while (EventNode* node = stack_->events().take()) node->events = 0;
}

void ForkTree::act(std::mt19937& random) {
  const std::size_t pair = random() % kPairs;
  const unsigned side = random() % 2;
  switch (random() % 4) {
    case 0:
      return send(pair, side, 1 + random() % 300);
    case 1:
      return send(pair, side, 1 + random() % 3000);
    case 2:
      return receive(pair, side, 1 + random() % 3000);
    default:
      return turn(Duration(random() % (random() % 8 == 0 ? 100'000'000 : 200'000)));
  }
}

void ForkTree::act_in_a_crowd(std::mt19937& random) {
  if (random() % 2 == 0) return act(random);
  come_and_go(random);
}

// A process may die between the engine's call and ours. Then a connection from outside is not known here. It stays
// open, which does no harm.
void ForkTree::come_and_go(std::mt19937& random) {
  tcp::Tcb*& stranger = shared_->strangers[random() % kStrangers];
  if (stranger != nullptr) {
    tcp::Tcb* leaving = std::exchange(stranger, nullptr);
    if (random() % 2 == 0) return tcp().close(context_, *leaving);
    return tcp().abort(context_, *leaving);
  }
  const auto made = random() % 2 == 0 ? tcp().connect(context_, {}, {kAddress, kStrangersPort}, {}, &*shared_)
                                      : tcp().accept(context_, *shared_->strangers_listener, &*shared_);
  if (made) stranger = *made;
}

const void* ForkTree::rebuild() {
  const void* named = tcp().current();
  // A connection that the dead process was closing may be gone.
  for (tcp::Tcb*& stranger : shared_->strangers) stranger = stranger == named ? nullptr : stranger;
  context_.now = Instant{Duration{shared_->now}};
  memory_->begin_rebuild();
  stack_->rebuild(context_);
  memory_->finish_rebuild();
  give_up_reservations();
  return named;
}

// A reservation of the dead process: no process will commit it.
void ForkTree::give_up_reservations() {
  for (Pair& pair : shared_->pairs) {
    for (tcp::Tcb* tcb : pair.end) {
      if (tcb->ring.reserved()) tcp().commit(context_, *tcb, 0, false);
    }
  }
}

bool ForkTree::lost(const Pair& pair) {
  return std::any_of(std::begin(pair.end), std::end(pair.end), [&](const tcp::Tcb* tcb) {
    return tcp().state(*tcb) != tcp::State::kEstablished || tcp().error(*tcb) != Error::kNone;
  });
}

void ForkTree::read_all() {
  for (std::size_t i = 0; i < kPairs; i++) {
    for (const unsigned at : {0U, 1U}) {
      while (tcp().readable(*shared_->pairs[i].end[at]) != 0) receive(i, at, ~std::size_t{0});
    }
  }
}

bool ForkTree::quiet() {
  if (stack_->output_pending()) return false;
  return std::all_of(std::begin(shared_->pairs), std::end(shared_->pairs), [&](const Pair& pair) {
    return lost(pair) ||
           (tcp().unacknowledged(*pair.end[0]) == 0 && tcp().unacknowledged(*pair.end[1]) == 0 &&
            pair.end[0]->received == pair.end[1]->ring.end() && pair.end[1]->received == pair.end[0]->ring.end());
  });
}

void ForkTree::settle() {
  // Sends something new on each connection: an old one that no longer works must not look idle.
  for (std::size_t i = 0; i < kPairs; i++) {
    for (const unsigned from : {0U, 1U}) send(i, from, 10);
  }
  for (int turns = 0; turns < 100'000; turns++) {
    turn(0ns);
    read_all();
    if (quiet()) return;
    if (stack_->output_pending()) continue;
    const Instant next = stack_->next_timeout();
    if (next == kNever) return;
    if (next > context_.now) turn(next - context_.now);
  }
  ADD_FAILURE() << "never quiet";
}

std::string ForkTree::holders() {
  std::string text;
  for (std::size_t i = 0; i < kPairs; i++) {
    for (const tcp::Tcb* tcb : shared_->pairs[i].end) {
      if (tcb->ring.block() == nullptr && tcb->scoreboard.block() == nullptr && tcb->rx_head == nullptr) continue;
      text += "pair " + std::to_string(i) + ": ring of " + std::to_string(tcb->ring.capacity()) +
              (tcb->ring.busy() ? " busy" : "") + (tcb->ring.pinned() ? " pinned" : "") +
              (tcb->scoreboard.block() != nullptr ? ", scoreboard" : "") + (tcb->rx_head != nullptr ? ", frames" : "") +
              ", flags " + std::to_string(tcb->flags) + "\n";
    }
  }
  return text;
}

std::size_t ForkTree::replace_lost(const void* named, std::size_t& count) {
  std::size_t strangers = 0;
  count = 0;
  for (Pair& pair : shared_->pairs) {
    if (!lost(pair)) continue;
    count++;
    if (named != pair.end[0] && named != pair.end[1]) strangers++;
    for (tcp::Tcb* tcb : pair.end) tcp().abort(context_, *tcb);
    open(pair);
  }
  return strangers;
}

}  // namespace bypass::test
