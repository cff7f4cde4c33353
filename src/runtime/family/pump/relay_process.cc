#include "runtime/family/pump/relay_process.h"

#include <errno.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <array>
#include <atomic>

#include "os/kernel.h"
#include "os/log/log.h"
#include "os/net/rights_message.h"
#include "os/os.h"
#include "os/own/own_descriptors.h"
#include "runtime/family/pump/family_process.h"
#include "runtime/family/pump/relay.h"
#include "runtime/host.h"
#include "runtime/process.h"
#include "runtime/process_graph.h"
#include "socket/policy.h"

namespace bypass::runtime {

namespace {

constexpr timespec kPatience{10, 0};

/// The socket by which this process asks. Below 0: it has no relay.
std::atomic<int> g_relay{-1};

/// Whether new sockets of this process are in the network namespace of the family's ports.
bool is_at_home() {
  const int fd = socket::kernel->socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const bool at_home = !is_elsewhere(fd);
  os::close(fd);
  return at_home;
}

/// A program may have given its descriptors up. The relay needs some for each listener and connection.
void raise_limit() {
  constexpr rlim_t kWanted = 1024;
  rlimit limit{};
  if (os::call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, os::address(&limit)) != 0 || limit.rlim_cur >= kWanted) return;
  const rlimit more{kWanted, limit.rlim_max < kWanted ? kWanted : limit.rlim_max};
  const rlimit most{limit.rlim_max, limit.rlim_max};
  if (os::call(SYS_prlimit64, 0, RLIMIT_NOFILE, os::address(&more), 0) != 0)
    os::call(SYS_prlimit64, 0, RLIMIT_NOFILE, os::address(&most), 0);
}

struct Task {
  int requests, control;
};

[[noreturn]] void be_relay(const Task& task) {
  const std::array kept{task.requests};
  if (leave_program("bypass-relay", kept, task.control)) {
    end_fork_child();
    raise_limit();
    Relay(task.requests).run();
    before_exit();
  }
  end_family_process();
}

/// Sends a request with its descriptors. Waits while the relay has many to read. Below 0: it has ended.
long send_request(int relay, const RelayRequest& request, int fd, int answer) {
  os::RightsMessage<2> message(&request, sizeof request);
  message.pass(std::array{fd, answer});
  long sent;
  do sent = os::call(SYS_sendmsg, relay, os::address(&message.header()), MSG_NOSIGNAL);
  while (sent == -EINTR);
  return sent;
}

/// Reads the answer, and the descriptor that came with it. A negative errno: there is none.
int hear_answer(int fd) {
  pollfd item{fd, POLLIN, 0};
  long ready;
  do ready = os::call(SYS_ppoll, os::address(&item), 1, os::address(&kPatience), 0, 8);
  while (ready == -EINTR);
  if (ready != 1) return -ETIMEDOUT;
  RelayAnswer answer;
  os::RightsMessage<1> message(&answer, sizeof answer);
  message.expect();
  const long got = os::call(SYS_recvmsg, fd, os::address(&message.header()), MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  const auto [end] = got > 0 ? message.received() : std::array{-1};
  if (got == sizeof answer && answer.error == 0) return end >= 0 ? end : -EMFILE;
  if (end >= 0) os::close(end);
  return got == sizeof answer ? -answer.error : -ECONNRESET;
}

int ask(const RelayRequest& request, int fd, int gone) {
  UnixPair pair(SOCK_SEQPACKET);
  if (!pair) return -EMFILE;
  const int relay = g_relay.load();
  const long sent = relay < 0 ? -EPIPE : send_request(relay, request, fd, pair[1]);
  const bool is_gone = sent == -EPIPE || sent == -ECONNRESET || sent == -EBADF;  // -EBADF: drop_relay() meanwhile
  if (sent < 0) return is_gone ? -gone : static_cast<int>(sent);
  pair.close(1);
  const int end = hear_answer(pair[0]);
  return end == -ECONNRESET ? -gone : end;
}

}  // namespace

void begin_relay(Process& process) {
  if (g_relay >= 0 || process.config.ports.empty() || process.config.trust != Trust::kCredentials) return;
  if (process.ports.failed() || !has_one_thread() || !is_at_home()) return;
  UnixPair requests(SOCK_SEQPACKET), control(SOCK_STREAM);
  if (!requests || !control) return;
  const Task task{requests[1], control[1]};
  const auto run = [](const void* what) { be_relay(*static_cast<const Task*>(what)); };
  const std::uint32_t pid = fork_family_process(control, nullptr, {run, &task});
  if (pid != 0) g_relay = own_high(requests.take(0));
  if (g_relay < 0) return;
  BYPASS_LOG_INFO("new sockets on the port are relayed by process %u from here on", pid);
}

bool has_relay() {
  return g_relay >= 0;
}

void drop_relay() {
  const int fd = g_relay.exchange(-1);
  if (fd < 0) return;
  own_descriptor(fd, false);
  os::close(fd);
  BYPASS_LOG_INFO("new sockets are relayed no more: the process forbids itself some calls");
}

void hide_relay() {
  own_descriptor(g_relay, false);
}

void show_relay() {
  if (g_relay >= 0) own_descriptor(g_relay, true);
}

int ask_to_listen(int fd, int backlog) {
  RelayRequest request;
  request.kind = RelayRequest::kListen;
  request.backlog = static_cast<std::uint32_t>(backlog);
  return ask(request, fd, EADDRNOTAVAIL);
}

bool await_relays_look() {
  const int fd = g_relay < 0 ? -1 : socket::kernel->socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  RelayRequest request;
  request.kind = RelayRequest::kLook;
  (void)ask(request, fd, ESRCH);
  os::close(fd);
  return true;
}

int ask_to_connect(int fd, const Endpoint& remote) {
  RelayRequest request;
  request.kind = RelayRequest::kConnect;
  request.remote_address = remote.address.bytes;
  request.remote_port = remote.port;
  return ask(request, fd, ECONNREFUSED);
}

}  // namespace bypass::runtime
