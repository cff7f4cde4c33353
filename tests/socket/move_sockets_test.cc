// What another arena has of a socket after its process has moved there.
#include "socket/family/move_sockets.h"

#include <netinet/in.h>

#include "socket/kin_fixture.h"

namespace bypass::socket {
namespace {

class MoveSockets : public Kin {
 protected:
  static inline File* brought = nullptr;
  static void bring() {
    brought = nullptr;
    bring_sockets([](int, File* file) { brought = file; });
  }
  /// Bound to our address on the wire.
  static Number datagram() {
    const int fd = ::socket(AF_INET, SOCK_DGRAM, 0);
    const Number made{open_socket(fd, AF_INET, SOCK_DGRAM, 0), fd};
    const sockaddr_in local = address_of(kOurs, 0);
    EXPECT_EQ(bind(*made.file, fd, reinterpret_cast<const sockaddr*>(&local), sizeof local), 0);
    return made;
  }
};

TEST_F(MoveSockets, ADatagramSocketThatIsThere_IsFoundByTheKernelsSocket) {
  const Number one = datagram(), other = datagram();
  note_socket(*other.file, other.fd);
  bring();
  EXPECT_EQ(brought, other.file);
  EXPECT_EQ(other.file->references.total(), 2U);
  (void)other.file->references.remove(objects->memory, shard().family().slot());
  close(one);
  close(other);
}

TEST_F(MoveSockets, ADatagramSocketThatIsNotThere_IsMadeAsItWas) {
  const Number left = datagram();
  const int receive_bytes = 50'000;
  ASSERT_EQ(set_option(*left.file, left.fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes), 0);
  const Endpoint local = udp_engine().local(*socket_of(*left.file).binding);
  const std::uint32_t room = socket_of(*left.file).details->receive_bytes;
  note_socket(*left.file, left.fd);
  release(*left.file, left.fd);
  bring();
  ASSERT_NE(brought, nullptr);
  const Socket& made = socket_of(*brought);
  EXPECT_EQ(made.kind, FileKind::kDatagram);
  EXPECT_EQ(udp_engine().local(*made.binding), local);
  EXPECT_EQ(made.details->receive_bytes, room);
  EXPECT_EQ(made.details->receiver, 0U);
  EXPECT_EQ(made.references.total(), 2U) << "the owner of the ports, which is a driver elsewhere, has it, too";
  (void)brought->references.remove(objects->memory, shard().family().slot());
  close({brought, left.fd});
}

TEST_F(MoveSockets, WhatAnotherOfTheFamilyHasAlone_IsSeen) {
  EXPECT_TRUE(has_all_on_wire());
  fork_child([&] {
    close(listener_);
    EXPECT_FALSE(has_all_on_wire());
  });
  end_child(0);
  EXPECT_TRUE(has_all_on_wire());
}

TEST_F(MoveSockets, OneOfAGroupThatSharesAnAddress_IsEnough) {
  const auto shared = [](in_port_t port) {
    const int fd = ::socket(AF_INET, SOCK_DGRAM, 0), on = 1;
    const Number made{open_socket(fd, AF_INET, SOCK_DGRAM, 0), fd};
    EXPECT_EQ(set_option(*made.file, fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on), 0);
    const sockaddr_in local = address_of(kOurs, port);
    EXPECT_EQ(bind(*made.file, fd, reinterpret_cast<const sockaddr*>(&local), sizeof local), 0);
    return made;
  };
  const Number one = shared(0);
  const Number other = shared(kernel_name(one.fd).port);
  numbers_.push_back(one);
  numbers_.push_back(other);
  fork_child([&] {
    close(one);
    EXPECT_TRUE(has_all_on_wire());
    close(other);
    EXPECT_FALSE(has_all_on_wire());
  });
  end_child(0);
}

TEST_F(MoveSockets, ADatagramSocketWithHeldBackBytes_StaysWhereItIs) {
  const Number one = datagram();
  EXPECT_TRUE(has_only_what_moves());
  std::byte held{};
  socket_of(*one.file).details->corked = &held;
  EXPECT_FALSE(has_only_what_moves());
  socket_of(*one.file).details->corked = nullptr;
  close(one);
}

}  // namespace
}  // namespace bypass::socket
