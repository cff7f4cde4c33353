// Every option of Linux's manual pages is read, set, read, cleared and read. The stack's sockets answer as the kernel's
// do.
#include <linux/net_tstamp.h>
#include <netinet/udp.h>

#include <array>
#include <set>
#include <string>

#include "socket/calls.h"
#include "socket/options/option_kinds.h"
#include "socket/world.h"

namespace bypass::test {
namespace {

using socket::OptionKind;
using socket::OptionName;

// The answers for one option: results, and values in hexadecimal digits.
struct Answers {
  std::string before, set, after, cleared, at_last;
};

std::string read(Calls& calls, int fd, const OptionName& option) {
  std::array<unsigned char, 16> value{};
  socklen_t length = value.size();
  const long r = calls.get_option(fd, option.level, option.name, value.data(), length);
  if (r != 0) return std::to_string(r);
  std::string text;
  for (socklen_t i = 0; i < length; i++) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[value[i] >> 4];
    text += kDigits[value[i] & 15];
  }
  return text;
}

Answers ask(Calls& calls, int fd, const OptionName& option) {
  Answers answers;
  answers.before = read(calls, fd, option);
  answers.set = std::to_string(calls.set_option(fd, option.level, option.name, 1));
  answers.after = read(calls, fd, option);
  answers.cleared = std::to_string(calls.set_option(fd, option.level, option.name, 0));
  answers.at_last = read(calls, fd, option);
  return answers;
}

enum class State { kFresh, kListening, kConnected, kAccepted, kShut, kDatagramBound, kDatagramConnected };
constexpr std::pair<State, const char*> kStates[] = {
    {State::kFresh, "fresh"},
    {State::kListening, "listening"},
    {State::kConnected, "connected"},
    {State::kAccepted, "accepted"},
    {State::kShut, "shut"},
    {State::kDatagramBound, "datagrams, bound"},
    {State::kDatagramConnected, "datagrams, connected"},
};

bool is_datagram(State state) {
  return state == State::kDatagramBound || state == State::kDatagramConnected;
}

struct Subject {
  int fd = -1;
  std::array<int, 3> others{-1, -1, -1};
};

Subject datagram_in(Calls& calls, State state) {
  Subject made;
  made.fd = calls.socket(AF_INET, SOCK_DGRAM);
  EXPECT_EQ(calls.bind(made.fd, calls.address(0)), 0);
  if (state == State::kDatagramBound) return made;
  made.others[0] = calls.socket(AF_INET, SOCK_DGRAM);
  EXPECT_EQ(calls.bind(made.others[0], calls.address(0)), 0);
  EXPECT_EQ(calls.connect(made.fd, calls.local_name(made.others[0])), 0);
  return made;
}

Subject subject_in(Calls& calls, State state) {
  if (is_datagram(state)) return datagram_in(calls, state);
  Subject made;
  if (state == State::kFresh) {
    made.fd = calls.socket(AF_INET, SOCK_STREAM);
    return made;
  }
  std::uint16_t port = 0;
  made.others[0] = calls.server(port);
  if (state == State::kListening) {
    std::swap(made.fd, made.others[0]);
    return made;
  }
  made.others[1] = calls.socket(AF_INET, SOCK_STREAM);
  EXPECT_EQ(calls.connect(made.others[1], calls.address(port)), 0);
  made.others[2] = static_cast<int>(calls.accept(made.others[0]));
  std::swap(made.fd, made.others[state == State::kAccepted ? 2 : 1]);
  if (state == State::kShut) {
    EXPECT_EQ(calls.shutdown(made.fd, SHUT_RDWR), 0);
  }
  return made;
}

void close_all(Calls& calls, const Subject& subject) {
  if (subject.fd >= 0) calls.close(subject.fd);
  for (const int fd : subject.others)
    if (fd >= 0) calls.close(fd);
}

Answers ask_in(Calls& calls, State state, const OptionName& option) {
  const Subject subject = subject_in(calls, state);
  const Answers answers = ask(calls, subject.fd, option);
  close_all(calls, subject);
  return answers;
}

// Options whose value depends on the machine, the moment or the path. Only whether there is a value is compared.
bool value_differs(const OptionName& option) {
  static const std::set<std::pair<int, int>> kOptions = {
      {SOL_SOCKET, SO_COOKIE},
      {SOL_SOCKET, SO_INCOMING_CPU},
      {SOL_SOCKET, SO_INCOMING_NAPI_ID},
      {SOL_SOCKET, SO_MEMINFO},
      {SOL_SOCKET, SO_PEERNAME},
      {SOL_SOCKET, SO_RCVBUF},
      {SOL_SOCKET, SO_SNDBUF},
      {SOL_SOCKET, SO_RCVLOWAT},
      {IPPROTO_TCP, TCP_MAXSEG},
      {IPPROTO_TCP, TCP_TIMESTAMP},  // a clock
      {IPPROTO_TCP, TCP_INFO},
      {IPPROTO_TCP, TCP_CC_INFO},
      {IPPROTO_TCP, TCP_QUICKACK},
      {IPPROTO_TCP, TCP_CONGESTION},
      {IPPROTO_IP, IP_MTU},
      {IPPROTO_IP, IP_FREEBIND},
      {IPPROTO_IP, IP_MULTICAST_TTL},
      {IPPROTO_IP, 52},  // IP_PROTOCOL: for these kinds of sockets, the port
  };
  return kOptions.contains({option.level, option.name});
}

std::string without_value(const std::string& answer) {
  return !answer.empty() && answer[0] == '-' ? answer : "a value";
}

void compare(const char* state, const OptionName& option, const Answers& linux, const Answers& ours) {
  const auto same = [&](const char* when, std::string expected, std::string got) {
    if (value_differs(option)) expected = without_value(expected), got = without_value(got);
    EXPECT_EQ(got, expected) << option.text << " of a socket that is " << state << ", " << when;
  };
  same("read", linux.before, ours.before);
  same("set", linux.set, ours.set);
  same("read after it was set", linux.after, ours.after);
  same("cleared", linux.cleared, ours.cleared);
  same("read at last", linux.at_last, ours.at_last);
}

// Options that are not built. They are refused where the kernel would take them, and cannot be read.
void expect_refused(const char* state, const OptionName& option, const Answers& linux, const Answers& ours) {
  const std::string refused = std::to_string(-ENOPROTOOPT);
  EXPECT_TRUE(ours.set == refused || ours.set == linux.set) << option.text << " of " << state << ": " << ours.set;
  const auto of = [&](const std::string& answer) { return value_differs(option) ? without_value(answer) : answer; };
  EXPECT_EQ(of(ours.after), of(ours.before)) << option.text << " of " << state;
}

TEST(OptionTable, EveryOption_InEveryState_IsAnsweredAsByTheKernel) {
  World::get();
  Calls kernels(false), ours(true);
  for (const auto& [state, name] : kStates) {
    for (const OptionName& option : socket::option_names()) {
      const Answers linux = ask_in(kernels, state, option), answers = ask_in(ours, state, option);
      const OptionKind what = is_datagram(state) ? option.datagram : option.stream;
      const bool decided = state != State::kFresh;
      if (decided && what == OptionKind::kRefused) {
        expect_refused(name, option, linux, answers);
      } else {
        compare(name, option, linux, answers);
      }
    }
  }
}

TEST(OptionTable, OptionOfNoManualPage_IsRefusedAndNamed) {
  World::get();
  Calls calls(true);
  static std::string told;
  told.clear();
  socket::policy.record_why = [](int, unsigned, const char* detail) { told = detail; };
  const auto [client, server] = calls.connected();
  EXPECT_EQ(calls.set_option(client, SOL_SOCKET, 9999, 1), -ENOPROTOOPT);
  EXPECT_EQ(told, "setsockopt level 1 option 9999");
  EXPECT_EQ(calls.set_option(client, IPPROTO_TCP, TCP_TX_DELAY, 1), -ENOPROTOOPT);
  EXPECT_EQ(told, "setsockopt TCP_TX_DELAY");
  EXPECT_EQ(calls.set_option(client, IPPROTO_TCP, TCP_TX_DELAY, 0), 0) << "off it is already";
}

using OptionTest = BothSides;
ON_BOTH_SIDES(OptionTest);

TEST_P(OptionTest, OneByte_OfTosAndTtl_IsTaken) {
  const auto [client, server] = calls.connected();
  const unsigned char tos = 0x10, ttl = 0x21;
  EXPECT_EQ(calls.set_option(client, IPPROTO_IP, IP_TOS, &tos, 1), 0);
  EXPECT_EQ(calls.set_option(server, IPPROTO_IP, IP_TTL, &ttl, 1), 0);
  unsigned char got[4] = {};
  socklen_t length = 1;
  EXPECT_EQ(calls.get_option(client, IPPROTO_IP, IP_TOS, got, length), 0);
  EXPECT_EQ(length, 1U);
  EXPECT_EQ(got[0], tos);
  length = sizeof got;
  EXPECT_EQ(calls.get_option(server, IPPROTO_IP, IP_TTL, got, length), 0);
  EXPECT_EQ(length, 4U);
  EXPECT_EQ(got[0], ttl);
  EXPECT_EQ(calls.set_option(client, IPPROTO_IP, IP_TTL, &ttl, 0), -EINVAL) << "nothing is 0";
}

// ip_sock_set_tos() of Linux drops the route, and IP_MTU asks for it.
TEST_P(OptionTest, TypeOfService_Changed_LeavesNoMtuUntilItSends) {
  const auto [client, server] = calls.connected();
  for (const int fd : {client, server}) {
    int mtu = 0;
    EXPECT_EQ(calls.set_option(fd, IPPROTO_IP, IP_TOS, 1), 0) << "the lowest bits are ECN's";
    EXPECT_EQ(calls.get_option(fd, IPPROTO_IP, IP_MTU, mtu), 0);
    EXPECT_EQ(calls.set_option(fd, IPPROTO_IP, IP_TOS, 0x10), 0);
    EXPECT_EQ(calls.get_option(fd, IPPROTO_IP, IP_MTU, mtu), -ENOTCONN);
    EXPECT_EQ(calls.set_option(fd, IPPROTO_IP, IP_TOS, 0x10), 0);
    EXPECT_EQ(calls.get_option(fd, IPPROTO_IP, IP_MTU, mtu), -ENOTCONN);
    ASSERT_EQ(calls.send(fd, "x"), 1);
    EXPECT_EQ(calls.get_option(fd, IPPROTO_IP, IP_MTU, mtu), 0);
    EXPECT_EQ(calls.set_option(fd, IPPROTO_IP, IP_TOS, 0x10), 0) << "it is that already";
    EXPECT_EQ(calls.get_option(fd, IPPROTO_IP, IP_MTU, mtu), 0);
  }
}

TEST_P(OptionTest, TypeOfService_SetBeforeConnect_LeavesTheMtu) {
  std::uint16_t port = 0;
  calls.server(port);
  const int client = calls.socket(AF_INET, SOCK_STREAM);
  int mtu = 0;
  EXPECT_EQ(calls.set_option(client, IPPROTO_IP, IP_TOS, 0x10), 0);
  EXPECT_EQ(calls.get_option(client, IPPROTO_IP, IP_MTU, mtu), -ENOTCONN);
  ASSERT_EQ(calls.connect(client, calls.address(port)), 0);
  EXPECT_EQ(calls.get_option(client, IPPROTO_IP, IP_MTU, mtu), 0);
}

TEST_P(OptionTest, PeerName_IsWhatGetpeernameSays) {
  const auto [client, server] = calls.connected();
  sockaddr_in peer{}, got{};
  ASSERT_EQ(calls.peer_name(client, peer), 0);
  socklen_t length = sizeof got;
  EXPECT_EQ(calls.get_option(client, SOL_SOCKET, SO_PEERNAME, &got, length), 0);
  EXPECT_EQ(got.sin_port, peer.sin_port);
  char large[64];
  length = sizeof large;
  EXPECT_EQ(calls.get_option(client, SOL_SOCKET, SO_PEERNAME, large, length), -EINVAL);
}

TEST_P(OptionTest, KeptValues_AreReadBack) {
  const auto [client, server] = calls.connected();
  for (const int fd : {client, server}) {
    int value = 0;
    EXPECT_EQ(calls.set_option(fd, SOL_SOCKET, SO_PRIORITY, 3), 0);
    EXPECT_EQ(calls.get_option(fd, SOL_SOCKET, SO_PRIORITY, value), 0);
    EXPECT_EQ(value, 3);
  }
}

TEST_P(OptionTest, TcpInfo_IsAsLongAsTheKernels) {
  const auto [client, server] = calls.connected();
  std::array<char, 512> room{};
  socklen_t length = room.size();
  ASSERT_EQ(calls.get_option(client, IPPROTO_TCP, TCP_INFO, room.data(), length), 0);
  const int plain = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  socklen_t kernels = room.size();
  ASSERT_EQ(::getsockopt(plain, IPPROTO_TCP, TCP_INFO, room.data(), &kernels), 0);
  ::close(plain);
  EXPECT_EQ(length, kernels);
  length = 20;
  ASSERT_EQ(calls.get_option(client, IPPROTO_TCP, TCP_INFO, room.data(), length), 0);
  EXPECT_EQ(length, 20U);
}

TEST_P(OptionTest, TcpInfo_OfAQuietConnection) {
  const auto [client, server] = calls.connected();
  ASSERT_EQ(calls.send(client, "abc"), 3);
  await(calls, server, POLLIN);
  tcp_info info{};
  socklen_t length = sizeof info;
  ASSERT_EQ(calls.get_option(server, IPPROTO_TCP, TCP_INFO, &info, length), 0);
  EXPECT_EQ(info.tcpi_ca_state, 0);
  EXPECT_EQ(info.tcpi_snd_ssthresh, 0x7fffffffU);
  EXPECT_LT(info.tcpi_last_data_recv, 5000U);
  EXPECT_LT(info.tcpi_last_ack_recv, 5000U);
}

TEST_P(OptionTest, DeferAccept_IsRoundedToWholeWaits) {
  std::uint16_t port = 0;
  const int server = calls.server(port);
  for (const auto& [asked, told] : {std::pair{1, 1}, {2, 3}, {5, 7}, {8, 15}}) {
    int value = 0;
    EXPECT_EQ(calls.set_option(server, IPPROTO_TCP, TCP_DEFER_ACCEPT, asked), 0);
    EXPECT_EQ(calls.get_option(server, IPPROTO_TCP, TCP_DEFER_ACCEPT, value), 0);
    EXPECT_EQ(value, told);
  }
}

}  // namespace
}  // namespace bypass::test
