// Streams, sending and receiving: the same calls on the kernel's sockets and on the stack's give the same results.
#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "socket/at_once.h"
#include "socket/calls.h"
#include "socket/sleeping.h"
#include "socket/world.h"

namespace bypass::test {
namespace {

using StreamTest = BothSides;
ON_BOTH_SIDES(StreamTest);

// A call that finds its connection in the usual state takes the short way. (Unless no thread has looked at the wire for
// some microseconds. How many calls that concerns depends on the machine.)
TEST_P(StreamTest, ShortTransfers_OfAQuietConnection_AreMadeAtOnce) {
  const auto [client, server] = calls.connected();
  const std::uint64_t before = socket::at_once_counts.stream;
  std::string got;
  bool made = false;
  for (int i = 0; i < 100 || (i < 100'000 && !made); i++) {
    ASSERT_EQ(calls.send(client, "question"), 8);
    await(calls, server, POLLIN);  // polls the wire, so that no later call has to
    ASSERT_EQ(calls.receive(server, got), 8);
    ASSERT_EQ(got, "question");
    ASSERT_EQ(calls.send(server, "answer"), 6);
    await(calls, client, POLLIN);
    ASSERT_EQ(calls.receive(client, got), 6);
    ASSERT_EQ(got, "answer");
    made = !calls.bypass() || socket::at_once_counts.stream - before >= 10;
  }
  EXPECT_TRUE(made) << socket::at_once_counts.stream - before;
}

// Not all bytes are wanted. They are sent in several pieces, with many buffers in a call, at both ends.
TEST_P(StreamTest, ShortTransfers_InPieces_KeepTheirOrder) {
  const auto [client, server] = calls.connected();
  std::string sent(3000, '\0'), got(3000, '\0');
  for (std::size_t i = 0; i < sent.size(); i++) sent[i] = static_cast<char>(i * 7 + i / 256);
  iovec out[3] = {{sent.data(), 1}, {sent.data() + 1, 0}, {sent.data() + 1, 1999}};
  msghdr header{};
  header.msg_iov = out;
  header.msg_iovlen = 3;
  ASSERT_EQ(calls.send_message(client, header, MSG_NOSIGNAL), 2000);
  ASSERT_EQ(calls.send(client, std::string_view(sent).substr(2000)), 1000);
  std::size_t at = 0;
  for (const std::size_t room : {1U, 700U, 5U, 3000U}) {
    iovec in[2] = {{got.data() + at, room / 2}, {got.data() + at + room / 2, std::min(room, 3000 - at) - room / 2}};
    header.msg_iov = in;
    header.msg_iovlen = 2;
    if (room == 3000U) in[0].iov_len = 1, in[1] = {got.data() + at + 1, 3000 - at - 1};
    await(calls, server, POLLIN);
    const long r = calls.receive_message(server, header);
    ASSERT_GT(r, 0);
    ASSERT_LE(static_cast<std::size_t>(r), room);
    at += static_cast<std::size_t>(r);
  }
  while (at < 3000) {
    iovec rest{got.data() + at, 3000 - at};
    header.msg_iov = &rest;
    header.msg_iovlen = 1;
    const long r = calls.receive_message(server, header);
    ASSERT_GT(r, 0);
    at += static_cast<std::size_t>(r);
  }
  EXPECT_EQ(got, sent);
}

TEST_P(StreamTest, Receive_OnEmptyNonBlocking_WouldBlock) {
  const auto [client, server] = calls.connected();
  std::string got;
  EXPECT_EQ(calls.receive(server, got, 100, MSG_DONTWAIT), -EAGAIN);
  calls.set_non_blocking(server, true);
  EXPECT_EQ(calls.receive(server, got), -EAGAIN);
  EXPECT_EQ(calls.send(client, "x"), 1);
  await(calls, server, POLLIN);
  EXPECT_EQ(calls.receive(server, got), 1);
}

TEST_P(StreamTest, Receive_Peek_LeavesTheBytes) {
  const auto [client, server] = calls.connected();
  calls.send(client, "abcdef");
  std::string got;
  await(calls, server, POLLIN);
  EXPECT_EQ(calls.receive(server, got, 3, MSG_PEEK), 3);
  EXPECT_EQ(got, "abc");
  int waiting = 0;
  EXPECT_EQ(calls.ioctl_int(server, FIONREAD, waiting), 0);
  EXPECT_EQ(waiting, 6);
  EXPECT_EQ(calls.receive(server, got), 6);
  EXPECT_EQ(got, "abcdef");
}

TEST_P(StreamTest, Receive_Truncate_DiscardsBytes) {
  const auto [client, server] = calls.connected();
  calls.send(client, "abcdef");
  await(calls, server, POLLIN);
  std::string got;
  EXPECT_EQ(calls.receive(server, got, 4, MSG_TRUNC), 4);
  EXPECT_EQ(calls.receive(server, got), 2);
  EXPECT_EQ(got, "ef");
}

TEST_P(StreamTest, Receive_PeekAndTruncate_LeavesBytesAndMemory) {
  const auto [client, server] = calls.connected();
  calls.send(client, "abcdef");
  await(calls, server, POLLIN);
  std::string got;
  EXPECT_EQ(calls.receive(server, got, 4, MSG_PEEK | MSG_TRUNC), 4);
  EXPECT_EQ(got, std::string(4, '\0'));
  EXPECT_EQ(calls.receive(server, got), 6);
  EXPECT_EQ(got, "abcdef");
}

TEST_P(StreamTest, Receive_WaitAll_WaitsForTheWholeOrTheEnd) {
  const auto [client, server] = calls.connected();
  std::thread writer([&, c = client] {
    for (const char* piece : {"ab", "cd", "ef"}) {
      calls.send(c, piece);
      std::this_thread::yield();
    }
    calls.send(c, "gh");
    calls.shutdown(c, SHUT_WR);
  });
  std::string got;
  EXPECT_EQ(calls.receive(server, got, 6, MSG_WAITALL), 6);
  EXPECT_EQ(got, "abcdef");
  EXPECT_EQ(calls.receive(server, got, 6, MSG_WAITALL), 2);
  EXPECT_EQ(got, "gh");
  writer.join();
}

TEST_P(StreamTest, ReceiveAll_TimeoutAfterSomeCame_ReportsThose) {
  const auto [client, server] = calls.connected();
  const timeval limit{1, 0};
  ASSERT_EQ(calls.set_option(server, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  std::string got;
  long r = 0;
  Sleeping reader([&, fd = server] { r = calls.receive(fd, got, 6, MSG_WAITALL); });
  EXPECT_EQ(calls.send(client, "abc"), 3);
  reader.join();
  EXPECT_EQ(r, 3);
}

TEST_P(StreamTest, Send_TimeoutAfterSomeWent_ReportsThose) {
  const auto [client, server] = calls.connected();
  const timeval limit{0, 200000};
  ASSERT_EQ(calls.set_option(client, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), 0);
  const std::string block(std::size_t{64} << 20, 'x');
  const long sent = calls.send(client, block);
  ASSERT_GT(sent, 0);
  ASSERT_LT(sent, static_cast<long>(block.size()));
  calls.shutdown(client, SHUT_WR);
  long arrived = 0;
  std::string got;
  for (long n = 1; n > 0; arrived += n) n = calls.receive(server, got);
  EXPECT_EQ(arrived, sent);
}

TEST_P(StreamTest, Receive_OfNothing_WaitsItsTimeAndIsNoFailure) {
  const auto [client, server] = calls.connected();
  const timeval time{0, 20'000};
  ASSERT_EQ(calls.set_option(client, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time), 0);
  iovec nothing{};
  msghdr header{};
  for (const std::size_t count : {0U, 1U}) {
    header.msg_iov = &nothing, header.msg_iovlen = count;
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(calls.receive_message(client, header), 0);
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(15));
    EXPECT_EQ(calls.receive_message(client, header, MSG_DONTWAIT), -EAGAIN);
  }
}

TEST_P(StreamTest, Receive_OutOfBand_IsInvalidWithoutUrgentData) {
  const auto [client, server] = calls.connected();
  std::string got;
  EXPECT_EQ(calls.receive(server, got, 1, MSG_OOB), -EINVAL);
}

TEST_P(StreamTest, Receive_WithTimeout_EndsWithWouldBlock) {
  const auto [client, server] = calls.connected();
  const timeval limit{0, 20'000};
  EXPECT_EQ(calls.set_option(server, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  std::string got;
  EXPECT_EQ(calls.receive(server, got), -EAGAIN);
}

TEST_P(StreamTest, ReceiveLowWater_HoldsBackPollAndReceive) {
  const auto [client, server] = calls.connected();
  const int set = calls.epoll_create();
  calls.epoll_control(set, EPOLL_CTL_ADD, server, EPOLLIN | EPOLLOUT | EPOLLET);
  EXPECT_EQ(calls.epoll_wait(set, 0).size(), 1U);
  EXPECT_EQ(calls.set_option(server, SOL_SOCKET, SO_RCVLOWAT, 4), 0);
  EXPECT_EQ(calls.epoll_wait(set, 0).size(), 0U) << "nothing has become enough";
  calls.close(set);
  calls.send(client, "ab");
  EXPECT_EQ(calls.poll_one(server, POLLIN, 10), 0);
  calls.send(client, "cd");
  await(calls, server, POLLIN);
  std::string got;
  EXPECT_EQ(calls.receive(server, got), 4);
}

TEST_P(StreamTest, Send_IntoFullBuffer_WouldBlockThenIsWritableAgain) {
  const auto [client, server] = calls.connected();
  calls.set_non_blocking(client, true);
  const std::string block(65536, 'x');
  std::size_t sent = 0;
  long r = 0;
  while ((r = calls.send(client, block)) > 0) sent += static_cast<std::size_t>(r);
  EXPECT_EQ(r, -EAGAIN);
  std::string got;
  std::size_t received = 0;
  while (received < sent) {
    const long n = calls.receive(server, got);
    ASSERT_GT(n, 0);
    received += static_cast<std::size_t>(n);
  }
  await(calls, client, POLLOUT);
  EXPECT_GT(calls.send(client, block), 0);
}

TEST_P(StreamTest, Transfer_OfMegabytes_ArrivesWhole) {
  const auto [client, server] = calls.connected();
  std::string all(8U << 20, '\0');
  for (std::size_t i = 0; i < all.size(); i++) all[i] = static_cast<char>(i * 2654435761U >> 24);
  std::thread writer([&, c = client] {
    EXPECT_EQ(calls.send(c, all), static_cast<long>(all.size()));
    calls.shutdown(c, SHUT_WR);
  });
  std::string got, piece;
  while (calls.receive(server, piece, 300'000) > 0) got += piece;
  writer.join();
  EXPECT_EQ(got.size(), all.size());
  EXPECT_TRUE(got == all);
}

TEST_P(StreamTest, OutQueue_EmptiesWhenAcknowledged) {
  const auto [client, server] = calls.connected();
  calls.send(client, "bytes");
  std::string got;
  calls.receive(server, got);
  int left = -1;
  for (int i = 0; i < 1000 && left != 0; i++) {
    EXPECT_EQ(calls.ioctl_int(client, SIOCOUTQ, left), 0);
    calls.poll_one(client, POLLIN, 1);
  }
  EXPECT_EQ(left, 0);
}

TEST_P(StreamTest, SendMany_PartialMessage_IsTheLast) {
  const auto [client, server] = calls.connected();
  calls.set_non_blocking(client, true);
  std::string large(64U << 20, 'x');
  iovec data{large.data(), large.size()};
  std::vector<mmsghdr> messages(3);
  for (mmsghdr& m : messages) m.msg_hdr.msg_iov = &data, m.msg_hdr.msg_iovlen = 1;
  EXPECT_EQ(calls.send_many(client, messages), 1);
  EXPECT_LT(messages[0].msg_len, large.size());
}

}  // namespace
}  // namespace bypass::test
