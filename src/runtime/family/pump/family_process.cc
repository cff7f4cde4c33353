#include "runtime/family/pump/family_process.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <utility>

#include "os/kernel.h"
#include "os/os.h"
#include "os/own/own_descriptors.h"
#include "os/own/own_work.h"
#include "runtime/family/own_process.h"
#include "runtime/process.h"

namespace bypass::runtime {

namespace {

constexpr timespec kPatience{10, 0};

}  // namespace

UnixPair::UnixPair(int type) {
  if (os::call(SYS_socketpair, AF_UNIX, type | SOCK_CLOEXEC, 0, os::address(fd_.data())) != 0) fd_ = {-1, -1};
}

UnixPair::~UnixPair() {
  close(0);
  close(1);
}

int UnixPair::take(std::size_t i) {
  return std::exchange(fd_[i], -1);
}

void UnixPair::close(std::size_t i) {
  if (fd_[i] >= 0) os::close(take(i));
}

bool name_end(int fd, const socket::PumpName& as) {
  sockaddr_un name;
  const socklen_t length = socket::write_pump_name(as, name);
  return socket::kernel->bind(fd, reinterpret_cast<const sockaddr*>(&name), length) == 0;
}

bool hear(int control, void* word, std::size_t bytes) {
  pollfd item{control, POLLIN, 0};
  if (os::call(SYS_ppoll, os::address(&item), 1, os::address(&kPatience), 0, 8) != 1) return false;
  return os::read(control, word, bytes) == static_cast<long>(bytes);
}

std::uint32_t fork_family_process(UnixPair& control, socket::File* shared, const Work& work) {
  prepare_fork();
  if (shared != nullptr) share_with_child(*shared);
  const pid_t between = fork_unheard();
  if (between == 0) {  // when it ends, init (or a subreaper) adopts the process
    const pid_t made = fork_plainly();
    if (made == 0) {
      control.close(0);
      const auto pid = os::getpid();
      os::call(SYS_write, control[1], os::address(&pid), sizeof pid);
      work.run(work.what);
    }
    os::call(SYS_exit_group, made < 0 ? 1 : 0);
  }
  control.close(1);
  std::uint32_t pid = 0;
  const bool made = between > 0 && hear(control[0], &pid, sizeof pid);
  after_fork_parent(made ? static_cast<int>(pid) : -1);
  if (between > 0) reap(between);
  return made ? pid : 0;
}

bool leave_program(const char* name, std::span<const int> kept, int control) {
  name_process(name);
  leave_group();
  ignore_signals();
  stay_inside();
  const auto own = [&](bool ours) {
    for (const int fd : kept)
      if (fd >= 0) own_descriptor(fd, ours);
    own_descriptor(control, ours);
  };
  own(true);
  close_others_descriptors();
  for (int fd = 0; fd < 3; fd++)
    if (!owns_descriptor(fd)) os::call(SYS_dup2, control, fd);
  own(false);
  return after_fork_child();
}

void end_family_process() {
  for (;;) os::call(SYS_exit_group, 0);
}

}  // namespace bypass::runtime
