// RcHosts: fastpath's Hosts over RC links: one world of two devices, whose links come again after each death.
#pragma once

#include <memory>

#include "fastpath/hosts.h"
#include "joint.h"

namespace bypass::verbs {

using fastpath::test::Hosts;

/// A world for one run of Hosts. Where frames are lost, its links sometimes die by themselves. That belongs to the
/// test.
class RcHosts {
 public:
  struct Config {
    fastpath::test::HostsConfig hosts;
    RcJoint::Config joint;
  };

  RcHosts(std::uint64_t seed, Config config) : random_(seed * 31 + 7), world_(seed, 0), joint_(config.joint) {
    world_.buffers[0].clear();
    world_.buffers[1].clear();
    config.hosts.join = [this](std::size_t bytes, std::span<const std::byte>(&buffers)[2]) {
      return join(bytes, buffers);
    };
    hosts = std::make_unique<Hosts>(seed, config.hosts);
  }

  std::unique_ptr<fastpath::test::Joint> join(std::size_t bytes, std::span<const std::byte> (&buffers)[2]) {
    if (links++ == 0) open(bytes, buffers);
    auto made = std::make_unique<RcJoint>(world_, random_, joint_.step);
    EXPECT_STREQ(made->problem(), nullptr) << "link " << links;
    return made;
  }

  unsigned links = 0;

 private:
  void open(std::size_t bytes, std::span<const std::byte> (&buffers)[2]) {
    EXPECT_TRUE(world_.open(joint_.spec)) << world_.problem;
    for (std::size_t i = 0; i < 2; i++) {
      const char* problem = nullptr;
      world_.memory[i].resize(bytes);
      EXPECT_TRUE(world_.devices[i]->add_memory(buffers[i], problem)) << problem;
    }
    world_.verbs.fabric().wire().set_impairment({.loss = joint_.loss});
  }

  sim::Random random_;
  RcWorld world_;
  RcJoint::Config joint_;

 public:
  std::unique_ptr<Hosts> hosts;  // gone before the world
};

}  // namespace bypass::verbs
