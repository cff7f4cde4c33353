// A raw-packet queue pair on the first RDMA device, and one steering rule.
//   steered_echo udp ADDRESS PORT [fork]   echoes the datagrams to that port, of any address where ADDRESS is `any`;
//                                          fork: a child that does nothing lives beside it
//   steered_echo all                       takes every frame to the interface's MAC address, and says its type
//   steered_echo refused                   says what the device answers to rules that no card's map has
//   steered_echo gids                      the device's GID table with interface numbers
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <net/ethernet.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int kReceives = 64;
constexpr std::uint32_t kRoom = 2048;

[[noreturn]] void fail(const char* what) {
  std::printf("%s: %s\n", what, strerrorname_np(errno));
  std::exit(3);
}

template <typename T>
T* made(T* object, const char* what) {
  if (object == nullptr) fail(what);
  return object;
}

// What a rule says before its port.
struct Rule {
  ibv_flow_attr attributes{};
  union {
    ibv_flow_spec_eth ethernet;
    ibv_flow_spec_ipv4 ip;
  } first{};

  explicit Rule(ibv_flow_attr_type type = IBV_FLOW_ATTR_NORMAL) {
    attributes.type = type;
    attributes.port = 1;
    attributes.size = sizeof attributes;
  }
};

struct Machine {
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_cq* cq = nullptr;
  ibv_qp* qp = nullptr;
  ibv_mr* mr = nullptr;
  std::vector<unsigned char> memory = std::vector<unsigned char>(kReceives * kRoom);

  Machine() {
    int count = 0;
    ibv_device** const list = made(ibv_get_device_list(&count), "devices");
    if (count == 0) fail("no device");
    context = made(ibv_open_device(list[0]), "open");
    ibv_free_device_list(list);
  }

  void make_queue_pair() {
    pd = made(ibv_alloc_pd(context), "domain");
    cq = made(ibv_create_cq(context, 2 * kReceives, nullptr, nullptr, 0), "completion queue");
    mr = made(ibv_reg_mr(pd, memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE), "memory");
    ibv_qp_init_attr wish{};
    wish.send_cq = wish.recv_cq = cq;
    wish.cap = {kReceives, kReceives, 1, 1, 0};
    wish.qp_type = IBV_QPT_RAW_PACKET;
    qp = made(ibv_create_qp(pd, &wish), "queue pair");
    ibv_qp_attr attr{};
    attr.port_num = 1;
    for (const ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
      attr.qp_state = state;
      const int mask = state == IBV_QPS_INIT ? IBV_QP_STATE | IBV_QP_PORT : IBV_QP_STATE;
      if ((errno = ibv_modify_qp(qp, &attr, mask)) != 0) fail("queue pair's state");
    }
    for (std::uint64_t i = 0; i < kReceives; i++) receive(i);
  }

  ibv_sge piece(std::uint64_t i, std::uint32_t length) {
    return {reinterpret_cast<std::uintptr_t>(&memory[i * kRoom]), length, mr->lkey};
  }

  void receive(std::uint64_t i) {
    ibv_sge sge = piece(i, kRoom);
    ibv_recv_wr wr{}, *bad = nullptr;
    wr.wr_id = i;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    if ((errno = ibv_post_recv(qp, &wr, &bad)) != 0) fail("receive request");
  }

  void send(std::uint64_t i, std::uint32_t length) {
    ibv_sge sge = piece(i, length);
    ibv_send_wr wr{}, *bad = nullptr;
    wr.wr_id = i;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    if ((errno = ibv_post_send(qp, &wr, &bad)) != 0) fail("send request");
  }
};

Rule to_address(const std::string& address) {
  Rule rule;
  rule.attributes.num_of_specs = 2;  // the port is to come
  rule.first.ip.type = IBV_FLOW_SPEC_IPV4;
  rule.first.ip.size = sizeof rule.first.ip;
  if (address != "any") {
    inet_pton(AF_INET, address.c_str(), &rule.first.ip.val.dst_ip);
    rule.first.ip.mask.dst_ip = 0xffffffff;
  }
  return rule;
}

// The specifications lie behind each other without gaps.
ibv_flow* create(ibv_qp* qp, const Rule& rule, std::uint16_t udp_port) {
  std::vector<unsigned char> bytes(sizeof rule.attributes);
  std::memcpy(bytes.data(), &rule.attributes, sizeof rule.attributes);
  const auto add = [&](const void* spec, std::size_t size) {
    const auto* const from = static_cast<const unsigned char*>(spec);
    bytes.insert(bytes.end(), from, from + size);
  };
  if (rule.attributes.num_of_specs > 0) add(&rule.first, rule.first.ethernet.size);
  if (udp_port != 0) {
    ibv_flow_spec_tcp_udp ports{};
    ports.type = IBV_FLOW_SPEC_UDP;
    ports.size = sizeof ports;
    ports.val.dst_port = htons(udp_port);
    ports.mask.dst_port = 0xffff;
    add(&ports, sizeof ports);
  }
  reinterpret_cast<ibv_flow_attr*>(bytes.data())->size = static_cast<std::uint16_t>(bytes.size());
  return ibv_create_flow(qp, reinterpret_cast<ibv_flow_attr*>(bytes.data()));
}

Rule to_every_frame(const unsigned char (&mac)[6]) {
  Rule rule;
  rule.attributes.num_of_specs = 1;
  rule.first.ethernet.type = IBV_FLOW_SPEC_ETH;
  rule.first.ethernet.size = sizeof rule.first.ethernet;
  std::memcpy(rule.first.ethernet.val.dst_mac, mac, sizeof mac);
  std::memset(rule.first.ethernet.mask.dst_mac, 0xff, sizeof mac);
  return rule;
}

// Sender and receiver change places, which leaves the header's checksum as it is. The datagram goes without one: a
// neighbour in this machine may have sent it before it was made.
void turn_around(unsigned char* frame) {
  unsigned char mac[6];
  std::memcpy(mac, frame, sizeof mac);
  std::memcpy(frame, frame + 6, sizeof mac);
  std::memcpy(frame + 6, mac, sizeof mac);
  auto* const ip = reinterpret_cast<iphdr*>(frame + sizeof(ether_header));
  auto* const udp = reinterpret_cast<udphdr*>(reinterpret_cast<unsigned char*>(ip) + std::size_t{ip->ihl} * 4);
  std::swap(ip->saddr, ip->daddr);
  std::swap(udp->source, udp->dest);
  udp->check = 0;
}

[[noreturn]] void serve(Machine& m, bool echoes) {
  std::puts("ready");
  for (;;) {
    ibv_wc done{};
    if (ibv_poll_cq(m.cq, 1, &done) <= 0) {
      usleep(200);
      continue;
    }
    if (done.status != IBV_WC_SUCCESS) fail(ibv_wc_status_str(done.status));
    if (done.opcode == IBV_WC_RECV && echoes) {
      turn_around(&m.memory[done.wr_id * kRoom]);
      m.send(done.wr_id, done.byte_len);
    } else {
      if (done.opcode == IBV_WC_RECV)
        std::printf("frame %02x%02x\n", m.memory[done.wr_id * kRoom + 12], m.memory[done.wr_id * kRoom + 13]);
      m.receive(done.wr_id);
    }
  }
}

void show_refusals(ibv_qp* qp) {
  const unsigned char other[] = {2, 9, 9, 9, 9, 9};
  Rule prefix = to_address("10.77.0.0");
  prefix.first.ip.mask.dst_ip = htonl(0xffffff00);
  const auto show = [&](const char* name, const Rule& rule, std::uint16_t port) {
    const bool taken = create(qp, rule, port) != nullptr;
    std::printf("%s: %s\n", name, taken ? "taken" : strerrorname_np(errno));
  };
  show("sniffer", Rule(IBV_FLOW_ATTR_SNIFFER), 0);
  show("prefix", prefix, 7);
  show("other MAC", to_every_frame(other), 0);
}

void show_gids(ibv_context* context) {
  ibv_gid_entry entries[16];
  const ssize_t count = ibv_query_gid_table(context, entries, 16, 0);
  for (ssize_t i = 0; i < count; i++) {
    char text[INET6_ADDRSTRLEN];
    inet_ntop(AF_INET6, entries[i].gid.raw, text, sizeof text);
    std::printf("%zd %s %u\n", i, text, entries[i].ndev_ifindex);
  }
}

// GID 0 of an interface with an address made from its MAC (RFC 4291, appendix A).
void mac_of(ibv_context* context, unsigned char (&mac)[6]) {
  ibv_gid gid;
  if (ibv_query_gid(context, 1, 0, &gid) != 0) fail("GID");
  const unsigned char from[] = {
      static_cast<unsigned char>(gid.raw[8] ^ 2), gid.raw[9], gid.raw[10], gid.raw[13], gid.raw[14], gid.raw[15]};
  std::memcpy(mac, from, sizeof mac);
}

}  // namespace

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::string what = argc > 1 ? argv[1] : "";
  Machine machine;
  if (what == "gids") {
    show_gids(machine.context);
    return 0;
  }
  machine.make_queue_pair();
  if (what == "refused") {
    show_refusals(machine.qp);
  } else if (what == "all") {
    unsigned char mac[6];
    mac_of(machine.context, mac);
    made(create(machine.qp, to_every_frame(mac), 0), "rule");
    serve(machine, false);
  } else if (what == "udp" && argc >= 4) {
    made(create(machine.qp, to_address(argv[2]), static_cast<std::uint16_t>(std::atoi(argv[3]))), "rule");
    if (argc > 4 && fork() == 0) pause();
    serve(machine, true);
  }
  return 0;
}
