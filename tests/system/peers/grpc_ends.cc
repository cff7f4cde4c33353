// grpc_ends: a gRPC server and its clients. They know nothing of libbypass. The messages are made by hand, so that no
// generated source is needed; a greeter's are those of gRPC's own example, helloworld.proto.
//
//   grpc_ends server ADDRESS PORT
//   grpc_ends client ADDRESS PORT greeter CALLS OUTSTANDING CHANNELS    each greeting is checked
//   grpc_ends client ADDRESS PORT download MESSAGES BYTES               the server streams
//   grpc_ends client ADDRESS PORT exchange MESSAGES BYTES               both ends stream
//   grpc_ends client ADDRESS PORT refusals                              how calls fail
//
// The server ends by SIGTERM, and then says how many calls it has had. A client prints one JSON object. "per_second"
// and "p50_us" in the object are this run's, the rest is the same in each run.
//
// gRPC's experimental transmission without copies (tcp_tx_zerocopy_enabled) is not asked for. gRPC 1.51 frees messages
// too soon with it: bytes come changed over the kernel's loopback, too, on a busy machine.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using grpc::ByteBuffer, grpc::Slice, grpc::Status, grpc::StatusCode;

constexpr const char* kGreet = "/helloworld.Greeter/SayHello";
constexpr const char* kDownload = "/streams.Streams/Download";
constexpr const char* kExchange = "/streams.Streams/Exchange";
constexpr const char* kNeverAnswered = "/streams.Streams/Never";

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "grpc_ends: %s\n", what.c_str());
  std::exit(1);
}

// --- Messages

ByteBuffer buffer_of(std::string_view text) {
  const Slice slice(text.data(), text.size());
  return {&slice, 1};
}

std::string text_of(const ByteBuffer& buffer) {
  std::vector<Slice> slices;
  std::string text;
  if (!buffer.Dump(&slices).ok()) return text;
  for (const Slice& s : slices) text.append(reinterpret_cast<const char*>(s.begin()), s.size());
  return text;
}

/// A message whose only field is the string number 1, shorter than 128 bytes.
ByteBuffer string_message(const std::string& text) {
  return buffer_of(std::string{'\x0a', static_cast<char>(text.size())} + text);
}

std::optional<std::string> string_in(const ByteBuffer& buffer) {
  const std::string text = text_of(buffer);
  if (text.size() < 2 || text[0] != '\x0a' || static_cast<std::size_t>(text[1]) != text.size() - 2) return {};
  return text.substr(2);
}

/// Bytes that repeat after a prime number: no two messages, and no two pages of one, are alike.
class Pattern {
 public:
  Pattern() {
    std::uint32_t state = 1;
    for (char& byte : bytes_) byte = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  }
  [[nodiscard]] ByteBuffer message(std::uint64_t number, std::size_t size) const {
    Slice slice(size);
    auto* const to = const_cast<char*>(reinterpret_cast<const char*>(slice.begin()));
    for_each_part(number, 0, size, [&](std::size_t at, const char* from, std::size_t bytes) {
      std::memcpy(to + at, from, bytes);
      return true;
    });
    return {&slice, 1};
  }
  [[nodiscard]] bool is_message(std::uint64_t number, std::size_t size, const ByteBuffer& buffer) const {
    std::vector<Slice> slices;
    if (buffer.Length() != size || !buffer.Dump(&slices).ok()) return false;
    std::size_t offset = 0;
    for (const Slice& s : slices) {
      const auto* const there = reinterpret_cast<const char*>(s.begin());
      const bool same = for_each_part(number, offset, s.size(), [&](std::size_t at, const char* from, std::size_t n) {
        return std::memcmp(there + at, from, n) == 0;
      });
      if (!same) return false;
      offset += s.size();
    }
    return true;
  }

 private:
  template <typename Visit>
  bool for_each_part(std::uint64_t number, std::size_t offset, std::size_t size, Visit visit) const {
    for (std::size_t at = 0; at < size;) {
      const std::size_t place = (number * 977 + offset + at) % bytes_.size();
      const std::size_t part = std::min(size - at, bytes_.size() - place);
      if (!visit(at, bytes_.data() + place, part)) return false;
      at += part;
    }
    return true;
  }
  std::array<char, 65'521> bytes_;
};
const Pattern pattern;

/// Answers have other numbers than what they answer.
constexpr std::uint64_t answer_to(std::uint64_t number) {
  return number + 40'009;
}

// --- The server

std::atomic<std::uint64_t> calls_done;

class Reactor : public grpc::ServerGenericBidiReactor {
 public:
  void OnDone() override {
    calls_done++;
    delete this;
  }
  void OnCancel() override {}
};

class Greeter : public Reactor {
 public:
  Greeter() { StartRead(&request_); }
  void OnReadDone(bool ok) override {
    const auto name = ok ? string_in(request_) : std::nullopt;
    if (!name) return Finish({StatusCode::INVALID_ARGUMENT, "no name"});
    reply_ = string_message("Hello " + *name);
    StartWriteAndFinish(&reply_, {}, Status::OK);
  }

 private:
  ByteBuffer request_, reply_;
};

class Download : public Reactor {
 public:
  Download() { StartRead(&message_); }
  void OnReadDone(bool ok) override {
    if (!ok || std::sscanf(text_of(message_).c_str(), "%lu %lu", &count_, &size_) != 2)
      return Finish({StatusCode::INVALID_ARGUMENT, "no number and size"});
    OnWriteDone(true);
  }
  void OnWriteDone(bool ok) override {
    if (!ok || sent_ == count_) return Finish(ok ? Status::OK : Status::CANCELLED);
    message_ = pattern.message(sent_++, size_);
    StartWrite(&message_);
  }

 private:
  ByteBuffer message_;
  std::uint64_t count_ = 0, size_ = 0, sent_ = 0;
};

class Exchange : public Reactor {
 public:
  Exchange() { StartRead(&message_); }
  void OnReadDone(bool ok) override {
    if (!ok) return Finish(Status::OK);
    const std::size_t size = message_.Length();
    if (!pattern.is_message(number_, size, message_)) return Finish({StatusCode::DATA_LOSS, "changed"});
    message_ = pattern.message(answer_to(number_++), size);
    StartWrite(&message_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(Status::CANCELLED);
    StartRead(&message_);
  }

 private:
  ByteBuffer message_;
  std::uint64_t number_ = 0;
};

class Never : public Reactor {
 public:
  void OnCancel() override { Finish(Status::CANCELLED); }
};

class Unknown : public Reactor {
 public:
  Unknown() { Finish({StatusCode::UNIMPLEMENTED, "no such method"}); }
};

class Service : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    const std::string& method = context->method();
    if (method == kGreet) return new Greeter;
    if (method == kDownload) return new Download;
    if (method == kExchange) return new Exchange;
    if (method == kNeverAnswered) return new Never;
    return new Unknown;
  }
};

[[noreturn]] void serve(const std::string& where) {
  sigset_t ending;
  sigemptyset(&ending);
  sigaddset(&ending, SIGTERM);
  sigprocmask(SIG_BLOCK, &ending, nullptr);  // gRPC's threads inherit it
  Service service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(where, grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) die("no server at " + where);
  std::puts("ready");
  std::fflush(stdout);
  int number = 0;
  sigwait(&ending, &number);
  server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5));
  server->Wait();
  std::printf("%lu calls\n", calls_done.load());
  std::fflush(stdout);
  // grpc_shutdown() may wait ten seconds for the thread that a write has begun which found no room (run_poller() of
  // tcp_posix.cc), on the kernel's sockets, too.
  std::_Exit(0);
}

// --- The client

class Client {
 public:
  Client(const std::string& where, std::uint64_t channels) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection each
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);     // gRPC then asks for TCP_USER_TIMEOUT
    for (std::uint64_t i = 0; i < channels; i++)
      stubs_.emplace_back(grpc::CreateCustomChannel(where, grpc::InsecureChannelCredentials(), arguments));
  }
  grpc::GenericStub& stub(std::uint64_t number = 0) { return stubs_[number % stubs_.size()]; }
  grpc::CompletionQueue& queue() { return queue_; }
  /// The next event's tag. `expected`: whether the event must be a success.
  void* next(bool& ok, bool expected = false) {
    void* tag = nullptr;
    if (!queue_.Next(&tag, &ok) || (expected && !ok)) die("an operation failed");
    return tag;
  }
  void need(void* wanted) {
    bool ok = false;
    if (next(ok, true) != wanted) die("another operation's event");
  }

 private:
  std::vector<grpc::GenericStub> stubs_;
  grpc::CompletionQueue queue_;
};

void need(const Status& status) {
  if (!status.ok()) die("status " + std::to_string(status.error_code()) + ": " + status.error_message());
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Greeting {
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientAsyncResponseReader<ByteBuffer>> reader;
  ByteBuffer reply;
  Status status;
  std::string name;
  Clock::time_point begin = Clock::now();

  Greeting(Client& client, std::uint64_t number) : name("caller " + std::to_string(number)) {
    context.set_wait_for_ready(true);
    reader = client.stub(number).PrepareUnaryCall(&context, kGreet, string_message(name), &client.queue());
    reader->StartCall();
    reader->Finish(&reply, &status, this);
  }
};

void greet(Client& client, std::uint64_t calls, std::uint64_t outstanding) {
  std::vector<double> us;
  us.reserve(calls);
  std::uint64_t begun = 0;
  const auto begin = Clock::now();
  while (begun < std::min(calls, outstanding)) new Greeting(client, begun++);
  while (us.size() < calls) {
    bool ok = false;
    const std::unique_ptr<Greeting> done(static_cast<Greeting*>(client.next(ok, true)));
    need(done->status);
    if (string_in(done->reply) != "Hello " + done->name) die("another greeting than that for " + done->name);
    us.push_back(seconds_since(done->begin) * 1e6);
    if (begun < calls) new Greeting(client, begun++);
  }
  const double seconds = seconds_since(begin);
  std::nth_element(us.begin(), us.begin() + static_cast<std::ptrdiff_t>(calls / 2), us.end());
  std::printf("{\"work\":\"greeter\",\"answers\":%lu,\"per_second\":%.0f,\"p50_us\":%.1f}\n", calls,
              static_cast<double>(calls) / seconds, us[calls / 2]);
}

int begun, written, read_one, ended;  // whose addresses are tags

void download(Client& client, std::uint64_t count, std::uint64_t size) {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  const auto stream = client.stub().PrepareCall(&context, kDownload, &client.queue());
  stream->StartCall(&begun);
  client.need(&begun);
  const auto begin = Clock::now();
  stream->WriteLast(buffer_of(std::to_string(count) + " " + std::to_string(size)), {}, &written);
  client.need(&written);
  for (std::uint64_t number = 0;; number++) {
    ByteBuffer message;
    bool ok = false;
    stream->Read(&message, &read_one);
    client.next(ok);
    if (ok != (number < count)) die("message " + std::to_string(number) + (ok ? " is one more" : " did not come"));
    if (!ok) break;
    if (!pattern.is_message(number, size, message)) die("message " + std::to_string(number) + " came changed");
  }
  const double seconds = seconds_since(begin);
  Status status;
  stream->Finish(&status, &ended);
  client.need(&ended);
  need(status);
  std::printf("{\"work\":\"download\",\"messages\":%lu,\"bytes\":%lu,\"per_second\":%.1f}\n", count, size,
              static_cast<double>(count) / seconds);
}

void exchange(Client& client, std::uint64_t count, std::uint64_t size) {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  const auto stream = client.stub().PrepareCall(&context, kExchange, &client.queue());
  stream->StartCall(&begun);
  client.need(&begun);
  const auto begin = Clock::now();
  std::uint64_t out = 0, in = 0;
  ByteBuffer message;
  bool more = true;
  const auto send_next = [&] {
    if (out < count)
      stream->Write(pattern.message(out++, size), &written);
    else if (std::exchange(more, false))
      stream->WritesDone(&written);
  };
  send_next();
  stream->Read(&message, &read_one);
  while (true) {
    bool ok = false;
    const void* const tag = client.next(ok);
    if (tag == &written) {
      if (!ok) die("a write failed");
      send_next();
      continue;
    }
    if (!ok) break;
    if (!pattern.is_message(answer_to(in++), size, message)) die("answer " + std::to_string(in) + " came changed");
    stream->Read(&message, &read_one);
  }
  const double seconds = seconds_since(begin);
  Status status;
  stream->Finish(&status, &ended);
  client.need(&ended);
  need(status);
  if (in != count) die(std::to_string(in) + " answers came");
  std::printf("{\"work\":\"exchange\",\"messages\":%lu,\"bytes\":%lu,\"per_second\":%.1f}\n", in, size,
              static_cast<double>(in) / seconds);
}

/// How a call with `message` ends.
Status outcome(Client& client, const char* method, const ByteBuffer& message, int patience_ms, bool cancel = false) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(patience_ms));
  ByteBuffer reply;
  Status status;
  const auto reader = client.stub().PrepareUnaryCall(&context, method, message, &client.queue());
  reader->StartCall();
  reader->Finish(&reply, &status, &ended);
  if (cancel) context.TryCancel();
  client.need(&ended);
  return status;
}

void be_refused(Client& client, const std::string& address) {
  constexpr int kLong = 60'000;
  Client to_nobody(address + ":1", 1);
  const Status refused = outcome(to_nobody, kGreet, string_message("x"), kLong);
  const bool known = refused.error_message().find("Connection refused") != std::string::npos;
  const auto large = pattern.message(0, 5 << 20);  // gRPC takes 4 MiB
  const int codes[] = {outcome(client, kGreet, string_message("x"), kLong).error_code(),
                       outcome(client, "/streams.Streams/None", string_message("x"), kLong).error_code(),
                       outcome(client, kGreet, buffer_of("x"), kLong).error_code(),
                       outcome(client, kNeverAnswered, string_message("x"), 200).error_code(),
                       outcome(client, kNeverAnswered, string_message("x"), kLong, true).error_code(),
                       outcome(client, kExchange, large, kLong).error_code(),
                       outcome(client, kGreet, string_message("x"), kLong).error_code(),
                       refused.error_code()};
  std::string list;
  for (const int code : codes) list += (list.empty() ? "" : ",") + std::to_string(code);
  std::printf("{\"work\":\"refusals\",\"refused\":%s,\"codes\":[%s]}\n", known ? "true" : "false", list.c_str());
}

std::uint64_t number(int argc, char** argv, int at) {
  if (at >= argc) die("a number is missing");
  return std::strtoull(argv[at], nullptr, 10);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) die("server|client ADDRESS PORT");
  const std::string_view role = argv[1];
  const std::string address = argv[2], where = address + ":" + argv[3];
  if (role == "server") serve(where);
  const std::string_view work = argc > 4 ? argv[4] : "";
  Client client(where, work == "greeter" ? number(argc, argv, 7) : 1);
  if (work == "greeter")
    greet(client, number(argc, argv, 5), number(argc, argv, 6));
  else if (work == "download")
    download(client, number(argc, argv, 5), number(argc, argv, 6));
  else if (work == "exchange")
    exchange(client, number(argc, argv, 5), number(argc, argv, 6));
  else if (work == "refusals")
    be_refused(client, address);
  else
    die("which work?");
  client.queue().Shutdown();
}
