// What a receive reports beside the bytes, and what a send accepts beside them: control messages, the error queue,
// signals.
#include <fcntl.h>
#include <linux/errqueue.h>
#include <linux/net_tstamp.h>
#include <netinet/udp.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "socket/calls.h"
#include "socket/world.h"

namespace bypass::test {
namespace {

// One received message with its control messages, by level and type.
struct Heard {
  long result = 0;
  int flags = 0;
  std::string bytes;
  sockaddr_in name{};
  std::map<std::pair<int, int>, std::string> controls;

  template <typename T>
  [[nodiscard]] std::optional<T> control(int level, int type) const {
    const auto found = controls.find({level, type});
    if (found == controls.end() || found->second.size() < sizeof(T)) return std::nullopt;
    T value;
    std::memcpy(&value, found->second.data(), sizeof value);
    return value;
  }
};

Heard hear(Calls& calls, int fd, int flags = 0, std::size_t room = 100) {
  Heard heard;
  heard.bytes.resize(room);
  alignas(cmsghdr) char control[1024];
  iovec data{heard.bytes.data(), heard.bytes.size()};
  msghdr header{};
  header.msg_name = &heard.name;
  header.msg_namelen = sizeof heard.name;
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  heard.result = calls.receive_message(fd, header, flags);
  heard.flags = header.msg_flags;
  heard.bytes.resize(heard.result > 0 ? static_cast<std::size_t>(heard.result) : 0);
  if (heard.result < 0) return heard;
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c))
    heard.controls[{c->cmsg_level, c->cmsg_type}] =
        std::string(reinterpret_cast<char*>(CMSG_DATA(c)), c->cmsg_len - CMSG_LEN(0));
  return heard;
}

bool is_about_now(const timespec& stamp) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return std::abs(now.tv_sec - stamp.tv_sec) < 60;
}

/// `from` sends and `to` receives, again and again, until the message has a time stamp. The kernel begins to stamp only
/// some milliseconds after the first socket has asked for it.
Heard hear_until(Calls& calls, int from, int to, int level, int type, const sockaddr_in* name = nullptr) {
  for (int i = 0;; i++) {
    name == nullptr ? calls.send(from, "abc") : calls.send_to(from, "abc", *name);
    EXPECT_NE(calls.poll_one(to, POLLIN, 5000) & POLLIN, 0);
    Heard heard = hear(calls, to);
    if (heard.controls.contains({level, type}) || i == 100'000) return heard;
    std::this_thread::yield();
  }
}

using ReportTest = BothSides;
ON_BOTH_SIDES(ReportTest);

// --- Streams

TEST_P(ReportTest, StreamTimestamps_AreOfTheBytes) {
  const auto [client, server] = calls.connected();
  ASSERT_EQ(calls.set_option(server, SOL_SOCKET, SO_TIMESTAMPNS, 1), 0);
  const auto stamp =
      hear_until(calls, client, server, SOL_SOCKET, SCM_TIMESTAMPNS).control<timespec>(SOL_SOCKET, SCM_TIMESTAMPNS);
  ASSERT_TRUE(stamp.has_value());
  EXPECT_TRUE(is_about_now(*stamp));
}

TEST_P(ReportTest, StreamTimestamping_PutsTheSoftwareStampFirst) {
  const auto [client, server] = calls.connected();
  ASSERT_EQ(
      calls.set_option(server, SOL_SOCKET, SO_TIMESTAMPING, SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE),
      0);
  const Heard heard = hear_until(calls, client, server, SOL_SOCKET, SCM_TIMESTAMPING);
  struct Stamps {
    timespec each[3];
  };
  const auto stamps = heard.control<Stamps>(SOL_SOCKET, SCM_TIMESTAMPING);
  ASSERT_TRUE(stamps.has_value());
  EXPECT_TRUE(is_about_now(stamps->each[0]));
  EXPECT_EQ(stamps->each[2].tv_sec, 0);
}

TEST_P(ReportTest, Inq_SaysWhatIsLeft_And1AtTheEnd) {
  const auto [client, server] = calls.connected();
  ASSERT_EQ(calls.set_option(server, IPPROTO_TCP, TCP_INQ, 1), 0);
  EXPECT_EQ(calls.set_option(server, IPPROTO_TCP, TCP_INQ, 2), -EINVAL);
  calls.send(client, "abcdef");
  await(calls, server, POLLIN);
  EXPECT_EQ(hear(calls, server, 0, 2).control<int>(IPPROTO_TCP, TCP_CM_INQ), 4);
  calls.shutdown(client, SHUT_WR);
  await(calls, server, POLLRDHUP);
  EXPECT_EQ(hear(calls, server).control<int>(IPPROTO_TCP, TCP_CM_INQ), 1);
  EXPECT_EQ(hear(calls, server).control<int>(IPPROTO_TCP, TCP_CM_INQ), 1);
}

TEST_P(ReportTest, StreamThatWantsNothing_HearsNothing) {
  const auto [client, server] = calls.connected();
  calls.send(client, "abc");
  await(calls, server, POLLIN);
  EXPECT_TRUE(hear(calls, server).controls.empty());
}

TEST_P(ReportTest, PeekOffset_MovesWithPeeksAndReads) {
  const auto [client, server] = calls.connected();
  int at = 0;
  EXPECT_EQ(calls.get_option(server, SOL_SOCKET, SO_PEEK_OFF, at), 0);
  EXPECT_EQ(at, -1);
  ASSERT_EQ(calls.set_option(server, SOL_SOCKET, SO_PEEK_OFF, 0), 0);
  calls.send(client, "abcdef");
  await(calls, server, POLLIN);
  std::string got;
  EXPECT_EQ(calls.receive(server, got, 2, MSG_PEEK), 2);
  EXPECT_EQ(got, "ab");
  EXPECT_EQ(calls.receive(server, got, 2, MSG_PEEK), 2);
  EXPECT_EQ(got, "cd");
  EXPECT_EQ(calls.receive(server, got, 3), 3);
  EXPECT_EQ(got, "abc");
  EXPECT_EQ(calls.get_option(server, SOL_SOCKET, SO_PEEK_OFF, at), 0);
  EXPECT_EQ(at, 1);
  EXPECT_EQ(calls.receive(server, got, 5, MSG_PEEK), 2);
  EXPECT_EQ(got, "ef");
  EXPECT_EQ(calls.receive(server, got, 5, MSG_PEEK | MSG_DONTWAIT), -EAGAIN);
  calls.shutdown(client, SHUT_WR);
  await(calls, server, POLLRDHUP);
  EXPECT_EQ(calls.receive(server, got, 5, MSG_PEEK | MSG_DONTWAIT), 0);
}

TEST_P(ReportTest, StreamSend_WithUnknownSocketMessage_IsRefused) {
  const auto [client, server] = calls.connected();
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  auto* const c = reinterpret_cast<cmsghdr*>(control);
  c->cmsg_len = CMSG_LEN(sizeof(int));
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = 9999;
  char byte = 'x';
  iovec data{&byte, 1};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  EXPECT_EQ(calls.send_message(client, header, MSG_NOSIGNAL), -EINVAL);
  c->cmsg_level = IPPROTO_IP;
  EXPECT_EQ(calls.send_message(client, header, MSG_NOSIGNAL), 1) << "not the socket's level";
}

// --- Datagrams

struct Ends {
  int from, to;
  sockaddr_in name;  // of `to`
};

Ends datagram_ends(Calls& calls) {
  Ends ends{calls.socket(AF_INET, SOCK_DGRAM), calls.socket(AF_INET, SOCK_DGRAM), {}};
  EXPECT_EQ(calls.bind(ends.from, calls.address(0)), 0);
  EXPECT_EQ(calls.bind(ends.to, calls.address(0)), 0);
  ends.name = calls.local_name(ends.to);
  return ends;
}

sockaddr_in nobody(Calls& calls) {
  const int fd = calls.socket(AF_INET, SOCK_DGRAM);
  EXPECT_EQ(calls.bind(fd, calls.address(0)), 0);
  const sockaddr_in name = calls.local_name(fd);
  calls.close(fd);
  return name;
}

TEST_P(ReportTest, DatagramTimestamping_AndOriginalAddress) {
  const Ends ends = datagram_ends(calls);
  ASSERT_EQ(
      calls.set_option(ends.to, SOL_SOCKET, SO_TIMESTAMPING, SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE),
      0);
  ASSERT_EQ(calls.set_option(ends.to, IPPROTO_IP, IP_RECVORIGDSTADDR, 1), 0);
  const Heard heard = hear_until(calls, ends.from, ends.to, SOL_SOCKET, SCM_TIMESTAMPING, &ends.name);
  EXPECT_TRUE(heard.controls.contains({SOL_SOCKET, SCM_TIMESTAMPING}));
  const auto original = heard.control<sockaddr_in>(IPPROTO_IP, IP_ORIGDSTADDR);
  ASSERT_TRUE(original.has_value());
  EXPECT_EQ(original->sin_port, ends.name.sin_port);
}

// IP_RECVERR: also for a socket that is not connected.
TEST_P(ReportTest, PortUnreachable_IsQueuedForWhoWantsErrors) {
  const Ends ends = datagram_ends(calls);
  const sockaddr_in gone = nobody(calls);
  ASSERT_EQ(calls.set_option(ends.from, IPPROTO_IP, IP_RECVERR, 1), 0);
  ASSERT_EQ(calls.send_to(ends.from, "question", gone), 8);
  EXPECT_EQ(calls.poll_one(ends.from, POLLIN, 5000) & POLLERR, POLLERR);
  const Heard heard = hear(calls, ends.from, MSG_ERRQUEUE);
  ASSERT_EQ(heard.result, 8);
  EXPECT_EQ(heard.bytes, "question");
  EXPECT_NE(heard.flags & MSG_ERRQUEUE, 0);
  EXPECT_EQ(heard.name.sin_port, gone.sin_port);
  const auto error = heard.control<sock_extended_err>(IPPROTO_IP, IP_RECVERR);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->ee_errno, std::uint32_t{ECONNREFUSED});
  EXPECT_EQ(error->ee_origin, SO_EE_ORIGIN_ICMP);
  EXPECT_EQ(error->ee_type, 3);
  EXPECT_EQ(error->ee_code, 3);
  EXPECT_EQ(hear(calls, ends.from, MSG_ERRQUEUE).result, -EAGAIN);
  EXPECT_EQ(calls.poll_one(ends.from, POLLIN), 0) << "with the last entry the pending error goes";
}

TEST_P(ReportTest, PendingError_ComesOnce_AndTheQueueStays) {
  const Ends ends = datagram_ends(calls);
  ASSERT_EQ(calls.set_option(ends.from, IPPROTO_IP, IP_RECVERR, 1), 0);
  ASSERT_EQ(calls.send_to(ends.from, "question", nobody(calls)), 8);
  EXPECT_EQ(calls.poll_one(ends.from, POLLIN, 5000) & POLLERR, POLLERR);
  int error = 0;
  EXPECT_EQ(calls.get_option(ends.from, SOL_SOCKET, SO_ERROR, error), 0);
  EXPECT_EQ(error, ECONNREFUSED);
  EXPECT_EQ(calls.poll_one(ends.from, POLLIN) & POLLERR, POLLERR);
  EXPECT_EQ(hear(calls, ends.from, MSG_ERRQUEUE).result, 8);
}

TEST_P(ReportTest, UnconnectedWithoutRecverr_HearsOfNoError) {
  const Ends ends = datagram_ends(calls);
  ASSERT_EQ(calls.send_to(ends.from, "question", nobody(calls)), 8);
  ASSERT_EQ(calls.send_to(ends.from, "abc", ends.name), 3);
  EXPECT_EQ(calls.poll_one(ends.to, POLLIN, 5000), POLLIN);
  EXPECT_EQ(calls.poll_one(ends.from, POLLIN), 0);
}

TEST_P(ReportTest, ErrorsNotWantedAnyMore_AreForgotten) {
  const Ends ends = datagram_ends(calls);
  ASSERT_EQ(calls.set_option(ends.from, IPPROTO_IP, IP_RECVERR, 1), 0);
  ASSERT_EQ(calls.send_to(ends.from, "question", nobody(calls)), 8);
  EXPECT_EQ(calls.poll_one(ends.from, POLLIN, 5000) & POLLERR, POLLERR);
  EXPECT_EQ(calls.set_option(ends.from, IPPROTO_IP, IP_RECVERR, 0), 0);
  EXPECT_EQ(hear(calls, ends.from, MSG_ERRQUEUE).result, -EAGAIN);
}

long send_with(Calls& calls, const Ends& ends, int level, int type, const void* value, std::size_t size) {
  alignas(cmsghdr) char control[64] = {};
  auto* const c = reinterpret_cast<cmsghdr*>(control);
  c->cmsg_len = CMSG_LEN(size);
  c->cmsg_level = level;
  c->cmsg_type = type;
  std::memcpy(CMSG_DATA(c), value, size);
  char bytes[] = "abc";
  iovec data{bytes, 3};
  msghdr header{};
  sockaddr_in name = ends.name;
  header.msg_name = &name;
  header.msg_namelen = sizeof name;
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = CMSG_SPACE(size);
  return calls.send_message(ends.from, header);
}

TEST_P(ReportTest, DatagramSend_ControlMessages_AreCheckedAsByTheKernel) {
  const Ends ends = datagram_ends(calls);
  const auto with_int = [&](int level, int type, int value) {
    return send_with(calls, ends, level, type, &value, sizeof value);
  };
  EXPECT_EQ(with_int(IPPROTO_IP, IP_TTL, 300), -EINVAL);
  EXPECT_EQ(with_int(IPPROTO_IP, IP_TTL, 0), -EINVAL);
  EXPECT_EQ(with_int(IPPROTO_IP, IP_TTL, 20), 3);
  EXPECT_EQ(with_int(IPPROTO_IP, IP_TOS, 256), -EINVAL);
  EXPECT_EQ(with_int(IPPROTO_IP, IP_TOS, 16), 3);
  EXPECT_EQ(with_int(IPPROTO_IP, 99, 1), -EINVAL);
  EXPECT_EQ(with_int(SOL_SOCKET, 9999, 1), -EINVAL);
  EXPECT_EQ(with_int(IPPROTO_UDP, 9999, 1), -EINVAL);
  EXPECT_EQ(with_int(IPPROTO_TCP, 9999, 1), 3) << "of a level that is not looked at";
  const std::uint8_t byte = 16;
  EXPECT_EQ(send_with(calls, ends, IPPROTO_IP, IP_TTL, &byte, 1), -EINVAL);
  EXPECT_EQ(send_with(calls, ends, IPPROTO_IP, IP_TOS, &byte, 1), 3);
}

TEST_P(ReportTest, ShutForReading_OnlyACallThatMayWaitSeesTheEnd) {
  const Ends ends = datagram_ends(calls);
  ASSERT_EQ(calls.connect(ends.from, ends.name), 0);
  ASSERT_EQ(calls.shutdown(ends.from, SHUT_RD), 0);
  std::string got;
  EXPECT_EQ(calls.receive(ends.from, got), 0);
  EXPECT_EQ(calls.receive(ends.from, got, 10, MSG_DONTWAIT), -EAGAIN);
}

// --- A decided socket stays where it is, both ways

TEST_P(ReportTest, KernelsOption_OfABoundDatagramSocket_MovesNoTraffic) {
  if (geteuid() != 0) GTEST_SKIP() << "SO_MARK wants CAP_NET_ADMIN";
  const Ends ends = datagram_ends(calls);
  EXPECT_EQ(calls.set_option(ends.from, SOL_SOCKET, SO_MARK, 7), 0);
  EXPECT_EQ(calls.set_option(ends.to, IPPROTO_IP, IP_OPTIONS, nullptr, 0), 0);
  ASSERT_EQ(calls.send_to(ends.from, "abc", ends.name), 3);
  std::string got;
  sockaddr_in from{};
  ASSERT_EQ(calls.receive_from(ends.to, got, from), 3);
  ASSERT_EQ(calls.send_to(ends.to, "answer", from), 6);
  EXPECT_EQ(calls.receive(ends.from, got), 6);
}

TEST(DecidedDatagramTest, OptionThatIsNotBuilt_IsRefused_AndMovesNothing) {
  World::get();
  Calls calls(true);
  const Ends ends = datagram_ends(calls);
  EXPECT_EQ(calls.set_option(ends.from, SOL_SOCKET, SO_ZEROCOPY, 1), -ENOPROTOOPT);
  EXPECT_EQ(calls.set_option(ends.from, SOL_SOCKET, SO_RXQ_OVFL, 1), -ENOPROTOOPT);
  ASSERT_EQ(calls.send_to(ends.from, "abc", ends.name), 3);
  std::string got;
  EXPECT_EQ(calls.receive(ends.to, got), 3);
}

// --- Signals

// Any thread of the process may get the signal.
class SignalCaught {
 public:
  explicit SignalCaught(int number) : number_(number) {
    count = 0;
    struct sigaction action {};
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    action.sa_sigaction = [](int, siginfo_t* info, void*) {
      where = info->si_fd;
      what = info->si_code;
      count++;
    };
    sigaction(number, &action, &before_);
  }
  ~SignalCaught() { sigaction(number_, &before_, nullptr); }
  SignalCaught(const SignalCaught&) = delete;
  SignalCaught& operator=(const SignalCaught&) = delete;
  [[nodiscard]] static bool comes() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (count == 0 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    return count != 0;
  }

  static inline std::atomic<int> count{0}, where{0}, what{0};

 private:
  int number_;
  struct sigaction before_ {};
};

TEST_P(ReportTest, Async_SendsSigioToTheOwner) {
  const SignalCaught signals(SIGIO);
  const auto [client, server] = calls.connected();
  ASSERT_EQ(calls.control(server, F_SETOWN, getpid()), 0);
  calls.send(client, "before");
  EXPECT_EQ(SignalCaught::count, 0) << "nobody has asked for it";
  ASSERT_EQ(calls.control(server, F_SETFL, O_RDWR | O_ASYNC), 0);
  calls.send(client, "after");
  calls.poll_one(client, POLLIN);  // a thread looks at the wire
  EXPECT_TRUE(SignalCaught::comes());
  EXPECT_EQ(calls.control(server, F_SETFL, O_RDWR), 0);  // no process is told of its end
}

TEST_P(ReportTest, Async_WithASignalOfItsOwn_SaysWhatAndWhere) {
  const SignalCaught signals(SIGRTMIN);
  const Ends ends = datagram_ends(calls);
  ASSERT_EQ(calls.control(ends.to, F_SETSIG, SIGRTMIN), 0);
  ASSERT_EQ(calls.control(ends.to, F_SETOWN, getpid()), 0);
  ASSERT_EQ(calls.control(ends.to, F_SETFL, O_RDWR | O_ASYNC), 0);
  ASSERT_EQ(calls.send_to(ends.from, "abc", ends.name), 3);
  calls.poll_one(ends.from, POLLIN);
  ASSERT_TRUE(SignalCaught::comes());
  EXPECT_EQ(SignalCaught::where, ends.to);
  EXPECT_EQ(SignalCaught::what, POLL_IN);
  EXPECT_EQ(calls.control(ends.to, F_SETFL, O_RDWR), 0);
}

}  // namespace
}  // namespace bypass::test
