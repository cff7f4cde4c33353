// What carries the packets of request_loop: queue pairs of an RDMA device (UD), or UDP sockets. Both may lose packets.
// An end has several endpoints. Packets are given and taken in batches. One thread uses a transport.
#pragma once

#include <infiniband/verbs.h>
#include <netinet/in.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace request_loop {

inline constexpr unsigned kMostEndpoints = 8;
/// Postings, or messages of one system call.
inline constexpr unsigned kBatch = 16;

/// How the other end reaches an end's endpoints. The ends swap it once.
struct Contact {
  ibv_gid gid{};
  std::array<std::uint32_t, kMostEndpoints> queue_pairs{};
  std::array<sockaddr_in, kMostEndpoints> sockets{};
};

class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  [[nodiscard]] virtual Contact contact() const = 0;
  /// Called once, before anything is sent.
  virtual void reach(const Contact& peer) = 0;
  /// Takes a copy of `packet`, which goes with its batch: at the latest with flush().
  virtual void send(unsigned from, unsigned to, std::span<const std::byte> packet) = 0;
  virtual void flush() = 0;
  /// Up to kBatch packets that have come. They stay valid until the next call.
  virtual std::span<const std::span<const std::byte>> receive() = 0;
};

/// On the first RDMA device, by its first address of IPv4. `most`: bytes of a packet.
std::unique_ptr<Transport> make_queue_pairs(unsigned endpoints, std::size_t most);
/// On ports of `address`.
std::unique_ptr<Transport> make_sockets(unsigned endpoints, std::size_t most, const std::string& address);

}  // namespace request_loop
