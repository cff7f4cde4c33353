// What may happen in the middle of a long copy, while the lock is released.
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "socket/calls.h"
#include "socket/kernel_table.h"
#include "socket/stream/stream_receive.h"
#include "socket/world.h"

namespace bypass::test {
namespace {

class LongCopyTest : public ::testing::Test {
 protected:
  LongCopyTest() {
    World::get();
    std::tie(client, server) = calls.connected();
  }
  static inline std::function<void()> meanwhile;

  Calls calls{true};
  int client = -1, server = -1;
};

TEST_F(LongCopyTest, Reset_InTheMiddle_IsToldByTheNextSend) {
  char name[] = "/tmp/socket_test_XXXXXX";
  const int file = mkstemp(name);
  unlink(name);
  ASSERT_EQ(ftruncate(file, 64 << 20), 0);
  const linger off{1, 0};
  calls.set_option(server, SOL_SOCKET, SO_LINGER, &off, sizeof off);
  meanwhile = [&] {
    calls.close(server);
    calls.poll_one(client, POLLPRI, 5000);
  };
  KernelTable table;
  table->pread = [](int fd, void* to, size_t bytes, off_t offset) {
    if (meanwhile) std::exchange(meanwhile, nullptr)();
    return ::pread(fd, to, bytes, offset);
  };
  off_t offset = 0;
  EXPECT_GT(calls.send_file(client, file, &offset, 64 << 20), 0);
  EXPECT_EQ(calls.send(client, "x"), -ECONNRESET);
  EXPECT_EQ(calls.send(client, "x"), -EPIPE);
  ::close(file);
}

TEST_F(LongCopyTest, Cancelled_InTheMiddle_LeavesTheSocketToOthers) {
  static int ends[2];  // nothing comes out of it
  ASSERT_EQ(pipe(ends), 0);
  const int file = memfd_create("file", 0);
  std::atomic<bool> reading{false};
  meanwhile = [&] { reading = true; };
  KernelTable table;
  table->read = [](int, void* to, size_t bytes) {
    meanwhile();
    return ::read(ends[0], to, bytes);
  };
  std::thread sender([&] { calls.send_file(client, file, nullptr, 100); });
  while (!reading) std::this_thread::yield();
  pthread_cancel(sender.native_handle());
  sender.join();
  EXPECT_EQ(calls.send(client, "x"), 1);
  for (const int fd : {file, ends[0], ends[1]}) ::close(fd);
}

// A handler that interrupts the copy would wait for it for ever.
TEST_F(LongCopyTest, Signals_AreHeldBackMeanwhile) {
  static std::atomic<int> held;
  static char* page;
  constexpr std::size_t kBytes = 64 << 10;
  page = static_cast<char*>(mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  struct sigaction action {
  }, before;
  action.sa_handler = [](int) {
    held += socket::thread_signals.in_lock > 0 ? 1 : 0;
    mprotect(page, kBytes, PROT_READ | PROT_WRITE);
  };
  sigaction(SIGSEGV, &action, &before);
  held = 0;
  EXPECT_EQ(calls.send(client, {page, kBytes}), static_cast<long>(kBytes));
  EXPECT_EQ(held, 1);
  for (int waiting = 0; waiting <= 16384; calls.poll_one(server, POLLPRI, 1)) {
    ASSERT_EQ(calls.ioctl_int(server, FIONREAD, waiting), 0);
  }
  mprotect(page, kBytes, PROT_NONE);
  std::string got;
  iovec data{page, kBytes};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  EXPECT_GT(calls.receive_message(server, header), 16384);
  EXPECT_EQ(held, 2);
  EXPECT_EQ(socket::thread_signals.in_lock, 0);
  sigaction(SIGSEGV, &before, nullptr);
  munmap(page, kBytes);
}

/// Reads like recv() with MSG_WAITALL. `copying` is called for each part while the part is copied without the lock.
class ReadingAll final : public socket::Receiving {
 public:
  ReadingAll(socket::Socket& socket, std::size_t total, std::function<void()> copying)
      : Receiving(socket, total, total, 0), copying_(std::move(copying)) {}

 private:
  long copy_out(Spans /*from*/, std::size_t bytes) override {
    copying_();
    return static_cast<long>(bytes);
  }
  [[nodiscard]] bool slow_sink() const override { return true; }
  std::function<void()> copying_;
};

TEST_F(LongCopyTest, LastBytesComeWhileOthersAreCopied_AreNotWaitedFor) {
  const auto send = [&] {
    EXPECT_EQ(calls.send(client, std::string(1000, 'x')), 1000);
    EXPECT_EQ(calls.poll_one(client, POLLOUT), POLLOUT);  // a look at the wire
  };
  send();
  const timeval limit{.tv_sec = 5, .tv_usec = 0};
  ASSERT_EQ(calls.set_option(server, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  auto& socket = socket::socket_of(*calls.find(server));
  const auto is_waited_for = [&] {
    const socket::Guard guard(World::get().shard());
    return socket.waiters != nullptr;
  };
  std::atomic<bool> done = false;
  std::thread second([&] {
    while (!done && !is_waited_for()) std::this_thread::yield();
    send();
  });
  int part = 0;
  ReadingAll reading(socket, 3000, [&] {
    if (++part == 2) std::thread(send).join();
  });
  EXPECT_EQ(socket::run_receiving(socket, reading, 0), 3000);
  done = true;
  EXPECT_EQ(part, 3);
  second.join();
}

}  // namespace
}  // namespace bypass::test
