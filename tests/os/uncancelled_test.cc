#include "os/own/uncancelled.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "backends/dpdk/eal/libc.h"
#include "backends/packet/libc.h"

namespace bypass::runtime {
namespace {

// The cancellation points of pthreads(7), required and optional, as far as they use descriptors or wait.
const std::set<std::string> kPoints = {
    "accept",  "accept4",  "clock_nanosleep", "close",   "connect",  "creat",    "epoll_pwait", "epoll_wait",
    "fsync",   "msync",    "nanosleep",       "open",    "open64",   "openat",   "openat64",    "pause",
    "poll",    "ppoll",    "pread",           "pread64", "preadv",   "pselect",  "pwrite",      "pwrite64",
    "pwritev", "read",     "readv",           "recv",    "recvfrom", "recvmmsg", "recvmsg",     "select",
    "send",    "sendmmsg", "sendmsg",         "sendto",  "sigwait",  "sleep",    "tcdrain",     "usleep",
    "wait",    "waitpid",  "write",           "writev",
};

#define BYPASS_NAME(result, name, parameters) #name,
const std::vector<std::string> kUsed = {BYPASS_PACKET_LIBC_CALLS(BYPASS_NAME) BYPASS_DPDK_LIBC_CALLS(BYPASS_NAME)};
#undef BYPASS_NAME

template <typename Function>
auto* get(const char* name) {
  return reinterpret_cast<Function*>(uncancelled(name));
}

/// Runs it in a thread that has been cancelled and ends at the first cancellation point.
template <typename F>
bool comes_back(F body) {
  bool back = false;
  pthread_t thread{};
  struct Start {
    F* body;
    bool* back;
  } start{&body, &back};
  pthread_create(
      &thread, nullptr,
      [](void* raw) -> void* {
        const auto* const s = static_cast<Start*>(raw);
        pthread_cancel(pthread_self());
        (*s->body)();
        *s->back = true;
        return nullptr;
      },
      &start);
  pthread_join(thread, nullptr);
  return back;
}

TEST(Uncancelled, WhatBackendsUseOfCancellationPoints_IsThere) {
  for (const std::string& name : kUsed)
    EXPECT_TRUE(!kPoints.contains(name) || uncancelled(name.c_str()) != nullptr) << name;
}

TEST(Uncancelled, WhatIsNoCancellationPoint_IsLibcs) {
  for (const char* name : {"socket", "bind", "ioctl", "no_such_function"})
    EXPECT_EQ(uncancelled(name), nullptr) << name;
}

// Checks that this way of finding cancellation points finds them.
TEST(Uncancelled, LibcsOwn_EndTheThread) {
  EXPECT_FALSE(comes_back([] { (void)!::write(-1, "", 1); }));
  EXPECT_FALSE(comes_back([] { (void)!::read(-1, nullptr, 0); }));
}

TEST(Uncancelled, ThreadToldToEnd_ComesBackWithLibcsErrors) {
  const auto fails = [](int expected, auto call) {
    errno = 0;
    EXPECT_EQ(call(), -1);
    EXPECT_EQ(errno, expected);
  };
  EXPECT_TRUE(comes_back([&] {
    char byte = 0;
    iovec part{&byte, 1};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    mmsghdr messages{message, 0};
    epoll_event event{};
    const sockaddr address{};
    const timespec wrong{0, -1};
    fails(EBADF, [&] { return get<int(int, sockaddr*, socklen_t*)>("accept")(-1, nullptr, nullptr); });
    fails(EBADF, [&] { return get<int(int, sockaddr*, socklen_t*, int)>("accept4")(-1, nullptr, nullptr, 0); });
    fails(EBADF, [&] { return get<int(int)>("close")(-1); });
    fails(EBADF, [&] { return get<int(int, const sockaddr*, socklen_t)>("connect")(-1, &address, sizeof address); });
    fails(EBADF, [&] { return get<int(int, epoll_event*, int, int)>("epoll_wait")(-1, &event, 1, 0); });
    fails(EINVAL, [&] { return get<int(const timespec*, timespec*)>("nanosleep")(&wrong, nullptr); });
    fails(EBADF, [&] { return get<ssize_t(int, void*, size_t, off64_t)>("pread64")(-1, &byte, 1, 0); });
    fails(EBADF, [&] { return get<ssize_t(int, const void*, size_t, off64_t)>("pwrite64")(-1, &byte, 1, 0); });
    fails(EBADF, [&] { return get<ssize_t(int, void*, size_t)>("read")(-1, &byte, 1); });
    fails(EBADF, [&] { return get<ssize_t(int, const iovec*, int)>("readv")(-1, &part, 1); });
    fails(EBADF, [&] { return get<ssize_t(int, void*, size_t, int)>("recv")(-1, &byte, 1, 0); });
    fails(EBADF, [&] {
      return get<ssize_t(int, void*, size_t, int, sockaddr*, socklen_t*)>("recvfrom")(-1, &byte, 1, 0, nullptr,
                                                                                      nullptr);
    });
    fails(EBADF, [&] { return get<ssize_t(int, msghdr*, int)>("recvmsg")(-1, &message, 0); });
    fails(EBADF, [&] { return get<ssize_t(int, const void*, size_t, int)>("send")(-1, &byte, 1, 0); });
    fails(EBADF, [&] { return get<int(int, mmsghdr*, unsigned, int)>("sendmmsg")(-1, &messages, 1, 0); });
    fails(EBADF, [&] { return get<ssize_t(int, const msghdr*, int)>("sendmsg")(-1, &message, 0); });
    fails(EBADF, [&] {
      return get<ssize_t(int, const void*, size_t, int, const sockaddr*, socklen_t)>("sendto")(-1, &byte, 1, 0, nullptr,
                                                                                               0);
    });
    fails(EBADF, [&] { return get<ssize_t(int, const void*, size_t)>("write")(-1, &byte, 1); });
    fails(EBADF, [&] { return get<ssize_t(int, const iovec*, int)>("writev")(-1, &part, 1); });
    for (const char* name : {"open", "open64"})
      fails(ENOENT, [&] { return get<int(const char*, int, ...)>(name)("/no/such/folder/file", O_RDONLY); });
    for (const char* name : {"openat", "openat64"})
      fails(ENOENT,
            [&] { return get<int(int, const char*, int, ...)>(name)(AT_FDCWD, "/no/such/folder/file", O_RDONLY); });
    EXPECT_EQ(get<int(pollfd*, nfds_t, int)>("poll")(nullptr, 0, 0), 0);
  }));
}

TEST(Uncancelled, TheyDoWhatLibcsDo) {
  const int fd = eventfd(3, EFD_NONBLOCK);
  std::uint64_t value = 4;
  EXPECT_EQ(get<ssize_t(int, const void*, size_t)>("write")(fd, &value, sizeof value), 8);
  pollfd item{fd, POLLIN, 0};
  EXPECT_EQ(get<int(pollfd*, nfds_t, int)>("poll")(&item, 1, 0), 1);
  EXPECT_EQ(get<ssize_t(int, void*, size_t)>("read")(fd, &value, sizeof value), 8);
  EXPECT_EQ(value, 7U);
  EXPECT_EQ(get<ssize_t(int, void*, size_t)>("read")(fd, &value, sizeof value), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(get<int(int)>("close")(fd), 0);
  const std::string path = testing::TempDir() + "/uncancelled." + std::to_string(getpid());
  const int made = get<int(const char*, int, ...)>("open")(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0640);
  struct stat status {};
  EXPECT_EQ(fstat(made, &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640U);
  EXPECT_EQ(unlink(path.c_str()), 0);
  close(made);
}

}  // namespace
}  // namespace bypass::runtime
