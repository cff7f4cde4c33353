// cancels ADDRESS PORT ROUNDS: threads that write and read on connections of their own to an echo server are cancelled,
// each at some moment. The others' connection goes on.
#include <arpa/inet.h>
#include <pthread.h>
#include <sys/socket.h>
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

bool exchange(int fd) {
  std::array<char, 256> bytes{};
  if (write(fd, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) return false;
  for (std::size_t got = 0; got < bytes.size();) {
    const ssize_t part = read(fd, bytes.data(), bytes.size() - got);
    if (part <= 0) return false;
    got += static_cast<std::size_t>(part);
  }
  return true;
}

void* exchange_for_ever(void* fd) {
  while (exchange(*static_cast<int*>(fd))) {
  }
  return nullptr;
}

}  // namespace

int main(int, char** arguments) {
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
}
