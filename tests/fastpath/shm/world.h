// What the tests of src/fastpath/shm share: kernel connections, a clock, processes that come to a name.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "fastpath/shm/rendezvous/pairing.h"

namespace bypass::test {

using namespace std::chrono_literals;
namespace shm = fastpath::shm;
using shm::Descriptor;
using shm::Refusal;

/// A run directory, which is removed with the process that made it.
class MeetingFolder {
 public:
  MeetingFolder() {
    char name[] = "/tmp/bypass-test-meeting.XXXXXX";
    path_ = ::mkdtemp(name);
    folder_ = Descriptor(::open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  ~MeetingFolder() {
    if (::getpid() == maker_) std::filesystem::remove_all(path_);
  }
  MeetingFolder(const MeetingFolder&) = delete;
  MeetingFolder& operator=(const MeetingFolder&) = delete;
  [[nodiscard]] int get() const { return folder_.get(); }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  const pid_t maker_ = ::getpid();
  std::filesystem::path path_;
  Descriptor folder_;
};
inline MeetingFolder& the_meeting_folder() {
  static MeetingFolder folder;
  return folder;
}
inline int meeting_folder() {
  return the_meeting_folder().get();
}

inline std::size_t open_descriptors() {
  meeting_folder();  // is open before descriptors are counted
  std::size_t n = 0;
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) n++;
  return n;
}

/// No descriptor is left open, whatever a test did.
class LeakFree : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(open_descriptors(), before_); }

 private:
  std::size_t before_ = open_descriptors();
};

enum class Family { kV4, kV6, kMapped };

/// A socket address of this host's own.
struct Loopback {
  sockaddr_storage name{};
  socklen_t bytes = 0;

  explicit Loopback(Family family, std::uint16_t port = 0) {
    if (family == Family::kV4) {
      auto& v4 = reinterpret_cast<sockaddr_in&>(name);
      v4.sin_family = AF_INET;
      v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      v4.sin_port = htons(port);
      bytes = sizeof v4;
      return;
    }
    auto& v6 = reinterpret_cast<sockaddr_in6&>(name);
    v6.sin6_family = AF_INET6;
    v6.sin6_addr = in6addr_loopback;
    if (family == Family::kMapped) {
      const std::array<std::uint8_t, 16> mapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
      std::memcpy(&v6.sin6_addr, mapped.data(), mapped.size());
    }
    v6.sin6_port = htons(port);
    bytes = sizeof v6;
  }
  [[nodiscard]] const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&name); }
  sockaddr* address() { return reinterpret_cast<sockaddr*>(&name); }
  [[nodiscard]] int domain() const { return name.ss_family; }
};

/// One TCP connection of the kernel, both ends. kMapped: an IPv6 client and an IPv4 server.
struct Connection {
  Descriptor client, server;

  /// Port 0: any port.
  explicit Connection(Family family = Family::kV4, std::uint16_t from = 0, std::uint16_t to = 0) {
    const Loopback here(family == Family::kMapped ? Family::kV4 : family, to);
    const Descriptor listener(::socket(here.domain(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    EXPECT_EQ(::bind(listener.get(), here.address(), here.bytes), 0);
    EXPECT_EQ(::listen(listener.get(), 1), 0);
    Loopback bound(Family::kV4);
    socklen_t bytes = sizeof bound.name;
    EXPECT_EQ(::getsockname(listener.get(), bound.address(), &bytes), 0);
    const std::uint16_t port = ntohs(reinterpret_cast<const sockaddr_in&>(bound.name).sin_port);
    const Loopback there(family, port), own(family, from);
    client = Descriptor(::socket(there.domain(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    ::setsockopt(client.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (from != 0) {
      EXPECT_EQ(::bind(client.get(), own.address(), own.bytes), 0);
    }
    EXPECT_EQ(::connect(client.get(), there.address(), there.bytes), 0);
    server = Descriptor(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_TRUE(server.is_open());
    // A close leaves no TIME_WAIT.
    const linger abort{1, 0};
    ::setsockopt(client.get(), SOL_SOCKET, SO_LINGER, &abort, sizeof abort);
  }
};

inline constexpr Instant kStart{1s};
inline constexpr Instant kDeadline = kStart + 10s;
inline constexpr shm::RingSizes kSizes{16384, 8192};

/// Lets the state machines act in turn, while time goes on, until none waits.
template <typename... Machine>
Instant settle(Instant now, Machine&... machine) {
  constexpr auto kWaiting = [](const auto& m) { return static_cast<int>(m.state()) == 0; };
  for (; (kWaiting(machine) || ...); now += 1ms) (machine.step(now), ...);
  return now;
}

/// A process that connects to the name.
inline shm::Channel visit(int tcp) {
  shm::Channel made;
  shm::NamedListener::connect(meeting_folder(), shm::rendezvous_name(shm::connection_end(tcp).value).view(), made);
  return made;
}

/// A process that has the name and gives it up.
class Squatter {
 public:
  explicit Squatter(int tcp, int type = SOCK_SEQPACKET, bool listens = true)
      : socket_(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0)) {
    const shm::RendezvousName text = shm::rendezvous_name(shm::connection_end(tcp).value);
    path_ = "/proc/self/fd/" + std::to_string(meeting_folder()) + "/" + std::string(text.view());
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    path_.copy(name.sun_path, sizeof name.sun_path - 1);
    EXPECT_EQ(::bind(get(), reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
    if (listens) {
      EXPECT_EQ(::listen(get(), 8), 0);
    }
  }
  ~Squatter() { ::unlink(path_.c_str()); }
  Squatter(const Squatter&) = delete;
  Squatter& operator=(const Squatter&) = delete;
  [[nodiscard]] int get() const { return socket_.get(); }

 private:
  Descriptor socket_;
  std::string path_;
};
inline shm::Channel accept_one(const Squatter& listener) {
  return shm::Channel(Descriptor(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)));
}

/// Sends any number of descriptors with a packet, which Channel::send() cannot do.
inline bool send_many(const shm::Channel& channel, std::span<const std::byte> packet, std::span<const int> passed) {
  iovec part{const_cast<std::byte*>(packet.data()), packet.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(64 * sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = CMSG_SPACE(passed.size() * sizeof(int));
  cmsghdr* const rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(passed.size() * sizeof(int));
  std::memcpy(CMSG_DATA(rights), passed.data(), passed.size() * sizeof(int));
  return ::sendmsg(channel.descriptor(), &header, MSG_NOSIGNAL) >= 0;
}

inline shm::Message message_of(shm::MessageKind kind) {
  shm::Message message;
  message.bytes = sizeof message;
  message.kind = kind;
  return message;
}
inline std::span<const std::byte> bytes_of(const shm::Message& message) {
  return std::as_bytes(std::span(&message, 1));
}

/// The next message that comes to a test's own end of a channel.
inline shm::Message hear(shm::Channel& channel) {
  std::array<std::byte, shm::kMessageRoom> room;
  const shm::Channel::Received received = channel.receive(room);
  const auto message = shm::message_in(room, received);
  EXPECT_TRUE(message.ok());
  return message.value;
}

}  // namespace bypass::test
