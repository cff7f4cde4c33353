// Claims of several processes, and names that another user has. Each case runs in a network namespace of its own. A
// process that may not make one skips these cases.
#include "backends/packet/flows/claim.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>

#include "backends/packet/libc.h"
#include "backends/plain_host.h"
#include "packet/network_namespace.h"

namespace bypass::packet {
namespace {

// A child that calls `begin`, says so and stays until the object is destroyed.
class Other {
 public:
  explicit Other(const std::function<bool()>& begin) {
    int ready[2];
    if (pipe(ready) != 0) return;
    child_ = fork();
    if (child_ == 0) {
      const bool done = begin();
      if (write(ready[1], done ? "y" : "n", 1) != 1) _exit(1);
      pause();
      _exit(0);
    }
    close(ready[1]);
    char answer = 0;
    is_ready_ = read(ready[0], &answer, 1) == 1 && answer == 'y';
    close(ready[0]);
  }
  ~Other() { end(); }
  void end() {
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    child_ = 0;
  }
  [[nodiscard]] bool is_ready() const { return is_ready_; }
  [[nodiscard]] std::string words() const { return " (pid " + std::to_string(child_) + ")"; }

 private:
  pid_t child_ = 0;
  bool is_ready_ = false;
};

// What a stranger does to make the name look taken: it binds the name and fills the queue itself.
bool occupy(uid_t user) {
  sockaddr_un address{AF_UNIX, {}};
  const std::string text = "libbypass/eth0/10.9.0.1";
  std::copy(text.begin(), text.end(), address.sun_path + 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  const auto* const name = reinterpret_cast<const sockaddr*>(&address);
  if (setuid(user) != 0) return false;
  const int listener = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
  return bind(listener, name, length) == 0 && listen(listener, 0) == 0 && connect(client, name, length) == 0;
}

class ClaimTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* missing = nullptr;
    ASSERT_TRUE(bind_libc(&PlainHost::host(), &missing)) << missing;
  }
  static void in_namespace(const std::function<void()>& test) {
    const std::string lacks = in_network_namespace([&] { return test(), std::string(); });
    if (!lacks.empty()) GTEST_SKIP() << lacks;
  }
  static bool take(Claim& claim) { return claim.take("eth0", "10.9.0.1"); }
};

TEST_F(ClaimTest, EveryProcessThatComesLater_IsRefusedAndToldByWhom) {
  in_namespace([] {
    Other first([] { return take(*new Claim); });
    ASSERT_TRUE(first.is_ready());
    for (int i = 0; i < 3; i++) {
      Claim claim;
      EXPECT_FALSE(take(claim)) << i;
      EXPECT_EQ(claim.holder(), first.words()) << i;
    }
    first.end();
    Claim claim;
    EXPECT_TRUE(take(claim)) << "the holder has gone";
  });
}

TEST_F(ClaimTest, NameOfAnotherUsers_RefusesNobody) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to be another user";
  in_namespace([] {
    const Other stranger([] { return occupy(12345); });
    ASSERT_TRUE(stranger.is_ready());
    for (int i = 0; i < 2; i++) {
      Claim claim;
      EXPECT_TRUE(take(claim)) << i;
    }
  });
}

TEST_F(ClaimTest, NameOfRoots_RefusesOtherUsers) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to be another user";
  in_namespace([] {
    const Other first([] { return occupy(0); });
    ASSERT_TRUE(first.is_ready());
    const Other second([] {
      Claim claim;
      return setuid(12345) == 0 && !take(claim) && claim.holder().empty();
    });
    EXPECT_TRUE(second.is_ready());
  });
}

}  // namespace
}  // namespace bypass::packet
