// RcFixture: two RcDevices on one simulated wire, and a link between them.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/packet/libc.h"
#include "backends/plain_host.h"
#include "backends/verbs/rc/device.h"
#include "engine_verbs.h"
#include "fastpath/lane/message.h"

namespace bypass::verbs {

using namespace std::chrono_literals;
using fastpath::Arrival;
using fastpath::LinkSetup;
using fastpath::LinkState;
using fastpath::Reason;
using fastpath::Record;
using fastpath::RecordType;
using fastpath::SetupState;
using fastpath::Write;

/// Two devices, and the records that go from one to the other.
class RcWorld {
 public:
  static constexpr std::size_t kMemory = std::size_t{256} << 10;

  explicit RcWorld(std::uint64_t seed = 1, std::size_t memory_bytes = kMemory) : verbs(seed) {
    const char* missing = nullptr;
    if (!packet::bind_libc(&PlainHost::host(), &missing)) std::abort();
    for (std::size_t i = 0; i < 2; i++) {
      verbs.add_device();
      memory[i].resize(memory_bytes);
      buffers[i].resize(kMemory);
    }
  }
  ~RcWorld() {
    for (auto& each : devices) each.reset();
  }

  bool open(const fastpath::LinkDeviceSpec& wanted = {}) { return open_one(0, wanted) && open_one(1, wanted); }
  bool open_one(std::size_t i, fastpath::LinkDeviceSpec spec = {}) {
    spec.address = verbs.end(i).address();
    devices[i] = RcDevice::open(verbs.end(i).name, spec, problem);
    const char* why = nullptr;
    return devices[i] != nullptr && (buffers[i].empty() || devices[i]->add_memory(buffers[i], why));
  }

  void request(std::uint32_t id = 7) {
    setups[0] = devices[0]->request(id, memory[0], verbs.end(1).address(), verbs.now());
  }
  /// Delivers the records of each end to the other. `change` may change a record; a record that it turns into DATA is
  /// lost. True: a record was sent.
  using Change = std::function<void(Record&, std::vector<std::byte>&)>;
  bool exchange(const Change& change = {}) {
    bool any = false;
    for (std::size_t from = 0; from < 2; from++) {
      std::array<std::byte, fastpath::kMaxLinkBody> room;
      Record record;
      while (setups[from] != nullptr && setups[from]->next_record(record, room)) {
        any = true;
        std::vector<std::byte> body(room.begin(), room.begin() + record.length);
        if (change) change(record, body);
        if (record.type != RecordType::kData) hear(1 - from, record, body);
      }
    }
    return any;
  }
  void hear(std::size_t i, const Record& record, std::span<const std::byte> body) {
    if (setups[i] != nullptr)
      setups[i]->on_record(record.type, body);
    else
      setups[i] = devices[i]->answer(body, refusal, memory[i], verbs.end(1 - i).address(), verbs.now());
  }
  /// Lets time pass until both ends are up or have failed, for `limit` at most.
  void settle(const Change& change = {}, Duration limit = 6s) {
    const Instant until = verbs.now() + limit;
    while (verbs.now() < until) {
      for (LinkSetup* each : setups)
        if (each != nullptr) each->poll(verbs.now());
      const bool said = exchange(change);
      if (!said && is_settled()) return;
      verbs.run_for(said ? 1us : 100us);
    }
  }
  [[nodiscard]] bool is_settled() const {
    return std::all_of(std::begin(setups), std::end(setups),
                       [](const LinkSetup* each) { return each != nullptr && each->state() != SetupState::kUnderWay; });
  }
  [[nodiscard]] bool connect() {
    request();
    settle();
    return is_settled() && setups[0]->state() == SetupState::kUp && setups[1]->state() == SetupState::kUp;
  }
  RcLink& link(std::size_t i) { return static_cast<RcLink&>(setups[i]->link()); }

  EngineVerbs verbs;
  std::unique_ptr<RcDevice> devices[2];
  std::vector<std::byte> memory[2], buffers[2];
  LinkSetup* setups[2] = {};
  Reason refusal = Reason::kNone;  // of the end that is asked
  std::string problem;
};

inline std::vector<Arrival> poll_all(fastpath::Link& link) {
  std::vector<Arrival> all;
  for (std::array<Arrival, 8> some;;) {
    const std::size_t n = link.poll(some);
    if (n == 0) return all;
    all.insert(all.end(), some.begin(), some.begin() + static_cast<std::ptrdiff_t>(n));
  }
}

}  // namespace bypass::verbs
