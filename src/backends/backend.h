// The plugin boundary: what a backend asks of the process (Host) and what it offers (Backend).
//
// A plugin is a shared object next to libbypass.so (libbypass-dpdk.so, libbypass-packet.so). It is opened with RTLD_NOW
// | RTLD_LOCAL when a port is first needed, and it exports one function, `bypass_backend`. Plugin and host are always
// of one build; `kBackendAbi` catches a stale file.
//
// A backend runs with the calling thread marked "inside", so that its own socket, ioctl and close calls go straight to
// libc. Threads that it starts are marked for good by Host::run_thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "os/log/log_level.h"
#include "stack/address.h"
#include "stack/frame/port.h"

namespace bypass {

namespace fastpath {
class LinkDevice;
struct LinkDeviceSpec;
}  // namespace fastpath

inline constexpr std::uint32_t kBackendAbi = 13;

/// Huge pages for the ports' memory. kAuto: where there are enough. kOn: always, else the port does not open. kOff:
/// never.
enum class Hugepages : std::uint8_t { kAuto, kOn, kOff };

/// The range of BYPASS_MTU: from what every IPv4 host must take (RFC 791) to the longest frame less its Ethernet
/// header.
inline constexpr std::uint32_t kLeastMtu = 576, kMostMtu = 65'535 - 14;

/// The payload of the largest TSO frame: an IPv4 packet's 65,535 bytes less the longest IP and TCP headers.
inline constexpr std::uint32_t kLargestTsoPayload = 65'535 - 60 - 60;

/// One port as the configuration names it.
struct PortSpec {
  std::string kind;    // "vhost", "virtio", "netdev", "af_xdp", "af_packet", "tap", "pci", "dpdk", "verbs", "sim"
  std::string target;  // what follows the colon: a path, an interface, a PCI address, devargs
  std::vector<IpAddress> addresses;  // the addresses of the stack on this port
  MacAddress mac;                    // zero: the backend chooses a stable one (locally administered)
  std::uint32_t mtu = 0;             // 0: the kind's own default
  std::uint16_t queues = 1;
  std::uint32_t buffer_memory = 0;  // bytes for frames; 0: the default budget
  Hugepages hugepages = Hugepages::kAuto;
  std::uint16_t ports = 1;  // how many ports this process opens: what the first one starts must suffice for all
  std::vector<std::string> all_ports;  // all ports of this process, as KIND:TARGET
  std::uint16_t index = 0;             // the port's place in Context::queues; its packets carry it
  /// The kernel keeps the interface, its MAC address and IP addresses. This port gets only steered flows (Port::steer),
  /// and copies of ARP, neighbour discovery and frames to groups.
  bool share_interface = false;
  std::string interface;     // the kernel's name of the shared interface
  bool follows_mtu = false;  // `mtu` is the interface's MTU, and may change with it
};

/// A pair of datagram sockets (socketpair(2)) that a family's processes have in common. A descriptor in an unread
/// message lives as long as one of these processes does.
struct Handover {
  int put = -1, look = -1;
  [[nodiscard]] bool is_there() const { return put >= 0; }
};

/// The process as a backend sees it. Function pointers, because plugin and host share no C++ runtime.
struct Host {
  std::uint32_t abi = kBackendAbi;
  /// libc's own function with that name, never the interposer that we put in front. It is never a cancellation point
  /// (pthreads(7)) either, since ports are called with locks held. Null when libc lacks it.
  void* (*libc)(const char* name) = nullptr;
  /// A duplicate, CLOEXEC, at a number that the program is not given. (It seldom may be: RLIMIT_NOFILE can leave no
  /// other.) -1: there is no room. Leaves errno as it was.
  int (*copy_high)(int fd) = nullptr;
  /// Remembers (add) or forgets a descriptor that the program must not close and a forked child must drop.
  void (*own_descriptor)(int fd, bool add) = nullptr;
  void (*log)(LogLevel level, const char* text) = nullptr;
  /// Starts a thread that the program does not know: all signals blocked, marked inside for good, named `name` (15
  /// characters). Returns 0 or an errno.
  int (*run_thread)(const char* name, void (*body)(void*), void* argument, std::uint64_t* id) = nullptr;
  void (*join_thread)(std::uint64_t id) = nullptr;
  /// The path of another file of this build; false: it is not installed.
  bool (*file_of_build)(const char* name, char* path, std::size_t size) = nullptr;
  /// The settings' variables (BYPASS_*) that the program was started with, whatever it has done to its environment
  /// since. Null ends the list.
  const char* const* (*environment)() = nullptr;
  /// A device's registers that are mapped at `begin`, and vanish with the device: a fault there puts pages of ones
  /// in their place. `on` false: no longer, for a range that was given before.
  void (*guard_device_memory)(const void* begin, std::size_t bytes, bool on) = nullptr;
};

/// Every text that a user may see is complete: what was asked for, what is wrong, what would be accepted.
class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  /// Checks what can be found out without opening anything (the folder is writable, the interface exists, the kind is
  /// built in). Takes microseconds. False: `problem` says what to change.
  virtual bool check(const PortSpec& spec, std::string& problem) = 0;

  /// Opens the port, which takes milliseconds. It never prints, exits, or blocks on a silent peer. A wire whose other
  /// end is not there yet opens with its link down, and comes up by itself.
  /// Null: `problem` says why. errno is EADDRINUSE where another process has what only one process can have.
  virtual Port* open(const PortSpec& spec, std::string& problem) = 0;

  /// Closes a port that open() returned; frames that are still out stay readable until release_memory().
  virtual void close(Port* port) = 0;

  /// For an interface that is shared with the kernel: decides what becomes of the flows that are steered to `port`, now
  /// or later, if this process ends. The kernel is to leave them to the process of the family that opens the port next.
  /// `handover` may hold something from an earlier owner. Takes milliseconds; must not run beside other calls of the
  /// port.
  /// False: the kernel will refuse these connections after the end, and `problem` says why.
  virtual bool keep_flows(Port* /*port*/, const Handover& /*handover*/, std::string& /*problem*/) { return true; }

  /// Opens an RDMA device's port (NAME[:PORT]) for links to other hosts. A port for frames may be open on the same
  /// device. Takes milliseconds, and blocks on nobody. Null: `problem` says why; most backends have no links.
  virtual fastpath::LinkDevice* open_links(const std::string& device, const fastpath::LinkDeviceSpec& spec,
                                           std::string& problem);
  /// Ends all links of the device at once. Their memory belongs to the caller again.
  virtual void close_links(fastpath::LinkDevice* /*device*/) {}

  /// The first call in a forked child, async-signal-safe: closes the wire descriptors that the child inherited, and
  /// touches nothing else. The child never uses this copy of the plugin again.
  virtual void drop_in_child() = 0;

  /// Whether the library's own descriptors include those that this copy of the plugin has open. A process that closes
  /// all of the library's while the plugin's threads go on calls this with false before, and with true after.
  virtual void protect_descriptors(bool /*on*/) {}
};

inline fastpath::LinkDevice* Backend::open_links(const std::string& /*device*/,
                                                 const fastpath::LinkDeviceSpec& /*spec*/, std::string& problem) {
  problem = "this kind of port makes no links to other hosts";
  return nullptr;
}

/// `Backend* bypass_backend(const Host*)` is the plugin's only symbol. It returns null when the ABI differs.
using BackendEntry = Backend* (*)(const Host* host);
inline constexpr std::string_view kBackendSymbol = "bypass_backend";

}  // namespace bypass
