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

// "Host unreachable" that quotes a SYN-ACK.
IcmpError about_request(Script& s) {
  IcmpError error;
  error.error = Error::kHostUnreachable;
  error.hard = true;
  error.type = 3;
  error.code = 1;
  error.protocol = 6;
  error.local = {IpAddress::from_v4(0x0a090001), s.local_port};
  error.remote = {IpAddress::from_v4(0x0a090002), s.peer_port};
  error.sequence = s.host_iss;
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

// tcp_v4_err() of Linux, TCP_NEW_SYN_RECV.
TEST(Icmp, HostUnreachableToSynAck_EndsTheRequest) {
  Script s;
  s.listen().inject(seg().syn().seq(0).mss(1000)).expect(seg().syn().ack(1));
  IcmpError error = about_request(s);
  s.engine().on_icmp(s.ctx(), error);
  EXPECT_EQ(s.connections(), 0U);
  EXPECT_EQ(s.listener()->half_open, 0U);
  s.inject(seg().seq(1).ack(1)).expect(seg().rst().seq(1)).nothing_more();
}

TEST(Icmp, PortUnreachableToSynAck_LeavesTheRequest) {
  Script s;
  s.listen().inject(seg().syn().seq(0).mss(1000)).ignore_all();
  IcmpError error = about_request(s);
  error.code = 3;
  s.engine().on_icmp(s.ctx(), error);
  s.inject(seg().seq(1).ack(1)).accept();
  EXPECT_EQ(s.state(), tcp::State::kEstablished);
}

TEST(Icmp, SequenceNotTheSynAcks_LeavesTheRequest) {
  Script s;
  s.listen().inject(seg().syn().seq(0).mss(1000)).ignore_all();
  IcmpError error = about_request(s);
  error.sequence += 1;
  s.engine().on_icmp(s.ctx(), error);
  EXPECT_EQ(s.connections(), 1U);
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
