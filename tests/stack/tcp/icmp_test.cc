// ICMP errors: RFC 5461, RFC 5927, path MTU (RFC 1191).
#include "stack/tcp/script.h"

namespace bypass::test {
namespace {

IcmpError about(Script& s, std::uint32_t sequence) {
  IcmpError error;
  error.error = Error::kHostUnreachable;
  error.protocol = 6;
  error.local = s.engine().local(*s.tcb());
  error.remote = s.engine().remote(*s.tcb());
  error.sequence = s.host_iss + sequence;
  return error;
}

TEST(Icmp, HardErrorToSyn_EndsTheAttempt) {
  Script s;
  s.connect();
  IcmpError error = about(s, 0);
  error.error = Error::kRefused;
  error.hard = true;
  s.engine().on_icmp(s.ctx(), error);
  EXPECT_EQ(s.error(), Error::kRefused);
}

TEST(Icmp, SoftErrorToSyn_IsTheCauseOfTheTimeout) {
  Given given;
  given.options.syn_retries = 1;
  Script s(given);
  s.connect();
  s.engine().on_icmp(s.ctx(), about(s, 0));
  EXPECT_EQ(s.state(), tcp::State::kSynSent);
  s.at(10s);
  EXPECT_EQ(s.error(), Error::kHostUnreachable);
}

TEST(Icmp, HardErrorWhenEstablished_IsSoft) {
  Script s;
  s.establish().write(100);
  IcmpError error = about(s, 1);
  error.hard = true;
  s.engine().on_icmp(s.ctx(), error);
  EXPECT_EQ(s.state(), tcp::State::kEstablished);
  EXPECT_EQ(s.tcb()->soft_error, Error::kHostUnreachable);
}

TEST(Icmp, SequenceNotInFlight_IsIgnored) {
  Script s;
  s.establish().write(100);
  s.engine().on_icmp(s.ctx(), about(s, 5000));
  EXPECT_EQ(s.tcb()->soft_error, Error::kNone);
}

TEST(Icmp, FragmentationNeeded_ShrinksSegmentsAndSendsAgain) {
  Script s;
  s.establish().write(3000).ignore_all();
  IcmpError error = about(s, 1);
  error.error = Error::kMessageTooLarge;
  error.mtu = 640;
  s.engine().on_icmp(s.ctx(), error);
  EXPECT_EQ(s.info().mss, 600U);
  s.wait(0ms).inject(seg().seq(1).ack(1).window(60000)).expect(seg().seq(1).len(600));
}

}  // namespace
}  // namespace bypass::test
