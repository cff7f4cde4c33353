// A host on a wire, for targets that feed it frames: each in a buffer of just its size, at any moments.
#pragma once

#include "fuzz/check.h"
#include "stack/world.h"

namespace bypass::fuzz {

class OneHost {
 public:
  OneHost() : host_(world_.add_host(config())), probe_(world_.add_probe(99)) {
    binding_ = *host_.udp().open({{}, 7}, 1 << 16, {}, this);
    (void)*host_.tcp().listen({{}, 80}, 4, {}, this);
    world_.run_for(std::chrono::milliseconds(1));
    used_ = host_.port().buffers_out();
  }
  void feed(const sim::Bytes& frame) {
    world_.wire().inject(0, frame);
    world_.run_for(std::chrono::microseconds(5));
    world_.read(probe_);
  }
  void wait(std::uint8_t tens_of_ms) { world_.run_for(std::chrono::milliseconds(10) * tens_of_ms); }
  test::World& world() { return world_; }
  /// Nothing is held once everybody has waited long enough.
  void end() {
    udp::Datagram datagram;
    while (host_.udp().front(*binding_, datagram)) host_.udp().pop(host_.ctx(), *binding_);
    world_.run_for(std::chrono::seconds(100));
    world_.read(probe_);
    host_.udp().close(host_.ctx(), *binding_);
    host_.ctx().queue(0).drain();
    expect(host_.tcp().violated() == nullptr, "a rule of the connections is broken");
    expect(host_.port().buffers_out() == 0, "frames are left");
  }

 private:
  static test::HostConfig config() {
    test::HostConfig config;
    config.buffers = 128;
    config.arena_bytes = std::size_t{16} << 20;
    config.gateway = "10.9.0.254";
    return config;
  }
  test::World world_;
  test::Host& host_;
  sim::SimPort& probe_;
  udp::Binding* binding_ = nullptr;
  std::size_t used_ = 0;
};

}  // namespace bypass::fuzz
