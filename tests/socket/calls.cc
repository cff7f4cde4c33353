#include "socket/calls.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include <cerrno>

#include "os/program_memory.h"
#include "socket/world.h"

namespace bypass::test {

namespace {

long result(long r) {
  return r < 0 ? -errno : r;
}
const sockaddr* as_base(const sockaddr_in& name) {
  return reinterpret_cast<const sockaddr*>(&name);
}

// Makes the calls as src/preload does: it tries the short way first.
long send_as_preload(socket::File& file, int fd, const socket::Message& message, int flags) {
  if (message.control_length == 0) {
    if (const auto bytes = socket::send_at_once(file, message.data, flags)) return *bytes;
  }
  bool sigpipe = false;
  return socket::send(file, fd, message, flags, sigpipe);
}
long receive_as_preload(socket::File& file, int fd, socket::Message& message, int flags) {
  if (const auto bytes = socket::receive_at_once(file, message.data, flags)) {
    message.name_length = 0;
    message.control_length = 0;
    message.flags = 0;
    return *bytes;
  }
  return socket::receive(file, fd, message, flags);
}

}  // namespace

BothSides::BothSides() {
  World::get();
}

Calls::~Calls() {
  while (!files_.empty()) close(files_.begin()->first);
}

sockaddr_in Calls::address(std::uint16_t port) const {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(port);
  name.sin_addr.s_addr = htonl(bypass_ ? kOurs : INADDR_LOOPBACK);
  return name;
}

socket::File* Calls::find(int fd) {
  std::lock_guard lock(mutex_);
  const auto it = files_.find(fd);
  return it == files_.end() ? nullptr : it->second;
}

int Calls::insert(int fd, socket::File* file) {
  if (file == nullptr) return fd;
  std::lock_guard lock(mutex_);
  files_[fd] = file;
  return fd;
}

// Does what src/preload does after a call that may have decided a socket.
long Calls::drop_if_kernel(int fd, socket::File* file, long r) {
  if (!socket::decided_for_kernel(*file)) return r;
  std::lock_guard lock(mutex_);
  socket::release(*file, fd);
  files_.erase(fd);
  return r;
}

int Calls::socket(int domain, int type) {
  const int fd = ::socket(domain, type | SOCK_CLOEXEC, 0);
  return bypass_ ? insert(fd, socket::open_socket(fd, domain, type, 0)) : fd;
}

long Calls::bind(int fd, const sockaddr_in& name) {
  socket::File* file = find(fd);
  if (file == nullptr) return result(::bind(fd, as_base(name), sizeof name));
  return socket::bind(*file, fd, as_base(name), sizeof name);
}

long Calls::listen(int fd, int backlog) {
  socket::File* file = find(fd);
  if (file == nullptr) return result(::listen(fd, backlog));
  return drop_if_kernel(fd, file, socket::listen(*file, fd, backlog));
}

long Calls::connect(int fd, const sockaddr_in& name) {
  socket::File* file = find(fd);
  if (file == nullptr) return result(::connect(fd, as_base(name), sizeof name));
  return drop_if_kernel(fd, file, socket::connect(*file, fd, as_base(name), sizeof name));
}

long Calls::disconnect(int fd) {
  sockaddr_in nobody{};
  nobody.sin_family = AF_UNSPEC;
  return connect(fd, nobody);
}

long Calls::accept(int fd, int flags, sockaddr_in* peer) {
  socklen_t length = sizeof *peer;
  return accept_named(fd, flags, reinterpret_cast<sockaddr*>(peer), peer == nullptr ? nullptr : &length);
}

long Calls::accept_named(int fd, int flags, sockaddr* name, socklen_t* length) {
  socket::File* file = find(fd);
  if (file == nullptr) return result(::accept4(fd, name, length, flags));
  socket::Accepted accepted;
  const long r = socket::accept(*file, fd, name, length, flags, accepted);
  if (r < 0) return r;
  if (accepted.file == nullptr) return accepted.kernel_fd;
  return insert(accepted.number, accepted.file);
}

long Calls::shutdown(int fd, int how) {
  socket::File* file = find(fd);
  return file == nullptr ? result(::shutdown(fd, how)) : socket::shutdown(*file, fd, how);
}

long Calls::close(int fd) {
  if (socket::File* file = find(fd); file != nullptr) {
    {
      std::lock_guard lock(mutex_);
      files_.erase(fd);
    }
    socket::release(*file, fd);
  }
  return result(::close(fd));
}

int Calls::dup(int fd) {
  const int made = ::dup(fd);
  if (socket::File* file = find(fd); file != nullptr) {
    socket::retain(*file);
    insert(made, file);
  }
  return made;
}

long Calls::send(int fd, std::string_view bytes, int flags) {
  socket::File* file = find(fd);
  if (file == nullptr) return result(::send(fd, bytes.data(), bytes.size(), flags));
  const iovec data{const_cast<char*>(bytes.data()), bytes.size()};
  socket::Message message;
  message.data = {&data, 1};
  return send_as_preload(*file, fd, message, flags);
}

long Calls::send_to(int fd, std::string_view bytes, const sockaddr_in& to, int flags) {
  socket::File* file = find(fd);
  if (file == nullptr) return result(::sendto(fd, bytes.data(), bytes.size(), flags, as_base(to), sizeof to));
  const iovec data{const_cast<char*>(bytes.data()), bytes.size()};
  socket::Message message;
  message.data = {&data, 1};
  message.name = const_cast<sockaddr*>(as_base(to));
  message.name_length = sizeof to;
  return send_as_preload(*file, fd, message, flags);
}

long Calls::receive_message(int fd, msghdr& header, int flags) {
  socket::File* file = find(fd);
  if (file == nullptr) return result(::recvmsg(fd, &header, flags));
  socket::Message message = socket::message_of(header);
  const long r = receive_as_preload(*file, fd, message, flags);
  if (r >= 0 && !socket::report(message, header, flags)) return -EFAULT;
  return r;
}

long Calls::send_message(int fd, const msghdr& header, int flags) {
  socket::File* file = find(fd);
  if (file == nullptr) return result(::sendmsg(fd, &header, flags));
  return send_as_preload(*file, fd, socket::message_of(header), flags);
}

long Calls::send_many(int fd, std::vector<mmsghdr>& messages, int flags) {
  const auto count = static_cast<unsigned>(messages.size());
  socket::File* file = find(fd);
  if (file == nullptr) return result(::sendmmsg(fd, messages.data(), count, flags));
  bool sigpipe = false;
  return socket::send_many(*file, fd, messages.data(), count, flags, sigpipe);
}

long Calls::receive_many(int fd, std::vector<mmsghdr>& messages, int flags) {
  const auto count = static_cast<unsigned>(messages.size());
  socket::File* file = find(fd);
  if (file == nullptr) return result(::recvmmsg(fd, messages.data(), count, flags, nullptr));
  return socket::receive_many(*file, fd, messages.data(), count, flags, nullptr);
}

long Calls::receive(int fd, std::string& bytes, std::size_t room, int flags) {
  bytes.assign(room, '\0');
  iovec data{bytes.data(), room};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  const long r = receive_message(fd, header, flags);
  bytes.resize(r > 0 ? std::min(static_cast<std::size_t>(r), room) : 0);
  return r;
}

long Calls::receive_from(int fd, std::string& bytes, sockaddr_in& from, std::size_t room, int flags) {
  bytes.assign(room, '\0');
  iovec data{bytes.data(), room};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_name = &from;
  header.msg_namelen = sizeof from;
  const long r = receive_message(fd, header, flags);
  bytes.resize(r > 0 ? std::min(static_cast<std::size_t>(r), room) : 0);
  return r;
}

long Calls::send_file(int fd, int in_fd, off_t* offset, std::size_t count) {
  socket::File* file = find(fd);
  if (file == nullptr) return result(::sendfile(fd, in_fd, offset, count));
  bool sigpipe = false;
  return socket::send_file(*file, fd, in_fd, offset, count, sigpipe);
}

long Calls::splice(int pipe, int fd, std::size_t count, unsigned flags) {
  socket::File* file = find(fd);
  if (file == nullptr) return result(::splice(pipe, nullptr, fd, nullptr, count, flags));
  bool sigpipe = false;
  return socket::splice_from_pipe(*file, pipe, count, flags, sigpipe);
}

long Calls::splice_out(int fd, int pipe, std::size_t count, unsigned flags, bool* sigpipe) {
  socket::File* file = find(fd);
  if (file == nullptr) return result(::splice(fd, nullptr, pipe, nullptr, count, flags));
  bool raised = false;
  const long r = socket::splice_to_pipe(*file, pipe, count, flags, raised);
  if (sigpipe != nullptr) *sigpipe = raised;
  return r;
}

sockaddr_in Calls::local_name(int fd) {
  sockaddr_in name{};
  socklen_t length = sizeof name;
  auto* base = reinterpret_cast<sockaddr*>(&name);
  socket::File* file = find(fd);
  EXPECT_EQ(file == nullptr ? result(::getsockname(fd, base, &length)) : socket::local_name(*file, fd, base, &length),
            0);
  return name;
}

long Calls::peer_name(int fd, sockaddr_in& name) {
  socklen_t length = sizeof name;
  auto* base = reinterpret_cast<sockaddr*>(&name);
  socket::File* file = find(fd);
  return file == nullptr ? result(::getpeername(fd, base, &length)) : socket::peer_name(*file, fd, base, &length);
}

long Calls::set_option(int fd, int level, int name, const void* value, socklen_t length) {
  socket::File* file = find(fd);
  if (file == nullptr) return result(::setsockopt(fd, level, name, value, length));
  return socket::set_option(*file, fd, level, name, value, length);
}
long Calls::set_option(int fd, int level, int name, int value) {
  return set_option(fd, level, name, &value, sizeof value);
}
long Calls::get_option(int fd, int level, int name, void* value, socklen_t& length) {
  socket::File* file = find(fd);
  if (file == nullptr) return result(::getsockopt(fd, level, name, value, &length));
  return socket::get_option(*file, fd, level, name, value, &length);
}
long Calls::get_option(int fd, int level, int name, int& value) {
  socklen_t length = sizeof value;
  return get_option(fd, level, name, &value, length);
}

long Calls::set_non_blocking(int fd, bool on) {
  socket::File* file = find(fd);
  if (file == nullptr) {
    const int now = ::fcntl(fd, F_GETFL);
    return result(::fcntl(fd, F_SETFL, on ? now | O_NONBLOCK : now & ~O_NONBLOCK));
  }
  const long now = socket::status_flags(*file, fd);
  return socket::set_status_flags(*file, fd, static_cast<int>(on ? now | O_NONBLOCK : now & ~O_NONBLOCK));
}

long Calls::control(int fd, int command, int argument) {
  socket::File* file = find(fd);
  if (file != nullptr && command == F_SETFL) return socket::set_status_flags(*file, fd, argument);
  if (file != nullptr && socket::sets_async(command))
    return socket::set_async(*file, fd, command, reinterpret_cast<void*>(static_cast<long>(argument)));
  return result(::fcntl(fd, command, argument));
}

long Calls::ioctl_int(int fd, unsigned long request, int& value) {
  if (socket::File* file = find(fd); file != nullptr)
    if (const auto r = socket::control(*file, fd, request, &value); r.has_value()) return *r;
  return result(::ioctl(fd, request, &value));
}

long Calls::poll(std::vector<pollfd>& set, int timeout_ms) {
  if (!bypass_) return result(::poll(set.data(), set.size(), timeout_ms));
  std::vector<socket::PollItem> items;
  for (const pollfd& p : set) items.push_back({p.fd, p.events, 0, find(p.fd)});
  const Duration timeout = timeout_ms < 0 ? Duration{-1} : std::chrono::milliseconds(timeout_ms);
  const long r = socket::poll(items, timeout, nullptr);
  for (std::size_t i = 0; i < set.size(); i++) set[i].revents = items[i].revents;
  return r;
}

short Calls::poll_one(int fd, short events, int timeout_ms) {
  std::vector<pollfd> set{{fd, events, 0}};
  poll(set, timeout_ms);
  return set[0].revents;
}

int Calls::epoll_create() {
  const int fd = ::epoll_create1(EPOLL_CLOEXEC);
  return bypass_ ? insert(fd, socket::open_epoll(fd)) : fd;
}

long Calls::epoll_control(int set, int operation, int fd, std::uint32_t events, std::uint64_t data) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = data != 0 ? data : static_cast<std::uint64_t>(fd);
  if (!bypass_) return result(::epoll_ctl(set, operation, fd, &event));
  return socket::epoll_control(*find(set), set, operation, fd, find(fd), &event);
}

long Calls::epoll_wait_raw(int set, epoll_event* events, int room, int timeout_ms) {
  if (!bypass_) return result(::epoll_wait(set, events, room, timeout_ms));
  const Duration timeout = timeout_ms < 0 ? Duration{-1} : std::chrono::milliseconds(timeout_ms);
  return socket::epoll_wait(*find(set), set, events, room, timeout, nullptr);
}

std::vector<epoll_event> Calls::epoll_wait(int set, int timeout_ms, int room) {
  std::vector<epoll_event> events(static_cast<std::size_t>(room));
  const long n = epoll_wait_raw(set, events.data(), room, timeout_ms);
  EXPECT_GE(n, 0);
  events.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  return events;
}

int Calls::server(std::uint16_t& port, int backlog) {
  const int fd = socket(AF_INET, SOCK_STREAM);
  EXPECT_EQ(bind(fd, address(0)), 0);
  EXPECT_EQ(listen(fd, backlog), 0);
  port = ntohs(local_name(fd).sin_port);
  return fd;
}

std::pair<int, int> Calls::connected() {
  std::uint16_t port = 0;
  const int listener = server(port);
  const int client = socket(AF_INET, SOCK_STREAM);
  EXPECT_EQ(connect(client, address(port)), 0);
  const long accepted = accept(listener);
  EXPECT_GE(accepted, 0);
  close(listener);
  return {client, static_cast<int>(accepted)};
}

}  // namespace bypass::test
