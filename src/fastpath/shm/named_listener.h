// NamedListener: a Unix socket that listens under a name in the run directory (0700), which goes with it. Of a process
// that was killed the name stays; sweep() takes it away later.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "fastpath/shm/channel.h"

namespace bypass::fastpath::shm {

class NamedListener {
 public:
  NamedListener() = default;
  NamedListener(NamedListener&& other) noexcept;
  NamedListener& operator=(NamedListener&& other) noexcept;
  ~NamedListener() { close(); }

  /// `folder`: a descriptor of the run directory, which outlives this. 0, or the kernel's negative error: -EADDRINUSE
  /// when the name is taken. `unbound`: gets the socket then, for connect(), which saves the making of another.
  long open(int folder, std::string_view name, int backlog, Channel* unbound = nullptr);
  /// The next that has come, of any user. A negative error number: nobody.
  [[nodiscard]] long accept() const;
  /// Takes the name away, too.
  void close();
  /// In a forked child whose copy is closed already: the name stays, it is the parent's.
  void abandon() { channel_.abandon(); }
  [[nodiscard]] bool is_open() const { return channel_.is_open(); }
  [[nodiscard]] int descriptor() const { return channel_.descriptor(); }

  /// Connects to the name, with `out` where that is a socket already. 0 or a negative error number: -ECONNREFUSED when
  /// who had it is gone, or does not listen yet.
  static long connect(int folder, std::string_view name, Channel& out);
  /// Takes the names of that beginning away at which nobody answers, and which are older than `age`, in seconds of the
  /// file's own clock.
  static void sweep(int folder, std::string_view beginning, int age);
  /// The same for one name. True: it is gone.
  static bool sweep_one(int folder, std::string_view name, int age);

 private:
  static constexpr std::size_t kMostName = 80;

  int folder_ = -1;
  std::uint32_t maker_ = 0;  // the process: of a forked child's copy the name is the parent's
  std::array<char, kMostName + 1> name_{};
  Channel channel_;
};

}  // namespace bypass::fastpath::shm
