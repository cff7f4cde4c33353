#include "socket/world.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <cstdlib>

#include "os/net/address.h"

namespace bypass::test {

namespace {

constexpr std::size_t kArena = std::size_t{256} << 20;

socket::Kernel libc_table() {
  socket::Kernel k{};
  k.socket = ::socket;
  k.close = ::close;
  k.dup = ::dup;
  k.dup2 = ::dup2;
  k.dup3 = ::dup3;
  k.fcntl = ::fcntl;
  k.ioctl = ::ioctl;
  k.bind = ::bind;
  k.listen = ::listen;
  k.accept4 = ::accept4;
  k.connect = ::connect;
  k.shutdown = ::shutdown;
  k.getsockname = ::getsockname;
  k.getpeername = ::getpeername;
  k.getsockopt = ::getsockopt;
  k.setsockopt = ::setsockopt;
  k.read = ::read;
  k.write = ::write;
  k.pread = ::pread;
  k.readv = ::readv;
  k.writev = ::writev;
  k.recvmsg = ::recvmsg;
  k.sendmsg = ::sendmsg;
  k.ppoll = ::ppoll;
  k.epoll_create1 = ::epoll_create1;
  k.epoll_ctl = ::epoll_ctl;
  k.epoll_pwait = ::epoll_pwait;
  k.eventfd = [](unsigned count, int flags) { return ::eventfd(count, flags); };
  return k;
}

void* arena() {
  void* base = mmap(nullptr, kArena, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) std::abort();
  return base;
}

bool is_bypass(const sockaddr* address) {
  const auto endpoint = socket::endpoint_of(address, sizeof(sockaddr_in6));
  return endpoint.has_value() && endpoint->address.is_v4() && endpoint->address.v4() >> 8 == kOurs >> 8;
}
bool is_any(const sockaddr* address) {
  const auto endpoint = socket::endpoint_of(address, sizeof(sockaddr_in6));
  return endpoint.has_value() && endpoint->address.is_any();
}

StackConfig stack_config() {
  StackConfig config;
  config.tcp.rto_min = std::chrono::milliseconds(20);
  config.tcp.time_wait = std::chrono::milliseconds(50);
  config.tcp.syn_retries = 2;
  config.tcp.rto_initial = std::chrono::milliseconds(20);
  config.tcp.secret[0] = 1;
  return config;
}

void set_address(Stack& stack, const CablePort& port, std::uint32_t address) {
  const Prefix prefix{IpAddress::from_v4(address), 24};
  if (!stack.set_interface(0, {port.mac(), 1500, {&prefix, 1}, {}}).ok()) std::abort();
}

World* the_world = nullptr;

/// A case may change the environment, libc's table and the cable. The next case finds them as World made them.
class PutBack : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo&) override {
    if (the_world != nullptr) the_world->put_back();
  }
};
[[maybe_unused]] const bool listening = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new PutBack);
  return true;
}();

}  // namespace

World& World::get() {
  if (the_world == nullptr) the_world = new World;
  return *the_world;
}

void World::put_back() {
  socket::policy = policy_;
  budgets_ = plain_budgets();
  socket::kernel = kernel_;
  peer_port_.room = ~std::size_t{0};
  port_.gone = false;
}

socket::Budgets World::plain_budgets() {
  socket::Budgets budgets;
  budgets.spin = budgets.yield = budgets.kernel_poll = std::chrono::microseconds(20);
  budgets.send_buffer = 16384;
  budgets.receive_buffer = 131072;
  return budgets;
}

World::World() {
  static const socket::Kernel table = libc_table();
  socket::kernel = &table;
  CablePort::join(port_, peer_port_);

  // Shared memory, as in the arena: forked processes see the same.
  auto& family_table = *new (arena()) socket::FamilyTable;
  auto& lock_state = *new (arena()) socket::LockState;
  auto* family = new socket::Family;
  if (!family->attach(family_table)) std::abort();
  auto* lock = new socket::ShardLock(lock_state, *family);
  Memory* memory = Memory::create(arena(), kArena, kArena);
  Stack* stack = Stack::create(*memory, stack_config());
  set_address(*stack, port_, kOurs);
  shard_ = new socket::Shard(*lock, *stack, *memory, clock_, budgets_);
  shard_->add_port(&port_, 0);

  Memory* peer_memory = Memory::create(arena(), kArena, kArena);
  peer_stack_ = Stack::create(*peer_memory, stack_config());
  set_address(*peer_stack_, peer_port_, kPeers);
  peer_context_.memory = peer_memory;
  peer_context_.queues[0] = PortQueue(&peer_port_, 0, 0);
  peer_context_.ports = 1;

  socket::process_shard = shard_;
  socket::Policy& policy = socket::policy;
  policy.decide_connect = [](int, int, const sockaddr*, const sockaddr* remote) {
    return is_bypass(remote) ? socket::Decision::kBypass : socket::Decision::kKernel;
  };
  policy.decide_listen = [](int, int, const sockaddr* local) {
    return is_bypass(local) || is_any(local) ? socket::Decision::kBypass : socket::Decision::kKernel;
  };
  policy.routes_to = [](const sockaddr* remote) {
    return is_bypass(remote) ? socket::Decision::kBypass : socket::Decision::kKernel;
  };
  policy_ = policy;
  kernel_ = socket::kernel;
  std::thread(&World::look_after_sleepers, this).detach();  // the World lives as long as the process
}

void World::look_after_sleepers() {
  constexpr timespec kTick{0, 2'000'000};
  for (;;) {
    ::ppoll(nullptr, 0, &kTick, nullptr);
    if (shard_->sleepers() > 0 && !shard_->watched()) (void)shard_->poll();
  }
}

void World::run_peer_once() {
  Context& ctx = peer_context_;
  ctx.now = clock_.now();
  peer_stack_->resume_output(ctx);
  std::array<Packet*, 64> frames;
  const std::size_t n = peer_port_.receive(0, frames);
  if (n != 0) peer_stack_->on_frames(ctx, 0, {frames.data(), n});
  peer_stack_->on_timers(ctx);
  ctx.flush();
  peer_stack_->on_flushed(ctx);
}

World::PeerThread::PeerThread(World& world, std::function<void()> step)
    : thread_([this, &world, step = std::move(step)] {
        while (!stop_.load(std::memory_order_relaxed)) {
          world.run_peer_once();
          step();
          world.peer_context().flush();
          std::this_thread::yield();
        }
      }) {}

World::PeerThread::~PeerThread() {
  stop_.store(true, std::memory_order_relaxed);
  thread_.join();
}

}  // namespace bypass::test
