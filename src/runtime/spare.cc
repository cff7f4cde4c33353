#include "runtime/spare.h"

#include <fcntl.h>
#include <linux/capability.h>

#include <cstdio>
#include <string>
#include <utility>

#include "runtime/arena.h"
#include "runtime/host.h"
#include "runtime/log.h"
#include "runtime/own_descriptors.h"
#include "runtime/standing.h"
#include "socket/kernel.h"
#include "socket/os.h"

namespace bypass::runtime::spare {

namespace {

int g_memory = -1;
bool g_tried = false;

bool may_change_user(const Standing& standing) {
  return (standing.permitted >> CAP_SETUID & 1) != 0;
}

/// The whole file.
struct flock lock_of(short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

}  // namespace

void make() {
  if (g_memory >= 0 || std::exchange(g_tried, true) || !may_change_user(Standing::now())) return;
  std::string problem;
  g_memory = own_high(arena::make_memory(problem));
  if (g_memory < 0) BYPASS_LOG_INFO("no memory for processes that give rights up: %s", problem.c_str());
}

int descriptor() {
  return g_memory;
}

void hide() {
  own_descriptor(g_memory, false);
}

void show() {
  if (g_memory >= 0) own_descriptor(g_memory, true);
}

void drop() {
  if (g_memory < 0) return;
  hide();
  socket::kernel->close(std::exchange(g_memory, -1));
}

bool is_driven() {
  struct flock lock = lock_of(F_WRLCK);
  if (g_memory < 0) return true;
  return socket::kernel->fcntl(g_memory, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

bool begin_driving() {
  char path[40];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", g_memory);
  const long opened = socket::os::open(path, O_RDWR | O_CLOEXEC);
  if (opened < 0) return false;
  drop();
  g_memory = own_high(static_cast<int>(opened));
  struct flock lock = lock_of(F_WRLCK);
  return g_memory >= 0 && socket::kernel->fcntl(g_memory, F_OFD_SETLK, &lock) == 0;
}

}  // namespace bypass::runtime::spare
