// One end of rc_two_processes: its connections, and the link that they use while there is one. The program is explained
// in two_processes.cc.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fastpath/lane/lane.h"
#include "fastpath/link/link_device.h"
#include "fastpath/link/link_end.h"
#include "rc_peers.h"
#include "two_ends.h"

namespace bypass::two_processes {

using namespace fastpath;
using bench::die;

inline constexpr std::size_t kConnections = 4;
inline constexpr std::uint8_t kRingLog2 = 16;
inline constexpr std::uint64_t kRings = 4096;  // where they begin in a link's memory; credit blocks lie in front
inline constexpr std::uint64_t kMemory = kRings + (kConnections << kRingLog2);
inline constexpr std::uint64_t kBuffer = std::uint64_t{1} << 17;

struct Options : bench::EndOptions {
  IpAddress address, peer;
  std::string device = "soft0";
  /// Of a connection's bytes, those for one link.
  [[nodiscard]] std::uint64_t part() const { return size / (count + 1); }
};

inline Instant now() {
  return Instant{std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch())};
}

/// One end of a connection.
struct Connection {
  Connection(bool opens, int fd, std::span<std::byte> send_buffer)
      : lane({.opens = opens}), line(fd), buffer(send_buffer) {}

  Lane lane;
  bench::RecordLine line;
  std::span<std::byte> buffer;
  std::deque<std::byte> data;  // of DATA records, not read yet
  std::uint64_t read = 0, over_tcp = 0;
  std::uint32_t tried_link = 0;
  bool listed = false;  // has its number on the link
  bool shut = false, end_sent = false, end_come = false;
  [[nodiscard]] bool over() const { return lane.at_eof() && end_sent && end_come; }
};

class End {
 public:
  End(const Options& options, Backend& backend);
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  ~End() { backend_.close_links(device_); }
  void run();

 private:
  struct Table {
    End& end;
    Lane* find(std::uint16_t number) {
      return number < kConnections && end.connections_[number]->listed ? &end.connections_[number]->lane : nullptr;
    }
    ByteSource source(std::uint16_t number) { return {end.connections_[number]->buffer.data(), 0, kBuffer}; }
    template <typename F>
    void for_each(F&& f) {
      for (auto& each : end.connections_)
        if (each->listed) f(each->lane);
    }
  };

  // --- The link
  void look_after_link();
  void ask();
  void hear_of_link();
  void on_link_up();
  void poll_link();
  void kill_link();
  [[nodiscard]] bool has_left_link() const;
  void on_link_over();
  void close_link();

  // --- Connections
  void turn(std::size_t i);
  void write(std::size_t i);
  void read(std::size_t i);
  void attach(std::size_t i);
  void on_record(std::size_t i, const Record& record, std::span<const std::byte> body);
  void say_records(std::size_t i);
  void detach(std::size_t i);

  void sleep();
  [[nodiscard]] bool over() const;
  void report() const;

  const Options& options_;
  Backend& backend_;
  std::vector<std::byte> memory_, buffers_;
  LinkDevice* device_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::unique_ptr<bench::RecordLine> line_;  // for words about links
  LinkSetup* setup_ = nullptr;
  LinkEnd end_;
  bool up_ = false, closing_ = false;
  std::uint32_t next_id_ = 1;
  std::vector<std::byte> asked_;         // a LINK_REQ that waits for the last link's end
  std::vector<std::uint64_t> per_link_;  // bytes read from lanes
  std::uint64_t deaths_ = 0, failures_ = 0, over_tcp_ = 0, moved_ = 0;
};

}  // namespace bypass::two_processes
