// cancels ADDRESS PORT ROUNDS [HANDLERS]: threads that write and read on connections of their own to an echo server are
// cancelled, each at some moment, HANDLERS of them while a handler runs on top of a sleep. The others' connection goes
// on.
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

namespace {

int dial(const char* address, const char* port) {
  sockaddr_in peer{};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(static_cast<std::uint16_t>(std::atoi(port)));
  inet_pton(AF_INET, address, &peer.sin_addr);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&peer), sizeof peer) == 0) return fd;
  std::perror("connect");
  std::exit(1);
}

bool receives(int fd) {
  std::array<char, 256> bytes{};
  for (std::size_t got = 0; got < bytes.size();) {
    const ssize_t part = read(fd, bytes.data(), bytes.size() - got);
    if (part <= 0) return false;
    got += static_cast<std::size_t>(part);
  }
  return true;
}

bool exchange(int fd) {
  const std::array<char, 256> bytes{};
  return write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()) && receives(fd);
}

void* exchange_for_ever(void* fd) {
  while (exchange(*static_cast<int*>(fd))) {
  }
  return nullptr;
}

void* receive_for_ever(void* fd) {
  char byte = 0;
  while (recv(*static_cast<int*>(fd), &byte, 1, 0) < 0) {
  }
  return nullptr;
}

void* poll_for_ever(void* fd) {
  pollfd set{*static_cast<int*>(fd), POLLIN, 0};
  while (poll(&set, 1, -1) < 0) {
  }
  return nullptr;
}

// Nothing comes: the thread sleeps, has a handler to run, and is cancelled some microseconds later.
bool are_cancelled_under_handlers(int fd, int rounds) {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  sigaction(SIGUSR1, &action, nullptr);
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR2, &action, nullptr);
  std::mt19937 random(2);
  for (int i = 0; i < rounds; i++) {
    pthread_t thread{};
    void* result = nullptr;
    if (pthread_create(&thread, nullptr, i % 2 == 0 ? receive_for_ever : poll_for_ever, &fd) != 0) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200 + random() % 100));  // any moment will do
    pthread_kill(thread, i % 4 < 2 ? SIGUSR1 : SIGUSR2);
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 60);
    while (std::chrono::steady_clock::now() < until) {
    }
    pthread_cancel(thread);
    pthread_join(thread, &result);
    if (result != PTHREAD_CANCELED) return false;
  }
  return true;
}

// What a thread does that has been cancelled already; it comes to an end of itself unless the call is a cancellation
// point.
bool is_cancelled_in(void* (*call)(void*), int fd) {
  pthread_t thread{};
  void* result = nullptr;
  if (pthread_create(&thread, nullptr, call, &fd) != 0 || pthread_join(thread, &result) != 0) std::exit(1);
  return result == PTHREAD_CANCELED;
}

void* call_fork(void*) {
  pthread_cancel(pthread_self());
  const pid_t child = fork();
  if (child == 0) _exit(7);
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 7)
    std::puts("the child failed");
  return nullptr;
}

void* call_sendfile(void* fd) {
  const int file = memfd_create("file", 0);
  if (ftruncate(file, 256) != 0) return nullptr;
  pthread_cancel(pthread_self());
  const ssize_t sent = sendfile(*static_cast<int*>(fd), file, nullptr, 256);
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
  close(file);
  if (sent != 256) std::puts("sendfile failed");
  return nullptr;
}

void* call_close(void* fd) {
  pthread_cancel(pthread_self());
  close(*static_cast<int*>(fd));
  return nullptr;
}

void* call_fclose(void* fd) {
  FILE* const stream = fdopen(*static_cast<int*>(fd), "r");
  pthread_cancel(pthread_self());
  const int closed = fclose(stream);
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
  if (closed != 0) std::puts("fclose failed");
  return nullptr;
}

}  // namespace

int main(int count, char** arguments) {
  const int rounds = std::atoi(arguments[3]);
  const int others = dial(arguments[1], arguments[2]);
  std::mt19937 random(1);
  for (int i = 0; i < rounds; i++) {
    int fd = dial(arguments[1], arguments[2]);
    pthread_t thread{};
    void* result = nullptr;
    if (pthread_create(&thread, nullptr, exchange_for_ever, &fd) != 0) return 1;
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 1500));  // any moment will do
    pthread_cancel(thread);
    pthread_join(thread, &result);
    close(fd);
    if (result != PTHREAD_CANCELED || !exchange(others)) return 1;
  }
  std::puts("all cancelled");
  if (count > 4) std::printf("under handlers %d\n", are_cancelled_under_handlers(others, std::atoi(arguments[4])));
  const bool in_fork = is_cancelled_in(call_fork, others), in_sendfile = is_cancelled_in(call_sendfile, others);
  std::printf("fork %d, sendfile %d\n", in_fork, in_sendfile);
  std::printf("comes back %d\n", receives(others));
  std::printf("close %d\n", is_cancelled_in(call_close, others));
  std::printf("goes on %d\n", exchange(others));
  std::printf("fclose %d\n", is_cancelled_in(call_fclose, others));
  std::printf("closed %d\n", fcntl(others, F_GETFD) == -1);
}
