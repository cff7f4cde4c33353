// Commands: the commands of /dev/infiniband/rdma_cm, as the kernel's ucma.c has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "softverbs/abi/cm/service.h"

namespace bypass::softverbs {

/// One write() of a program. Its memory is read once.
class Commands {
 public:
  Commands(Service& service, int fd) : service_(service), fd_(fd) {}
  /// `bytes`, or a negative errno.
  long run(const void* data, std::size_t bytes);

 private:
  long dispatch(std::uint32_t command, std::span<const std::byte> in, std::size_t out,
                std::unique_lock<std::mutex>& lock);
  template <typename T>
  long answer(std::uint64_t to, std::size_t room, const T& response);

  // Each returns 0 or a negative errno. The lock is held, except by get_event().
  long create_id(std::span<const std::byte> in, std::size_t out);
  long destroy_id(std::span<const std::byte> in, std::size_t out);
  long bind_ip(std::span<const std::byte> in);
  long resolve_ip(std::span<const std::byte> in);
  long resolve_route(std::span<const std::byte> in);
  long query_route(std::span<const std::byte> in, std::size_t out);
  long connect(std::span<const std::byte> in);
  long listen(std::span<const std::byte> in);
  long accept(std::span<const std::byte> in);
  long reject(std::span<const std::byte> in);
  long disconnect(std::span<const std::byte> in);
  long init_qp_attr(std::span<const std::byte> in, std::size_t out);
  long get_event(std::span<const std::byte> in, std::size_t out);
  long set_option(std::span<const std::byte> in);
  long notify(std::span<const std::byte> in);
  long migrate_id(std::span<const std::byte> in, std::size_t out);

  Service::Owner* find(cm::IdNumber number, long& error);

  Service& service_;
  const int fd_;
  std::shared_ptr<Channel> channel_;
};

}  // namespace bypass::softverbs
