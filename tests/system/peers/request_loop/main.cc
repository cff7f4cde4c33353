// request_loop: small requests and their answers over datagrams, many at a time.
//
//   request_loop --role server --listen 18515 --transport ud --sessions 8 --window 8 &
//   request_loop --role client --listen 18515 --transport ud --sessions 8 --window 8 --count 100000
//
// Both ends get the same options. --transport: ud, queue pairs of the first RDMA device, or udp, sockets on --address.
// --size: bytes of a packet. --endpoints: queue pairs or sockets of each end. --lose N: the server loses each Nth
// packet.
// --cpu: the core of this end. Both ends spin, and find each other by TCP on this machine. The client checks each
// answer, and that each request was run once. It prints one JSON object.
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "../../../../tools/bench.d/two_ends.h"
#include "requests.h"

namespace {

using bypass::bench::need;
using namespace request_loop;

struct Options : bypass::bench::EndOptions {
  std::string transport = "ud", address = "127.0.0.1";
  Shape shape;
};

template <typename T>
T hear(int line) {
  T theirs;
  need(recv(line, &theirs, sizeof theirs, MSG_WAITALL) == sizeof theirs, "the other end");
  return theirs;
}

template <typename T>
void say(int line, const T& ours) {
  need(write(line, &ours, sizeof ours) == sizeof ours, "the other end");
}

/// Until the client has had its answers.
void serve(Transport& transport, const Shape& shape, int line) {
  Server server(transport, shape);
  char end;
  for (unsigned in_vain = 0; true; in_vain++) {
    if (server.serve()) in_vain = 0;
    if (in_vain % 1024 != 1023) continue;
    if (recv(line, &end, 1, MSG_DONTWAIT) >= 0) break;
    sched_yield();
  }
  say(line, server.totals);
}

void ask(Transport& transport, const Shape& shape, int line) {
  Client client(transport, shape);
  const auto begin = std::chrono::steady_clock::now();
  client.run();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  say(line, 'e');
  const auto totals = hear<Totals>(line);
  if (totals.run != shape.count || totals.malformed != 0)
    bypass::bench::die("the server has run " + std::to_string(totals.run) + " requests, " +
                       std::to_string(totals.malformed) + " packets were malformed");
  std::printf("{\"requests\":%lu,\"per_second\":%.0f,\"sent_again\":%lu,\"lost\":%lu,%s}\n", shape.count,
              static_cast<double>(shape.count) / seconds, client.sent_again, totals.lost,
              bypass::bench::percentiles(client.us).c_str());
}

bool take(Options& options, std::string_view name, const std::string& value) {
  if (name == "--transport")
    options.transport = value;
  else if (name == "--address")
    options.address = value;
  else if (name == "--sessions")
    options.shape.sessions = static_cast<unsigned>(std::stoul(value));
  else if (name == "--window")
    options.shape.window = static_cast<unsigned>(std::stoul(value));
  else if (name == "--endpoints")
    options.shape.endpoints = static_cast<unsigned>(std::stoul(value));
  else if (name == "--lose")
    options.shape.lose = std::stoull(value);
  else
    return false;
  return true;
}

Options parse(int argc, char** argv) {
  constexpr const char* kUsage =
      "request_loop --role server|client --listen PORT [--transport ud|udp] [--address IP] [--count N] [--size BYTES] "
      "[--sessions N] [--window N] [--endpoints N] [--lose N] [--cpu N]";
  Options options;
  bypass::bench::read_options(argc, argv, options, kUsage, [&](std::string_view name, const std::string& value) {
    return take(options, name, value);
  });
  Shape& shape = options.shape;
  shape.count = options.count;
  shape.size = options.size;
  const bool fits = shape.size > sizeof(Header) && shape.sessions > 0 && shape.window > 0 && shape.endpoints > 0 &&
                    shape.endpoints <= kMostEndpoints && shape.count > 0;
  if (!fits || !options.good() || (options.transport != "ud" && options.transport != "udp"))
    bypass::bench::explain(kUsage);
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const int line = bypass::bench::meet(options).front();
  const Shape& shape = options.shape;
  const auto transport = options.transport == "ud" ? make_queue_pairs(shape.endpoints, shape.size)
                                                   : make_sockets(shape.endpoints, shape.size, options.address);
  say(line, transport->contact());
  transport->reach(hear<Contact>(line));
  say(line, 'r');
  hear<char>(line);
  bypass::bench::pin(options.cpu);  // the device's own thread stays on every core
  if (options.client())
    ask(*transport, shape, line);
  else
    serve(*transport, shape, line);
}
