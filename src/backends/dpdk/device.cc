// The calls that tell of a card's removal are marked experimental in DPDK 22.11.
#define ALLOW_EXPERIMENTAL_API

#include "backends/dpdk/device.h"

#include <rte_alarm.h>
#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_eth_vhost.h>
#include <rte_ethdev.h>
#include <rte_vhost.h>
#include <semaphore.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "backends/dpdk/card/card_rules.h"
#include "backends/dpdk/card/io_ports.h"
#include "backends/dpdk/card/vain_waits.h"
#include "backends/dpdk/control.h"
#include "backends/dpdk/eal/descriptors.h"
#include "backends/dpdk/eal/eal.h"
#include "backends/dpdk/eal/guard.h"
#include "backends/dpdk/eal/libc.h"
#include "backends/pci_card.h"
#include "os/memory_maps.h"

// A function of the driver, which no header of DPDK declares. It unregisters the interrupt of a port whose peer has
// gone.
extern "C" void virtio_user_dev_delayed_disconnect_handler(void* device);

namespace bypass::dpdk {
namespace {

// How long opening a card may take. The slowest loads its firmware in a few seconds.
constexpr std::chrono::seconds kPatience{20};

constexpr std::uint64_t kRxChecksums =
    RTE_ETH_RX_OFFLOAD_IPV4_CKSUM | RTE_ETH_RX_OFFLOAD_TCP_CKSUM | RTE_ETH_RX_OFFLOAD_UDP_CKSUM;
constexpr std::uint64_t kTxL4Checksums = RTE_ETH_TX_OFFLOAD_TCP_CKSUM | RTE_ETH_TX_OFFLOAD_UDP_CKSUM;

// virtio feature bits (virtio 1.2, 5.1.3)
constexpr unsigned kGuestCsum = 1;
constexpr unsigned kGuestTso4 = 7;
constexpr unsigned kGuestTso6 = 8;

int on_link_event(std::uint16_t, rte_eth_event_type, void* argument, void*) {
  auto* call = static_cast<std::pair<void (*)(void*), void*>*>(argument);
  call->first(call->second);
  return 0;
}

// vfio's request (VFIO_PCI_REQ_ERR_IRQ): the kernel waits for the card.
void on_card_event(const char* /*name*/, rte_dev_event_type type, void* argument) {
  auto* request = static_cast<CardRequest*>(argument);
  if (type != RTE_DEV_EVENT_REMOVE) return;
  request->made.store(true, std::memory_order_release);
  request->call(request->argument);
}

// Runs `body` on EAL's interrupt thread and waits for its end. No handler of that thread runs meanwhile. False: the
// thread cannot be asked.
bool run_on_interrupt_thread(void (*body)(void*), void* argument) {
  struct Errand {
    void (*body)(void*);
    void* argument;
    sem_t done;
  } errand{body, argument, {}};
  const auto run = [](void* handed) {
    auto* e = static_cast<Errand*>(handed);
    e->body(e->argument);
    sem_post(&e->done);
  };
  sem_init(&errand.done, 0, 0);
  const bool asked = rte_eal_alarm_set(1, run, &errand) == 0;
  while (asked && sem_wait(&errand.done) != 0) continue;
  sem_destroy(&errand.done);
  return asked;
}

std::uint16_t fit(std::uint16_t wanted, const rte_eth_desc_lim& limit) {
  std::uint32_t n = wanted;
  if (limit.nb_max != 0) n = std::min<std::uint32_t>(n, limit.nb_max);
  n = std::max<std::uint32_t>(n, limit.nb_min);
  if (limit.nb_align > 1) n = n / limit.nb_align * limit.nb_align;
  return static_cast<std::uint16_t>(n);
}

// The number of parts that one frame to send may have; 0: any number.
std::uint16_t most_segments(const rte_eth_desc_lim& limit, const CardRules& rules) {
  return rules.most_segments != 0 ? rules.most_segments : limit.nb_seg_max;
}

// The packet socket of drivers without interrupts (af_packet, af_xdp): readable when frames are there.
int find_packet_socket() {
  return find_descriptor([](int fd) {
    int domain = 0;
    socklen_t size = sizeof domain;
    if (libc.getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0) return false;
    return domain == AF_PACKET || domain == AF_XDP;
  });
}

}  // namespace

bool Device::fail(const char* step, int error, std::string& problem) {
  const std::string details = take_dpdk_errors();
  problem = spec_.name + " (" + spec_.arguments + "): " + step +
            " failed: " + rte_strerror(error < 0 ? -error : error) + (details.empty() ? "" : ": " + details);
  return false;
}

// A call of the driver, which may wait for its card. -ETIMEDOUT: the card has not answered, and the driver would have
// waited for ever. What it had locked stays locked: of virtio's driver, that is its control queue. So the driver is
// asked nothing more, except to close, which needs no control queue.
template <typename Call>
int Device::ask(Call call) {
  if (is_stuck_) return -ETIMEDOUT;
  struct Asked {
    Call& call;
    int result;
  } asked{call, -ETIMEDOUT};
  const auto body = [](void* argument) {
    auto* a = static_cast<Asked*>(argument);
    a->result = a->call();
  };
  const VainWaits waits(is_card() ? spec_.name : "", patience_end_);
  std::string why;
  is_stuck_ = !run_guarded(body, &asked, why);
  if (asked.result != 0 && waits.was_silent())
    note_error("the card has not answered its driver within " + std::to_string(kPatience.count()) + " s");
  else if (is_stuck_)
    note_error("the card has gone");
  return asked.result;
}

bool Device::open(const DeviceSpec& spec, rte_mempool* pool, void (*on_event)(void*), void* argument,
                  std::string& problem) {
  spec_ = spec;
  event_ = {on_event, argument};
  take_dpdk_errors();
  is_stuck_ = false;
  patience_end_ = is_card() ? monotonic_now() + kPatience : kNever;
  if (is_card()) {
    heed_rules(rules_of_card(spec.name));
    name_card_of_ports("/sys/bus/pci/devices/" + spec.name);
  }
  const auto plug = [&] { return rte_eal_hotplug_add(spec.bus.c_str(), spec.name.c_str(), spec.arguments.c_str()); };
  if (const int error = ask(plug); error != 0) return fail("opening", error, problem);
  plugged_ = true;
  if (is_card()) follow_requests(on_event, argument);
  if (is_card()) guard_registers(true);
  std::uint16_t id = kNone;
  if (rte_eth_dev_get_port_by_name(spec.name.c_str(), &id) != 0) {
    close();
    return fail("finding the port", ENODEV, problem);
  }
  id_ = id;
  if (bring_up(pool, problem)) return true;
  close();
  return false;
}

void Device::follow_requests(void (*on_event)(void*), void* argument) {
  kernel_driver_ = kernel_driver_of(spec_.name);
  request_.made.store(false, std::memory_order_relaxed);
  request_.call = on_event;
  request_.argument = argument;
  rte_dev_event_callback_register(spec_.name.c_str(), on_card_event, &request_);
}

// While its handler of the request runs, EAL can unregister neither that handler nor ours, and the card would stay
// open (-EAGAIN). The kernel repeats the request after ten seconds only.
void Device::unfollow_requests() {
  const auto nothing = [](void* /*argument*/) {};
  run_on_interrupt_thread(nothing, nullptr);
  while (rte_dev_event_callback_unregister(spec_.name.c_str(), on_card_event, &request_) == -EAGAIN)
    run_on_interrupt_thread(nothing, nullptr);
}

// A driver looks at a card's registers in each burst. On uio they vanish with the card, before anybody can be told.
void Device::guard_registers(bool on) {
  if (on) {
    const std::string maps = os::read_memory_maps();
    registers_ = mapped_registers(maps, spec_.name);
    keep_from_children(registers_);
    keep_from_children(mapped_by_vfio(maps));
  }
  for (const MappedRegisters& each : registers_)
    host->guard_device_memory(reinterpret_cast<const void*>(each.begin), each.bytes, on);
  if (!on) registers_.clear();
}

bool Device::is_leaving() const {
  if (!is_card()) return false;
  if (request_.made.load(std::memory_order_acquire)) return true;
  return kernel_driver_of(spec_.name) != kernel_driver_ && sees_cards();  // after chroot(2) it sees none
}

void Device::heed_rules(const CardBinding& binding) {
  ask_for_msi(binding.msi);
  spec_.interrupts = spec_.interrupts && binding.interrupts;
}

bool Device::bring_up(rte_mempool* pool, std::string& problem) {
  if (!configure(problem)) return false;
  if (!set_up_queues(pool, problem)) return false;
  rte_eth_dev_callback_register(id_, RTE_ETH_EVENT_INTR_LSC, on_link_event, &event_);
  if (const int error = ask([&] { return rte_eth_dev_start(id_); }); error != 0)
    return fail("starting", error, problem);
  if (!take_mac(problem)) return false;
  if (spec_.mtu != 0 && !spec_.shared_memory)
    ask([&] { return rte_eth_dev_set_mtu(id_, static_cast<std::uint16_t>(spec_.mtu)); });
  find_interrupt_descriptor();
  return true;
}

bool Device::configure(std::string& problem) {
  rte_eth_dev_info info{};
  if (const int error = rte_eth_dev_info_get(id_, &info); error != 0) return fail("asking", error, problem);
  const CardRules rules = rules_of_driver(info.driver_name);
  lro_ = spec_.shared_memory || (rules.lro && (info.rx_offload_capa & RTE_ETH_RX_OFFLOAD_TCP_LRO) != 0);
  most_segments_ = most_segments(info.tx_desc_lim, rules);
  rte_eth_conf conf{};
  conf.rxmode.offloads = info.rx_offload_capa & (kRxChecksums | RTE_ETH_RX_OFFLOAD_SCATTER |
                                                 (lro_ ? RTE_ETH_RX_OFFLOAD_TCP_LRO : std::uint64_t{0}));
  conf.txmode.offloads = info.tx_offload_capa & (RTE_ETH_TX_OFFLOAD_IPV4_CKSUM | kTxL4Checksums |
                                                 RTE_ETH_TX_OFFLOAD_TCP_TSO | RTE_ETH_TX_OFFLOAD_MULTI_SEGS);
  // Cards take it before their start: by it they choose how many buffers a received frame may take.
  if (is_card() && spec_.mtu != 0) {
    const std::uint16_t most = rules.most_mtu != 0 ? std::min(rules.most_mtu, info.max_mtu) : info.max_mtu;
    if (spec_.mtu > most) return refuse_mtu(info, most, problem);
    conf.rxmode.mtu = spec_.mtu;
  }
  conf.rxmode.max_lro_pkt_size = lro_ ? info.max_lro_pkt_size : 0;
  // With this interrupt the driver never asks the card again. The interrupt may not come, so PortKeeper reads the link
  // now and then.
  conf.intr_conf.lsc = !is_card() && (*info.dev_flags & RTE_ETH_DEV_INTR_LSC) != 0 ? 1 : 0;
  conf.intr_conf.rxq = spec_.interrupts ? 1 : 0;
  const auto ask_for_it = [&] { return rte_eth_dev_configure(id_, 1, 1, &conf); };
  int error = ask(ask_for_it);
  if (error != 0 && spec_.interrupts) {  // a driver without receive interrupts
    conf.intr_conf.rxq = 0;
    error = ask(ask_for_it);
  }
  return error == 0 || fail("configuring", error, problem);
}

bool Device::refuse_mtu(const rte_eth_dev_info& info, std::uint16_t most, std::string& problem) const {
  problem = spec_.name + ": an MTU of " + std::to_string(spec_.mtu) + " is more than driver " + info.driver_name +
            " takes; accepted are up to " + std::to_string(most);
  return false;
}

bool Device::set_up_queues(rte_mempool* pool, std::string& problem) {
  rte_eth_dev_info info{};
  rte_eth_dev_info_get(id_, &info);
  const auto receive = [&] {
    return rte_eth_rx_queue_setup(id_, 0, fit(spec_.descriptors, info.rx_desc_lim), SOCKET_ID_ANY, nullptr, pool);
  };
  if (const int error = ask(receive); error != 0) return fail("receive queue", error, problem);
  const auto transmit = [&] {
    return rte_eth_tx_queue_setup(id_, 0, fit(spec_.descriptors, info.tx_desc_lim), SOCKET_ID_ANY, nullptr);
  };
  if (const int error = ask(transmit); error != 0) return fail("transmit queue", error, problem);
  return true;
}

// A device drops frames to an address that it does not know, unless it drops none.
bool Device::take_mac(std::string& problem) {
  if (spec_.mac.is_zero() || spec_.mac == mac()) return true;
  rte_ether_addr address{};
  std::copy(spec_.mac.bytes.begin(), spec_.mac.bytes.end(), address.addr_bytes);
  if (ask([&] { return rte_eth_dev_default_mac_addr_set(id_, &address); }) == 0) return true;
  const int error = ask([&] { return rte_eth_promiscuous_enable(id_); });
  return error == 0 || !is_card() || fail("taking the MAC address (BYPASS_MAC)", error, problem);
}

void Device::find_interrupt_descriptor() {
  interrupt_fd_ = spec_.interrupts ? rte_eth_dev_rx_intr_ctl_q_get_fd(id_, 0) : -1;
  has_interrupt_switch_ = interrupt_fd_ >= 0 && rte_eth_dev_rx_intr_disable(id_, 0) == 0;
  if (has_interrupt_switch_) return;
  interrupt_fd_ = is_card() ? -1 : find_packet_socket();
}

void Device::stop_and_close() {
  rte_eth_dev_callback_unregister(id_, RTE_ETH_EVENT_INTR_LSC, on_link_event, &event_);
  rte_eth_dev_stop(id_);  // also one whose start has not come back
  rte_eth_dev_close(id_);
}

// The virtio-user driver waits neither for its interrupt handler, nor for the alarm that the handler sets when the peer
// has gone. Both would run on freed memory. They run on EAL's interrupt thread, and so does this function.
void Device::close_virtio_user() {
  const auto body = [](void* self) {
    static_cast<Device*>(self)->stop_and_close();
    rte_eal_alarm_cancel(virtio_user_dev_delayed_disconnect_handler, reinterpret_cast<void*>(-1));
  };
  if (!run_on_interrupt_thread(body, this)) stop_and_close();
}

void Device::close() {
  const VainWaits waits(is_card() ? spec_.name : "");
  if (plugged_ && is_card()) unfollow_requests();
  if (id_ != kNone) spec_.virtio_user ? close_virtio_user() : stop_and_close();
  if (plugged_) rte_eal_hotplug_remove(spec_.bus.c_str(), spec_.name.c_str());
  guard_registers(false);
  id_ = kNone;
  plugged_ = false;
  interrupt_fd_ = -1;
}

bool Device::link_is_up() const {
  const VainWaits waits(is_card() ? spec_.name : "");
  rte_eth_link link{};
  return rte_eth_link_get_nowait(id_, &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
}

bool Device::peer_takes_frames() const {
  constexpr std::uint16_t kPeerReceiveQueue = 0;
  const int vid = rte_eth_vhost_get_vid_from_port_id(id_);
  return vid >= 0 && rte_vhost_avail_entries(vid, kPeerReceiveQueue) > 0;
}

PortCaps Device::capabilities() const {
  rte_eth_dev_info info{};
  rte_eth_dev_info_get(id_, &info);
  PortCaps caps;
  std::uint16_t mtu = 1500;
  rte_eth_dev_get_mtu(id_, &mtu);
  caps.mtu = spec_.mtu != 0 && spec_.shared_memory ? spec_.mtu : std::uint32_t{mtu};
  caps.rx_checksum = (info.rx_offload_capa & RTE_ETH_RX_OFFLOAD_TCP_CKSUM) != 0;
  caps.tx_ip_checksum = (info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_IPV4_CKSUM) != 0;
  caps.tx_l4_checksum = (info.tx_offload_capa & kTxL4Checksums) == kTxL4Checksums;
  caps.tso = (info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_TCP_TSO) != 0;
  caps.lro = lro_ && (info.rx_offload_capa & RTE_ETH_RX_OFFLOAD_TCP_LRO) != 0;
  if (const int vid = rte_eth_vhost_get_vid_from_port_id(id_); vid >= 0) {
    // The vhost driver does not say what its peer can take: read it from the negotiation.
    std::uint64_t features = 0;
    rte_vhost_get_negotiated_features(vid, &features);
    caps.tx_l4_checksum = (features >> kGuestCsum & 1) != 0;
    caps.tso = caps.tx_l4_checksum && (features >> kGuestTso4 & 1) != 0 && (features >> kGuestTso6 & 1) != 0;
    caps.lro = true;
  }
  if (caps.tso) caps.tso_max_bytes = kLargestTsoPayload;
  if (caps.tso && !spec_.shared_memory && most_segments_ != 0) {
    // The first segment may have to hold the headers alone.
    caps.tso_max_bytes = std::min(caps.tso_max_bytes, (most_segments_ - 1U) * spec_.data_room);
    caps.tso = caps.tso_max_bytes >= 2 * caps.mtu;
  }
  caps.keeps_sent =
      true;  // also for a vhost end: when the socket closes, its peer drops the frames that it has not taken
  return caps;
}

std::string Device::driver() const {
  rte_eth_dev_info info{};
  return rte_eth_dev_info_get(id_, &info) == 0 && info.driver_name != nullptr ? info.driver_name : "";
}

MacAddress Device::mac() const {
  rte_ether_addr address{};
  rte_eth_macaddr_get(id_, &address);
  MacAddress mac;
  std::copy_n(address.addr_bytes, mac.bytes.size(), mac.bytes.begin());
  return mac;
}

std::uint64_t Device::dropped_by_device() const {
  const VainWaits waits(is_card() ? spec_.name : "");
  rte_eth_stats stats{};
  return rte_eth_stats_get(id_, &stats) == 0 ? stats.imissed + stats.ierrors : 0;
}

}  // namespace bypass::dpdk
