#include "softverbs/exchange.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "softverbs/impaired_wires.h"

namespace bypass::rdma::test {
namespace {

using sim::Bytes;

// The region of each end. First: places for receive requests and for the peer's writes, words for its atomic
// operations, bytes for it to read. Then: what the end sends from and reads into.
constexpr std::size_t kSlot = 4096, kSlots = 16, kMost = 4000;
constexpr std::size_t kReceives = 0, kWritten = kSlots * kSlot, kSum = 2 * kSlots * kSlot, kWord = kSum + 64;
constexpr std::size_t kReadable = 140'000, kReadableBytes = 20'000;
constexpr std::size_t kSource = 200'000, kInto = 300'000, kIntoSlot = kReadableBytes + 64, kFound = 640'000;
// A receive request's two elements, and the gap between them.
constexpr std::size_t kFirst = 1000, kGap = 48, kSecond = kMost - kFirst;
constexpr std::uint64_t kUnderWay = 8;  // requests: half of the places at most are in use

Bytes copy_of(const std::byte* from, std::size_t length) {
  return {from, from + length};
}

Bytes bytes_of(std::uint64_t word) {
  return copy_of(reinterpret_cast<const std::byte*>(&word), sizeof word);
}

std::uint64_t word_at(End& end, std::size_t offset) {
  std::uint64_t word;
  std::memcpy(&word, end.at(offset), sizeof word);
  return word;
}

bool is_there(const std::byte* at, const Bytes& bytes) {
  return std::equal(bytes.begin(), bytes.end(), at);
}

}  // namespace

Exchange::Exchange(const sim::Impairment& impairment, std::uint64_t seed, const ExchangeConfig& config)
    : pair(config.pair, seed),
      config_(config),
      random_(seed),
      a_{.half = pair.a, .peer = pair.b, .salt = 1},
      b_{.half = pair.b, .peer = pair.a, .salt = 100'000} {
  impair(pair, impairment);
  pair.fabric.acks = seed % 2 == 0 ? Acks::kLeave : Acks::kSend;
  if (config.strangers) make_strangers(pair.fabric.wire());
}

void Exchange::run(int operations) {
  for (Side* side : {&a_, &b_}) {
    side->left = operations;
    side->written.resize(kSlots);
    side->half.end.fill(kReadable, kReadableBytes, 77);
  }
  const bool ended = pair.fabric.run_until([&] { return step(a_) & step(b_); }, 600s);
  if (::testing::Test::HasFatalFailure()) return;
  ASSERT_TRUE(ended) << "stuck: " << a_.done << " of " << a_.requests.size() << ", " << b_.done << " of "
                     << b_.requests.size();
  pair.fabric.run_for(1ms);  // what is doubled or late comes now, and changes nothing
  for (Side* side : {&a_, &b_}) check_end(*side);
}

void Exchange::check_end(Side& side) {
  EXPECT_EQ(word_at(side.peer.end, kSum), side.sum);
  EXPECT_EQ(word_at(side.peer.end, kWord), side.word);
  for (const Piece& piece : side.written) EXPECT_TRUE(is_there(piece.at, piece.bytes));
  EXPECT_TRUE(side.half.end.poll().empty());
  EXPECT_EQ(side.half.state(), IBV_QPS_RTS);
}

bool Exchange::step(Side& side) {
  post_receives(side);
  Side& other = &side == &a_ ? b_ : a_;
  for (const ibv_wc& wc : side.half.end.poll()) {
    if ((wc.opcode & IBV_WC_RECV) != 0)
      check_receive(side, other, wc);
    else
      check_send(side, wc);
    if (::testing::Test::HasFatalFailure()) return true;
  }
  if (config_.drains) drain(side);
  while (side.left != 0 && side.requests.size() < side.done + kUnderWay) {
    side.left--;
    post_operation(side);
    if (::testing::Test::HasFatalFailure()) return true;
  }
  return side.left == 0 && !side.draining && side.done == side.requests.size() &&
         side.received == other.messages.size();
}

// --- What comes

void Exchange::post_receives(Side& side) {
  std::uint64_t most = side.received + kSlots;
  if (config_.late) {
    if (side.posted != side.received || pair.fabric.now() < side.ready) return;
    side.ready = pair.fabric.now() + 100us;
    most = side.received + 3;
  }
  for (; side.posted < most; side.posted++) {
    const std::size_t at = kReceives + side.posted % kSlots * kSlot;
    End& end = side.half.end;
    const std::array<ibv_sge, 2> sges = {end.sge(at, kFirst), end.sge(at + kFirst + kGap, kSecond)};
    const ReceiveRequest request{side.posted, sges};
    const int error = side.half.srq != nullptr ? end.device().post_srq_receive(*side.half.srq, request)
                                               : end.device().post_receive(*side.half.qp, request);
    EXPECT_EQ(error, 0);
  }
}

void Exchange::check_receive(Side& side, const Side& other, const ibv_wc& wc) {
  ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
  ASSERT_LT(side.received, other.messages.size()) << "a message that nobody has sent";
  const Message& message = other.messages[side.received];
  ASSERT_EQ(wc.wr_id, side.received);
  ASSERT_EQ(wc.opcode, message.opcode);
  ASSERT_EQ(wc.byte_len, message.bytes.size());
  ASSERT_EQ(wc.qp_num, Device::qpn(*side.half.qp));
  ASSERT_EQ(wc.wc_flags, message.imm ? unsigned{IBV_WC_WITH_IMM} : 0U);
  if (message.imm) {
    ASSERT_EQ(wc.imm_data, static_cast<std::uint32_t>(side.received));
  }
  const std::byte* slot = side.half.end.at(kReceives + side.received % kSlots * kSlot);
  side.received++;
  if (message.at != nullptr) {
    ASSERT_TRUE(is_there(message.at, message.bytes));
    return;
  }
  const std::size_t first = std::min(message.bytes.size(), kFirst);
  ASSERT_TRUE(std::equal(message.bytes.begin(), message.bytes.begin() + static_cast<std::ptrdiff_t>(first), slot));
  ASSERT_TRUE(std::equal(message.bytes.begin() + static_cast<std::ptrdiff_t>(first), message.bytes.end(),
                         slot + kFirst + kGap));
  ASSERT_TRUE(is_there(slot + kFirst, Bytes(kGap))) << "between the elements";
}

// A completion also stands for the unsignaled requests before it.
void Exchange::check_send(Side& side, const ibv_wc& wc) {
  ASSERT_EQ(wc.status, IBV_WC_SUCCESS) << wc.opcode;
  ASSERT_GE(wc.wr_id, side.done);
  ASSERT_LT(wc.wr_id, side.draining ? side.held_back : side.requests.size());
  for (; side.done <= wc.wr_id; side.done++) {
    const Request& request = side.requests[side.done];
    ASSERT_EQ(request.signalled, side.done == wc.wr_id) << side.done;
    for (const Piece& piece : request.pieces) ASSERT_TRUE(is_there(piece.at, piece.bytes)) << request.opcode;
  }
  const Request& request = side.requests[wc.wr_id];
  ASSERT_EQ(wc.opcode, request.opcode);
  if (request.opcode != IBV_WC_SEND && request.opcode != IBV_WC_RDMA_WRITE) {
    ASSERT_EQ(wc.byte_len, request.length);
  }
}

// --- Draining

void Exchange::drain(Side& side) {
  ibv_qp_attr attr{};
  if (!side.draining && side.requests.size() >= side.next_drain) {
    side.next_drain += 10;
    attr.qp_state = IBV_QPS_SQD;
    attr.en_sqd_async_notify = 1;
    ASSERT_EQ(side.half.modify(attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
    side.draining = true;
    side.held_back = side.requests.size();
  }
  for (const AsyncEvent& event : side.half.end.events()) {
    ASSERT_EQ(event.type, IBV_EVENT_SQ_DRAINED);
    ASSERT_TRUE(side.draining);
    attr.retry_cnt = side.half.config.retries;
    ASSERT_EQ(side.half.modify(attr, IBV_QP_RETRY_CNT), 0) << "what only a drained queue may have changed";
    ASSERT_EQ(side.half.to_state(IBV_QPS_RTS), 0);
    side.draining = false;
    drained_++;
  }
}

// --- What is asked

std::size_t Exchange::some_length() {
  return random_.chance(0.1) ? 0 : random_.below(kMost + 1);
}

// Puts new bytes into the next request's place to send from.
Bytes Exchange::fill(Side& side, std::size_t length) {
  const std::size_t at = kSource + side.requests.size() % kSlots * kSlot;
  side.half.end.fill(at, length, static_cast<unsigned>(side.salt + side.requests.size()));
  return copy_of(side.half.end.at(at), length);
}

void Exchange::post(Side& side, SendRequest request, std::span<const ibv_sge> sges, Request expected) {
  request.wr_id = side.requests.size();
  request.rkey = side.peer.end.rkey();
  expected.signalled = side.left == 0 || side.unsignalled == 3 || random_.chance(0.4);
  side.unsignalled = expected.signalled ? 0 : side.unsignalled + 1;
  if (expected.signalled) request.flags |= IBV_SEND_SIGNALED;
  side.requests.push_back(std::move(expected));
  ASSERT_EQ(side.half.send(request, sges), 0) << request.opcode;
}

void Exchange::post_operation(Side& side) {
  switch (random_.below(10)) {
    case 0:
      return post_send(side, false);
    case 1:
      return post_send(side, true);
    case 2:
      return post_inline(side);
    case 3:
      return post_write(side, false);
    case 4:
      return post_write(side, true);
    case 5:
    case 6:
      return post_read(side);
    case 7:
      return post_forward(side);
    case 8:
      return post_add(side);
    default:
      return post_swap(side);
  }
}

void Exchange::post_send(Side& side, bool gather) {
  const std::size_t length = some_length(), at = kSource + side.requests.size() % kSlots * kSlot;
  Bytes bytes = fill(side, length);
  End& end = side.half.end;
  std::vector<ibv_sge> sges = {end.sge(at, length)};
  if (gather && length >= 3) {  // the middle is left out
    const std::size_t third = length / 3;
    sges = {end.sge(at, third), end.sge(at + 2 * third, length - 2 * third), end.sge(at, 1)};
    const std::byte first = bytes[0];
    bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(third),
                bytes.begin() + static_cast<std::ptrdiff_t>(2 * third));
    bytes.push_back(first);
  }
  SendRequest request;
  const bool imm = random_.chance(0.5);
  if (imm) {
    request.opcode = IBV_WR_SEND_WITH_IMM;
    request.imm = static_cast<std::uint32_t>(side.messages.size());
  }
  side.messages.push_back({IBV_WC_RECV, imm, std::move(bytes), nullptr});
  post(side, request, sges, {.opcode = IBV_WC_SEND});
}

// The bytes may change as soon as it is posted.
void Exchange::post_inline(Side& side) {
  const std::size_t length = random_.below(side.half.config.inline_bytes + 1);
  const std::size_t at = kSource + side.requests.size() % kSlots * kSlot;
  side.messages.push_back({IBV_WC_RECV, false, fill(side, length), nullptr});
  const ibv_sge sge = side.half.end.sge(at, length);
  post(side, {.flags = IBV_SEND_INLINE}, {&sge, 1}, {.opcode = IBV_WC_SEND});
  std::memset(side.half.end.at(at), 0xee, length);
}

void Exchange::post_write(Side& side, bool imm) {
  const std::size_t length = some_length(), slot = side.writes++ % kSlots;
  const std::size_t from = kSource + side.requests.size() % kSlots * kSlot, to = kWritten + slot * kSlot;
  const Piece piece{side.peer.end.at(to), fill(side, length)};
  side.written[slot] = piece;
  SendRequest request{.opcode = IBV_WR_RDMA_WRITE, .remote_addr = side.peer.end.address(to)};
  if (imm) {
    request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    request.imm = static_cast<std::uint32_t>(side.messages.size());
    side.messages.push_back({IBV_WC_RECV_RDMA_WITH_IMM, true, piece.bytes, piece.at});
  }
  const ibv_sge sge = side.half.end.sge(from, length);
  post(side, request, {&sge, 1}, {.opcode = IBV_WC_RDMA_WRITE, .pieces = {piece}});
}

// The bytes go into two elements.
void Exchange::post_read(Side& side) {
  const std::size_t length = 2 + random_.below(kReadableBytes - 1), first = 1 + random_.below(length - 1);
  const std::size_t from = kReadable + random_.below(kReadableBytes - length + 1);
  const std::size_t to = kInto + side.requests.size() % kSlots * kIntoSlot;
  End& end = side.half.end;
  const std::array<ibv_sge, 2> sges = {end.sge(to, first), end.sge(to + first + 16, length - first)};
  const std::byte* bytes = side.peer.end.at(from);
  std::vector<Piece> pieces = {{end.at(to), copy_of(bytes, first)},
                               {end.at(to + first + 16), copy_of(bytes + first, length - first)}};
  post(side, {.opcode = IBV_WR_RDMA_READ, .remote_addr = side.peer.end.address(from)}, sges,
       {.opcode = IBV_WC_RDMA_READ, .length = length, .pieces = std::move(pieces)});
}

// Bytes that were read are sent back. Only the fence makes that right.
void Exchange::post_forward(Side& side) {
  const std::size_t length = 1 + random_.below(kMost), from = kReadable + random_.below(kReadableBytes - length + 1);
  const std::size_t to = kInto + side.requests.size() % kSlots * kIntoSlot;
  std::memset(side.half.end.at(to), 0xdd, length);
  const Piece piece{side.half.end.at(to), copy_of(side.peer.end.at(from), length)};
  const ibv_sge sge = side.half.end.sge(to, length);
  post(side, {.opcode = IBV_WR_RDMA_READ, .remote_addr = side.peer.end.address(from)}, {&sge, 1},
       {.opcode = IBV_WC_RDMA_READ, .length = length, .pieces = {piece}});
  side.messages.push_back({IBV_WC_RECV, false, piece.bytes, nullptr});
  post(side, {.flags = IBV_SEND_FENCE}, {&sge, 1}, {.opcode = IBV_WC_SEND});
}

void Exchange::post_add(Side& side) {
  const std::size_t to = kFound + side.requests.size() % kSlots * 8;
  const SendRequest request{
      .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .remote_addr = side.peer.end.address(kSum), .compare_add = random_.next()};
  const ibv_sge sge = side.half.end.sge(to, 8);
  post(side, request, {&sge, 1},
       {.opcode = IBV_WC_FETCH_ADD, .length = 8, .pieces = {{side.half.end.at(to), bytes_of(side.sum)}}});
  side.sum += request.compare_add;
}

void Exchange::post_swap(Side& side) {
  const std::size_t to = kFound + side.requests.size() % kSlots * 8;
  const bool equal = random_.chance(0.7);
  const SendRequest request{.opcode = IBV_WR_ATOMIC_CMP_AND_SWP,
                            .remote_addr = side.peer.end.address(kWord),
                            .compare_add = equal ? side.word : side.word + 1,
                            .swap = random_.next()};
  const ibv_sge sge = side.half.end.sge(to, 8);
  post(side, request, {&sge, 1},
       {.opcode = IBV_WC_COMP_SWAP, .length = 8, .pieces = {{side.half.end.at(to), bytes_of(side.word)}}});
  if (equal) side.word = request.swap;
}

}  // namespace bypass::rdma::test
