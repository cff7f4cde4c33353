// NamedListener: a Unix socket that listens under a name in the run directory (0700). Its name is removed when it ends.
// If the process was killed, the name stays, and sweep() removes it later.
// Tests: tests/fastpath/shm/setup_test.cc, tests/fastpath/shm/process_test.cc.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "fastpath/shm/rendezvous/channel.h"

namespace bypass::fastpath::shm {

class NamedListener {
 public:
  NamedListener() = default;
  NamedListener(NamedListener&& other) noexcept;
  NamedListener& operator=(NamedListener&& other) noexcept;
  ~NamedListener() { close(); }

  /// `folder` is a descriptor of the run directory, which must outlive this object. Returns 0 or the kernel's negative
  /// error: -EADDRINUSE if the name is taken. `unbound` then gets the socket, so that connect() need not make another.
  long open(int folder, std::string_view name, int backlog, Channel* unbound = nullptr);
  /// The next process that has come, of any user. A negative error number: nobody has come.
  [[nodiscard]] long accept() const;
  /// Also removes the name.
  void close();
  /// In a forked child whose copy is closed already: the name stays, as it is the parent's.
  void abandon() { channel_.abandon(); }
  [[nodiscard]] bool is_open() const { return channel_.is_open(); }
  [[nodiscard]] int descriptor() const { return channel_.descriptor(); }

  /// Connects to the name, with `out` if that is a socket already. Returns 0 or a negative error number: -ECONNREFUSED
  /// if the listener has gone, or does not listen yet.
  static long connect(int folder, std::string_view name, Channel& out);
  /// Removes the names with that beginning at which nobody answers, and which are older than `age` seconds, by the
  /// file's own clock.
  static void sweep(int folder, std::string_view beginning, int age);
  /// The same for one name. True: it is gone.
  static bool sweep_one(int folder, std::string_view name, int age);

 private:
  static constexpr std::size_t kMostName = 80;

  int folder_ = -1;
  std::uint32_t maker_ = 0;  // the process that made the name: in a forked child, the name is the parent's
  std::array<char, kMostName + 1> name_{};
  Channel channel_;
};

}  // namespace bypass::fastpath::shm
