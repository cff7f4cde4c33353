// forks ADDRESS PORT ROUNDS: forks while 64 connections echo in four threads. Each child makes a connection of its own,
// beside those that it inherits and never touches, and ends; after the last round the descriptors are those of before.
#include <arpa/inet.h>
#include <dirent.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

constexpr int kThreads = 4, kConnections = 16;  // for each thread
constexpr int kOwnDescriptors = 1000;           // libbypass's own lie above

sockaddr_in server{};
std::atomic<bool> stop{false};
std::atomic<long> echoes{0};

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "forks: %s: %m\n", what);
  std::fflush(stderr);
  _exit(1);
}

int number(const char* text) {
  int value = 0;
  std::from_chars(text, text + std::strlen(text), value);
  return value;
}

int connected() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (fd < 0 || connect(fd, reinterpret_cast<const sockaddr*>(&server), sizeof server) != 0) fail("connect");
  return fd;
}

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent <= 0) fail("send");
    text.remove_prefix(static_cast<std::size_t>(sent));
  }
}

void expect(int fd, std::string_view text) {
  std::array<char, 4096> got;
  while (!text.empty()) {
    const ssize_t size = recv(fd, got.data(), std::min(got.size(), text.size()), 0);
    if (size <= 0) fail("recv");
    if (std::memcmp(got.data(), text.data(), static_cast<std::size_t>(size)) != 0) fail("the echo differs");
    text.remove_prefix(static_cast<std::size_t>(size));
  }
}

std::string message(std::mt19937& random) {
  std::string text(1 + random() % 8000, 0);
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

void keep_echoing(int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::array<int, kConnections> fds{};
  for (int& fd : fds) fd = connected();
  std::array<std::string, kConnections> sent;
  while (!stop) {
    for (int i = 0; i < kConnections; i++) write_all(fds[i], sent[i] = message(random));
    for (int i = 0; i < kConnections; i++) expect(fds[i], sent[i]);
    echoes += kConnections;
  }
  for (const int fd : fds) close(fd);
}

[[noreturn]] void child(unsigned seed) {
  std::mt19937 random(seed);
  const int fd = connected();
  for (int i = 0; i < 3; i++) {
    const std::string text = message(random);
    write_all(fd, text);
    expect(fd, text);
  }
  close(fd);
  _exit(0);
}

std::set<int> descriptors() {
  std::set<int> found;
  DIR* folder = opendir("/proc/self/fd");
  if (folder == nullptr) fail("opendir");
  while (const dirent* entry = readdir(folder)) {
    const int fd = number(entry->d_name);
    if (entry->d_name[0] != '.' && fd != dirfd(folder) && fd < kOwnDescriptors) found.insert(fd);
  }
  closedir(folder);
  return found;
}

void fork_once(std::mt19937& random) {
  const timespec moment{0, static_cast<long>(random() % 5'000'000)};  // any
  nanosleep(&moment, nullptr);
  const auto seed = static_cast<unsigned>(random());
  const pid_t pid = fork();
  if (pid < 0) fail("fork");
  if (pid == 0) child(seed);
  int status = 0;
  if (waitpid(pid, &status, 0) != pid || status != 0) fail("a child failed");
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) return 2;
  server.sin_family = AF_INET;
  server.sin_port = htons(static_cast<std::uint16_t>(number(arguments[2])));
  if (inet_pton(AF_INET, arguments[1], &server.sin_addr) != 1) return 2;
  const int rounds = number(arguments[3]);
  const std::set<int> before = descriptors();
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; i++) threads.emplace_back(keep_echoing, i);
  while (echoes < kThreads * kConnections) std::this_thread::yield();
  std::mt19937 random(7);
  for (int i = 0; i < rounds; i++) fork_once(random);
  const long during = echoes;
  while (echoes < during + kThreads * kConnections) std::this_thread::yield();
  stop = true;
  for (std::thread& thread : threads) thread.join();
  if (descriptors() != before) fail("descriptors are left over");
  std::printf("%d forks\n", rounds);
  return 0;
}
