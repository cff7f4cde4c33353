// splice() and sendfile() of streams: the same calls on the kernel's sockets and on the stack's.
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <numeric>
#include <thread>

#include "socket/calls.h"
#include "socket/world.h"

namespace bypass::test {
namespace {

using StreamSpliceTest = BothSides;
ON_BOTH_SIDES(StreamSpliceTest);

TEST_P(StreamSpliceTest, Splice_IntoAPipe_MovesWhatHasComeAndHasRoom) {
  const auto [client, server] = calls.connected();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(calls.send(client, "0123456789"), 10);
  await(calls, server, POLLIN);
  char got[100] = {};
  EXPECT_EQ(calls.splice_out(server, ends[1], 4, 0), 4);
  EXPECT_EQ(read(ends[0], got, sizeof got), 4);
  EXPECT_EQ(calls.splice_out(server, ends[1], 100, SPLICE_F_NONBLOCK), 6);
  EXPECT_EQ(read(ends[0], got + 4, sizeof got - 4), 6);
  EXPECT_STREQ(got, "0123456789");
  EXPECT_EQ(calls.splice_out(server, ends[1], 0, 0), 0);

  // No byte has come. The socket's flag decides whether the call waits, not SPLICE_F_NONBLOCK.
  calls.set_non_blocking(server, true);
  EXPECT_EQ(calls.splice_out(server, ends[1], 100, 0), -EAGAIN);
  calls.set_non_blocking(server, false);
  const timeval soon{0, 20'000};
  ASSERT_EQ(calls.set_option(server, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon), 0);
  const auto before = std::chrono::steady_clock::now();
  EXPECT_EQ(calls.splice_out(server, ends[1], 100, SPLICE_F_NONBLOCK), -EAGAIN);
  EXPECT_GE(std::chrono::steady_clock::now() - before, std::chrono::milliseconds(15));

  calls.close(client);
  await(calls, server, POLLIN);
  EXPECT_EQ(calls.splice_out(server, ends[1], 100, 0), 0) << "the end";
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_P(StreamSpliceTest, Splice_IntoAFullPipe_LeavesTheRestInTheConnection) {
  const auto [client, server] = calls.connected();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(fcntl(ends[1], F_SETPIPE_SZ, 4096), 4096);
  std::string sent(200'000, ' ');
  for (std::size_t i = 0; i < sent.size(); i++) sent[i] = static_cast<char>(i * 31 + i / 251);
  std::thread writer([&, c = client] {
    for (std::size_t at = 0; at < sent.size();) at += static_cast<std::size_t>(calls.send(c, sent.substr(at, 30'000)));
  });
  calls.set_non_blocking(server, true);
  std::string got(sent.size(), ' ');
  std::size_t at = 0, fills = 0;
  while (at < sent.size()) {
    const long r = calls.splice_out(server, ends[1], 1 << 20, SPLICE_F_NONBLOCK);
    ASSERT_TRUE(r > 0 || r == -EAGAIN) << r;
    if (r > 0) continue;
    int there = 0;
    ASSERT_EQ(ioctl(ends[0], FIONREAD, &there), 0);
    if (there == 0) {
      await(calls, server, POLLIN);
      continue;
    }
    fills++;
    ASSERT_EQ(read(ends[0], got.data() + at, static_cast<std::size_t>(there)), there);
    at += static_cast<std::size_t>(there);
  }
  writer.join();
  EXPECT_GE(fills, 2U);
  EXPECT_TRUE(got == sent);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_P(StreamSpliceTest, Splice_IntoWhatIsNoPipeOrIsNotRead_Fails) {
  const auto [client, server] = calls.connected();
  ASSERT_EQ(calls.send(client, "x"), 1);
  await(calls, server, POLLIN);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_EQ(calls.splice_out(server, ends[0], 1, 0), -EBADF);
  EXPECT_EQ(calls.splice_out(server, ends[1], 1, 0x100), -EINVAL);
  const int file = memfd_create("none", 0);
  EXPECT_EQ(calls.splice_out(server, file, 1, 0), -EINVAL);
  ::close(file);
  ::close(ends[0]);
  const auto before = signal(SIGPIPE, SIG_IGN);
  bool sigpipe = false;
  EXPECT_EQ(calls.splice_out(server, ends[1], 1, 0, &sigpipe), -EPIPE);
  EXPECT_EQ(sigpipe, calls.bypass());
  signal(SIGPIPE, before);
  std::string got;
  EXPECT_EQ(calls.receive(server, got), 1) << "still there";
  ::close(ends[1]);
}

// A FIFO with a slow reader. No byte is lost if another process fills the FIFO meanwhile.
TEST_P(StreamSpliceTest, Splice_IntoAFifo_WaitsForItsReader) {
  const auto [client, server] = calls.connected();
  const std::string path = ::testing::TempDir() + "/fifo." + std::to_string(getpid());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const int out = ::open(path.c_str(), O_RDWR);
  ASSERT_GE(out, 0);
  ASSERT_EQ(unlink(path.c_str()), 0);
  ASSERT_EQ(fcntl(out, F_SETPIPE_SZ, 4096), 4096);
  const std::string sent(50'000, 'f');
  std::thread writer([&, c = client] {
    for (std::size_t at = 0; at < sent.size();) at += static_cast<std::size_t>(calls.send(c, sent.substr(at, 9'000)));
  });
  std::size_t read_bytes = 0;
  std::thread reader([&] {
    std::string piece(3000, ' ');
    while (read_bytes < sent.size()) {
      const ssize_t r = read(out, piece.data(), piece.size());
      if (r <= 0) break;
      read_bytes += static_cast<std::size_t>(r);
    }
  });
  std::size_t spliced = 0;
  while (spliced < sent.size()) {
    const long r = calls.splice_out(server, out, sent.size(), 0);
    ASSERT_GT(r, 0);
    spliced += static_cast<std::size_t>(r);
  }
  writer.join();
  reader.join();
  EXPECT_EQ(read_bytes, sent.size());
  ::close(out);
}

TEST_P(StreamSpliceTest, Splice_OutOfAPipe_MovesWhatLiesThereAndHasRoom) {
  const auto [client, server] = calls.connected();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_EQ(calls.splice(ends[0], client, 100, SPLICE_F_NONBLOCK), -EAGAIN);
  ASSERT_EQ(write(ends[1], "0123456789", 10), 10);
  EXPECT_EQ(calls.splice(ends[0], client, 4, 0), 4);
  EXPECT_EQ(calls.splice(ends[0], client, 100, 0), 6);
  std::string all, got;
  while (all.size() < 10 && calls.poll_one(server, POLLIN, 5000) > 0 && calls.receive(server, got) > 0) all += got;
  EXPECT_EQ(all, "0123456789");

  // Bytes that a full connection does not take stay in the pipe.
  calls.set_non_blocking(client, true);
  const std::string page(4096, 'x');
  std::size_t written = 0, spliced = 0;
  for (long r = 0; r >= 0;) {
    ASSERT_EQ(write(ends[1], page.data(), page.size()), 4096);
    written += page.size();
    r = calls.splice(ends[0], client, 65536, 0);
    if (r > 0) spliced += static_cast<std::size_t>(r);
    if (r < 0) {
      EXPECT_EQ(r, -EAGAIN);
    }
    ASSERT_LT(written, std::size_t{64} << 20);
    int left = 0;
    ASSERT_EQ(ioctl(ends[0], FIONREAD, &left), 0);
    EXPECT_EQ(spliced + static_cast<std::size_t>(left), written);
  }
  int left = 0;
  ASSERT_EQ(ioctl(ends[0], FIONREAD, &left), 0);
  std::string rest(static_cast<std::size_t>(left), ' ');
  ASSERT_EQ(read(ends[0], rest.data(), rest.size()), left);
  ::close(ends[1]);
  EXPECT_EQ(calls.splice(ends[0], client, 100, 0), 0);
  calls.shutdown(client, SHUT_WR);
  std::size_t came = 0;
  while (calls.poll_one(server, POLLIN, 5000) > 0 && calls.receive(server, got, 65536) > 0) came += got.size();
  EXPECT_EQ(came, spliced);
  EXPECT_EQ(calls.splice(memfd_create("none", 0), client, 1, 0), -EINVAL);
  ::close(ends[0]);
}

TEST_P(StreamSpliceTest, SendFile_BeyondItsEnd_SendsWhatThereIs) {
  const auto [client, server] = calls.connected();
  char name[] = "/tmp/socket_test_XXXXXX";
  const int file = mkstemp(name);
  unlink(name);
  ASSERT_EQ(write(file, "0123456789", 10), 10);
  off_t offset = 4;
  EXPECT_EQ(calls.send_file(client, file, &offset, 100), 6);
  EXPECT_EQ(offset, 10);
  std::string got;
  await(calls, server, POLLIN);
  EXPECT_EQ(calls.receive(server, got), 6);
  EXPECT_EQ(got, "456789");
  EXPECT_EQ(calls.send_file(client, file, &offset, 100), 0);
  ::close(file);
}

TEST_P(StreamSpliceTest, OfADissolvedConnection_TellsItsErrorFirst) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], "abc", 3), 3);
  const int file = memfd_create("bytes", MFD_CLOEXEC);
  ASSERT_EQ(write(file, "abc", 3), 3);
  for (int i = 0; i < 3; i++) {
    const int end = calls.connected().first;
    ASSERT_EQ(calls.disconnect(end), 0);
    off_t offset = 0;
    const long r = i == 0   ? calls.send_file(end, file, &offset, 3)
                   : i == 1 ? calls.splice(ends[0], end, 3, 0)
                            : calls.splice_out(end, ends[1], 3, 0);
    EXPECT_EQ(r, -ECONNRESET) << i;
    int error = -1;
    EXPECT_EQ(calls.get_option(end, SOL_SOCKET, SO_ERROR, error), 0);
    EXPECT_EQ(error, 0) << i;
  }
  for (const int fd : {ends[0], ends[1], file}) ::close(fd);
}

}  // namespace
}  // namespace bypass::test
