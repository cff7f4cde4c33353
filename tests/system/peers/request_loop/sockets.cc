// UDP sockets that never sleep. Each batch of packets is one system call.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "../../../../tools/bench.d/two_ends.h"
#include "transport.h"

namespace request_loop {
namespace {

using bypass::bench::need;

/// kBatch messages and their buffers.
class Messages {
 public:
  explicit Messages(std::size_t most) : most_(most), bytes_(kBatch * most) {
    for (unsigned i = 0; i < kBatch; i++) {
      parts_[i] = {&bytes_[i * most], most};
      headers_[i].msg_hdr.msg_iov = &parts_[i];
      headers_[i].msg_hdr.msg_iovlen = 1;
    }
  }
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;
  void add(const sockaddr_in& to, std::span<const std::byte> packet) {
    std::memcpy(parts_[count].iov_base, packet.data(), packet.size());
    parts_[count].iov_len = packet.size();
    headers_[count].msg_hdr.msg_name = const_cast<sockaddr_in*>(&to);
    headers_[count].msg_hdr.msg_namelen = sizeof to;
    count++;
  }
  void send(int fd) {
    for (unsigned sent = 0; sent < count;) {
      const int n = sendmmsg(fd, &headers_[sent], count - sent, 0);
      need(n > 0 || errno == EAGAIN, "sending");
      if (n > 0) sent += static_cast<unsigned>(n);
    }
    count = 0;
  }
  void receive(int fd) {
    for (iovec& part : parts_) part.iov_len = most_;
    const int n = recvmmsg(fd, headers_.data(), kBatch, MSG_DONTWAIT, nullptr);
    need(n >= 0 || errno == EAGAIN, "receiving");
    count = n > 0 ? static_cast<unsigned>(n) : 0;
  }
  [[nodiscard]] std::span<const std::byte> packet(unsigned i) const {
    return {&bytes_[i * most_], headers_[i].msg_len};
  }

  unsigned count = 0;

 private:
  std::size_t most_;
  std::vector<std::byte> bytes_;
  std::array<iovec, kBatch> parts_{};
  std::array<mmsghdr, kBatch> headers_{};
};

struct Endpoint {
  int fd;
  std::unique_ptr<Messages> out;
};

class Sockets : public Transport {
 public:
  Sockets(unsigned endpoints, std::size_t most, const std::string& address) : in_(most) {
    for (unsigned i = 0; i < endpoints; i++) {
      const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
      sockaddr_in own{};
      own.sin_family = AF_INET;
      socklen_t size = sizeof own;
      need(inet_pton(AF_INET, address.c_str(), &own.sin_addr) == 1, "an address");
      need(bind(fd, reinterpret_cast<const sockaddr*>(&own), size) == 0, "binding");
      need(getsockname(fd, reinterpret_cast<sockaddr*>(&ours_.sockets[i]), &size) == 0, "a socket's address");
      endpoints_.push_back({fd, std::make_unique<Messages>(most)});
    }
  }

  [[nodiscard]] Contact contact() const override { return ours_; }
  void reach(const Contact& peer) override { peer_ = peer; }

  void send(unsigned from, unsigned to, std::span<const std::byte> packet) override {
    const Endpoint& e = endpoints_[from];
    e.out->add(peer_.sockets[to], packet);
    if (e.out->count == kBatch) e.out->send(e.fd);
  }
  void flush() override {
    for (const Endpoint& e : endpoints_) e.out->send(e.fd);
  }

  std::span<const std::span<const std::byte>> receive() override {
    in_.receive(endpoints_[turn_++ % endpoints_.size()].fd);
    for (unsigned i = 0; i < in_.count; i++) packets_[i] = in_.packet(i);
    return std::span(packets_).first(in_.count);
  }

 private:
  Contact ours_, peer_;
  std::vector<Endpoint> endpoints_;
  Messages in_;
  std::size_t turn_ = 0;
  std::array<std::span<const std::byte>, kBatch> packets_;
};

}  // namespace

std::unique_ptr<Transport> make_sockets(unsigned endpoints, std::size_t most, const std::string& address) {
  return std::make_unique<Sockets>(endpoints, most, address);
}

}  // namespace request_loop
