// ShmSetup: how a link over shared memory is set up (link_device.h shows the exchange), and its handle afterwards.
//
//   asks      kAsked (LINK_REQ; waits at its meeting) ──guest's introduction, LINK_ACC──► kPinging
//             ──pong──► kUp (LINK_READY)
//   answers   comes to the meeting, kAnswered (LINK_ACC) ──introduction, memfd, ping──► kPonged
//             ──LINK_READY──► kUp
//
// Over the Unix socket each end sends one thing: the secret that it has from the other's record. The guest sends the
// asker's secret. The host sends the answerer's secret, with the memory. So the process that comes to the socket is the
// reader of that TCP connection, and the process that received it is its writer. SO_PEERCRED must name our own user
// before a byte is read. Nobody waits: the kernel answers the guest's connect().
#pragma once

#include <cstdint>
#include <span>

#include "fastpath/setup/setup_steps.h"
#include "fastpath/setup/shm_record.h"
#include "fastpath/shm/link.h"
#include "fastpath/shm/rendezvous/meeting.h"

namespace bypass::fastpath::shm {

/// What each end sends to the other over the Unix socket, once.
struct Introduction {
  static constexpr std::uint64_t kMagic = 0x316b'6e69'6c73'7962U;  // "byslink1"
  std::uint64_t magic = kMagic;
  std::uint32_t link = 0;
  std::uint32_t reserved = 0;
  Nonce secret{};  // the receiver's secret
};
static_assert(sizeof(Introduction) == 32);

class ShmSetup final : public SetupSteps {
 public:
  /// The time from the first record to the link: two round trips and a descriptor.
  static constexpr Duration kLimit = std::chrono::seconds{5};
  /// After so many processes that came to the meeting without the secret, no more are accepted.
  static constexpr unsigned kMostStrangers = 8;

  /// `folder` is a descriptor of the run directory, which must outlive this object.
  ShmSetup(int folder, std::uint16_t window, std::span<std::byte> memory, Instant now);
  void request(std::uint32_t id);
  void answer(std::span<const std::byte> body, Reason refusal);

  bool next_record(Record& record, std::span<std::byte> body) override;
  void poll(Instant now) override;
  [[nodiscard]] int wait_descriptor() const override;
  [[nodiscard]] Link& link() override { return link_; }
  [[nodiscard]] std::uint32_t window() const override { return remote_.window; }
  [[nodiscard]] std::uint64_t peer_memory() const override { return remote_.size; }
  void give_up() override { link_.give_up(); }

  // --- For the device
  void look() {
    if (step_ == Step::kUp) link_.look();
  }
  void abandon();

 private:
  void on_accepted(std::span<const std::byte> body) override;
  [[nodiscard]] bool awaits_answer() const override { return SetupSteps::awaits_answer() && !accepted_; }
  void send_proof(Op op) override;
  [[nodiscard]] std::uint64_t own_proof() const override;
  void on_failed() override;
  void meet();
  void hear_guest();
  void dismiss_guest();
  void share();
  void hear_host();
  bool introduce(int passed);
  [[nodiscard]] bool is_introduction(std::span<const std::byte> packet, const Channel::Received& received) const;

  const int folder_;
  ShmLink link_;
  Meeting meeting_;
  Channel channel_;  // it moves into the link when that opens
  unsigned strangers_ = 0;
  bool guest_proven_ = false;
  bool accepted_ = false;  // LINK_ACC has come
  ShmEnd local_, remote_;
};

}  // namespace bypass::fastpath::shm
