#include "config/port_use.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#include "backends/claim_name.h"

namespace bypass::runtime {
namespace {

/// A Unix socket with a name, or connected to one.
class Unix {
 public:
  explicit Unix(const std::string& name) {
    address_.sun_family = AF_UNIX;
    std::memcpy(address_.sun_path, name.data(), name.size());
    length_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  }
  ~Unix() { close(fd_); }
  Unix(const Unix&) = delete;
  Unix& operator=(const Unix&) = delete;
  bool bind() { return ::bind(fd_, reinterpret_cast<const sockaddr*>(&address_), length_) == 0; }
  bool listen() { return bind() && ::listen(fd_, 1) == 0; }
  bool connect() { return ::connect(fd_, reinterpret_cast<const sockaddr*>(&address_), length_) == 0; }
  int accept() { return ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC); }

 private:
  int fd_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address_{};
  socklen_t length_ = 0;
};

std::string use_of(const char* kind, const std::string& target) {
  PortConfig port;
  port.kind = kind;
  port.target = target;
  port.addresses = {{IpAddress::from_v4(0x0a090001), 24}};
  return port_in_use(Config{}, port);
}

TEST(PortUse, Path_IsInUse_WhileSomebodyListensThere) {
  char folder[] = "/tmp/bypass-port-use-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/wire";
  EXPECT_EQ(use_of("vhost", path), "");
  {
    Unix server(path);
    ASSERT_TRUE(server.listen());
    EXPECT_EQ(use_of("vhost", path), "another process serves this path");
    EXPECT_EQ(use_of("vhost", path + ",peer=root"), "another process serves this path");
    EXPECT_EQ(use_of("vhost", path + "2"), "");
    EXPECT_EQ(use_of("vhost", "wire"), "") << "the end of another path";
  }
  EXPECT_EQ(use_of("vhost", path), "") << "what a killed process has left serves nobody";
  unlink(path.c_str());
  rmdir(folder);
}

TEST(PortUse, Path_HasOneClient) {
  char folder[] = "/tmp/bypass-port-use-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/wire";
  Unix server(path);
  ASSERT_TRUE(server.listen());
  EXPECT_EQ(use_of("virtio", path), "");
  {
    Unix client(path);
    ASSERT_TRUE(client.connect());
    const int accepted = server.accept();
    EXPECT_EQ(use_of("virtio", path), "another client is connected there");
    close(accepted);
  }
  EXPECT_EQ(use_of("virtio", path), "");
  unlink(path.c_str());
  rmdir(folder);
}

TEST(PortUse, AddressOfAnInterface_IsInUse_WhileItIsClaimed) {
  const std::string interface = "bp-" + std::to_string(getpid() % 10000);
  EXPECT_EQ(use_of("af_packet", interface), "");
  Unix claim(std::string(1, '\0') + claim_name(interface, "10.9.0.1"));
  ASSERT_TRUE(claim.bind());
  EXPECT_EQ(use_of("af_packet", interface), "another process has the address 10.9.0.1 on this interface");
  EXPECT_EQ(use_of("af_xdp", interface), "another process has the address 10.9.0.1 on this interface");
  EXPECT_EQ(use_of("tap", interface), "");
  EXPECT_EQ(use_of("af_packet", interface + "2"), "");
}

}  // namespace
}  // namespace bypass::runtime
