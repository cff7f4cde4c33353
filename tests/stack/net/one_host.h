// A fixture: one host, 10.9.0.1 (02:…:01), and a bare port that plays all other hosts.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "stack/frame/checksum.h"
#include "stack/frame/wire.h"
#include "stack/ip/network_impl.h"
#include "stack/world.h"

namespace bypass::test {

class OneHost : public testing::Test {
 protected:
  explicit OneHost(const HostConfig& config = {}) : host(world.add_host(config)), probe(world.add_probe(2)) {
    world.run_for(3s);  // both announcements
    world.read(probe);
  }

  /// Gives the host a frame and time to answer. Returns what it sends.
  std::vector<sim::Bytes> exchange(const sim::Bytes& frame) {
    world.wire().set_now(world.now());
    world.wire().inject(0, frame);
    return run(10us);
  }
  /// Returns what the host sends within the duration.
  std::vector<sim::Bytes> run(Duration duration) {
    world.run_for(duration);
    return world.read(probe);
  }
  /// Sends `text` as a UDP-like packet of protocol 17 to an address, below UDP.
  Result<bool> send_to(const char* address, const std::string& text = "payload!") {
    Path path;
    const Result<bool> found = host.network().resolve({}, ip(address), path);
    if (!found) return found;
    return send_on(path, text);
  }
  Result<bool> send_on(Path& path, const std::string& text = "payload!") {
    Packet* packet = host.network().alloc(host.ctx(), path);
    if (packet == nullptr) return Error::kNoMemory;
    std::memcpy(packet->data, text.data(), text.size());
    packet->len = packet->frame_len = static_cast<std::uint32_t>(text.size());
    host.ctx().now = world.now();
    const Result<bool> sent = host.network().send(host.ctx(), path, packet, 17);
    if (!sent && sent.error() == Error::kWouldBlock) host.ctx().release(packet);
    host.ctx().flush();
    return sent;
  }
  /// The answer to the host's question for 10.9.0.2.
  sim::Bytes arp_reply(const char* sender_ip = "10.9.0.2", MacAddress sender = mac(2)) {
    return arp_frame({.operation = 2,
                      .to_mac = mac(1),
                      .from_mac = sender,
                      .sender_mac = sender,
                      .sender_ip = sender_ip,
                      .target_mac = mac(1),
                      .target_ip = "10.9.0.1"});
  }
  /// Teaches the host the address of 10.9.0.2: the host asks, and gets an answer.
  void resolve_peer() {
    ASSERT_TRUE(send_to("10.9.0.2"));
    exchange(arp_reply());
  }

  /// Frames that are never given back.
  std::size_t leaked() {
    host.ctx().queue(0).drain();
    return host.port().buffers_out();
  }

  static const wire::Ethernet& ethernet(const sim::Bytes& frame) {
    return *reinterpret_cast<const wire::Ethernet*>(frame.data());
  }
  static const wire::Arp& arp(const sim::Bytes& frame) {
    return *reinterpret_cast<const wire::Arp*>(frame.data() + 14);
  }
  static const wire::Ipv4& ipv4(const sim::Bytes& frame) {
    return *reinterpret_cast<const wire::Ipv4*>(frame.data() + 14);
  }
  static bool is_arp_request(const sim::Bytes& frame) {
    return ethernet(frame).type == wire::kEtherTypeArp && arp(frame).operation == wire::kArpRequest;
  }
  StackCounters& counters() { return host.counters(); }

  World world;
  Host& host;
  sim::SimPort& probe;
};

}  // namespace bypass::test
