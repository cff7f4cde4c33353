// Two ends of many connections, for tests of the whole protocol. Lanes run over a link, the simulated one if no other
// is asked for. TCP beneath is a channel of encoded records that arrive later and in any pieces. Bytes are checked as
// they are read.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backends/sim/sim_wire.h"
#include "fastpath/framed/control.h"
#include "fastpath/joint.h"
#include "fastpath/lane/lane.h"
#include "fastpath/link/link_end.h"

namespace bypass::fastpath::test {

struct HostsConfig {
  std::size_t connections = 4;
  std::uint64_t bytes = 20'000;    // a direction, 0 … that many
  unsigned kills = 2;              // times the link dies
  std::uint64_t buffer_log2 = 13;  // of a send buffer
  std::uint32_t tcp_window = 16384;
  std::uint32_t window = 64;  // message credits
  bool leaves = true;         // lanes are left now and then
  bool gathers = false;       // small writes wait for the peer's message
  sim::LinkConfig link{};
  /// A link that is not the simulated one, a new one each time. What it writes lies in `buffers`, one for each end.
  std::function<std::unique_ptr<Joint>(std::size_t memory_bytes, std::span<const std::byte> (&buffers)[2])> join;
};

/// One end of one connection.
struct Stream {
  Stream(const HostsConfig& config, bool opens, std::span<std::byte> send_buffer)
      : lane({.opens = opens, .tcp_window = config.tcp_window}), buffer(send_buffer) {
    if (config.gathers) lane.gather(Lane::Gather::kLittle);
  }

  Lane lane;
  std::span<std::byte> buffer;
  std::uint64_t total = 0;         // to be written
  std::deque<std::byte> received;  // DATA, not read yet
  Decoder decoder;
  std::deque<std::byte> tcp;  // towards this end
  bool tcp_closed = false, end_sent = false, end_come = false, reset = false, fin = false;
  bool listed = false;           // has its number on the current link
  std::uint32_t tried_link = 0;  // offered on it already
  std::uint64_t read = 0;
  bool corrupt = false;
};

class Hosts {
 public:
  Hosts(std::uint64_t seed, const HostsConfig& config);

  /// Runs until every byte and every end has come, or nothing moves any more. False: something is wrong; see report().
  bool run();
  [[nodiscard]] std::string report() const;

  /// One turn: programs write and read a little, and what is due arrives.
  void step();
  [[nodiscard]] bool done() const;
  [[nodiscard]] Stream& stream(std::size_t end, std::size_t i) { return *ends_[end].streams[i]; }
  [[nodiscard]] sim::Cable& cable() { return static_cast<SimJoint&>(*joint_).cable; }
  [[nodiscard]] Joint& joint() { return *joint_; }
  [[nodiscard]] LinkEnd& link_end(std::size_t end) { return ends_[end].link; }
  /// The place of a connection's lane, at either end.
  [[nodiscard]] LaneAddress address(std::size_t i) const;
  [[nodiscard]] unsigned deaths() const { return deaths_; }
  [[nodiscard]] std::uint64_t lane_bytes() const { return lane_bytes_; }
  /// For a stream that the test disturbs: how it ends is not checked.
  void give_up(std::size_t i) { given_up_.resize(config_.connections), given_up_[i] = true; }
  bypass::sim::Random& random() { return random_; }

  static std::byte byte_at(std::size_t connection, std::size_t from, std::uint64_t offset) {
    std::uint64_t x = offset * 0x9e3779b97f4a7c15 + connection * 0x100000001b3 + from;
    x ^= x >> 29;
    return static_cast<std::byte>(x * 0xbf58476d1ce4e5b9 >> 56);
  }

 private:
  struct End {
    LinkEnd link;
    std::vector<std::byte> buffers;
    std::vector<std::unique_ptr<Stream>> streams;
  };
  /// LinkEnd's view of an end.
  struct Table {
    End& end;
    Lane* find(std::uint16_t number) {
      return number < end.streams.size() && end.streams[number]->listed ? &end.streams[number]->lane : nullptr;
    }
    ByteSource source(std::uint16_t number) {
      const auto& buffer = end.streams[number]->buffer;
      return {buffer.data(), 0, buffer.size()};
    }
    template <typename F>
    void for_each(F&& f) {
      for (auto& stream : end.streams)
        if (stream->listed) f(stream->lane);
    }
  };

  void connect_link();
  void write(std::size_t e, std::size_t i);
  void read(std::size_t e, std::size_t i);
  void open(std::size_t i);
  void after_record(std::size_t e, std::size_t i);
  void send_records(std::size_t e, std::size_t i);
  void receive_tcp(std::size_t e, std::size_t i);
  void unlist(std::size_t e, std::size_t i);
  void turn(std::size_t e, std::size_t i);

  HostsConfig config_;
  bypass::sim::Random random_;
  Instant now_{};
  End ends_[2];
  std::unique_ptr<Joint> joint_;
  std::uint64_t rings_;  // where they begin in a link's memory; credit blocks lie in front
  std::vector<bool> given_up_;
  std::uint32_t link_id_ = 0;
  unsigned deaths_ = 0;
  std::uint64_t lane_bytes_ = 0, moved_ = 0;
};

}  // namespace bypass::fastpath::test
