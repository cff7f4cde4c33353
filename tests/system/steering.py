"""Software RDMA devices on interfaces that the kernel keeps: a veth pair with the kernel's addresses at both ends, programs
on soft0 and on the kernel's sockets side by side. Needs root.
steering.py CASE...   (no name: lists them)"""
import os
import re
import signal

from harness import BUILD, PERFTEST, check, free_port, is_idle, run_named
from veth_wire import KERNELS, OURS, Namespaces, ip

CASES = {}
PRELOAD = os.path.join(BUILD, "libbypass-softverbs.so")
ECHO = os.path.join(BUILD, "bin", "steered_echo")
WIRES = ("af_packet", "af_xdp")


def case(function):
    CASES[function.__name__] = function
    return function


class Shared(Namespaces):
    """`server` and `client` have soft0 on the interfaces that the roles `here` and `there` use by the kernel's sockets."""
    ADDRESSES = {"ours": OURS, "peer": KERNELS}
    PLACES = {"server": "ours", "here": "ours", "client": "peer", "there": "peer"}

    def __init__(self, kind="af_packet"):
        self.kind = kind
        super().__init__("none", ["ours", "peer"])

    def place(self, role):
        return self.PLACES[role]

    def is_ours(self, role):
        return role in ("server", "client")

    def address_of(self, role):
        return self.ADDRESSES[self.place(role)]

    def build(self):
        for name in self.namespaces.values():  # without detection of duplicate addresses, which takes time
            self.run_in(name, "sysctl", "-qw", "net.ipv6.conf.default.accept_dad=0")
        self.pair("ours", "veth-a", "peer", "veth-b")
        for number, (name, interface) in enumerate((("ours", "veth-a"), ("peer", "veth-b")), 1):
            ip("-n", self.namespaces[name], "addr", "add", f"{self.ADDRESSES[name]}/24", "dev", interface)
            ip("-n", self.namespaces[name], "addr", "add", f"fd77::{number}/64", "dev", interface, "nodad")

    def run_in(self, namespace, *command):
        ip("netns", "exec", namespace, *command)

    def environment(self, role, **extra):
        env = super().environment(role)
        if self.is_ours(role):
            for name in ("BYPASS_PORT", "BYPASS_ADDR"):
                del env[name]
            interface = {"ours": "veth-a", "peer": "veth-b"}[self.place(role)]
            env.update(BYPASS_SOFT=f"{self.kind}:{interface}", LD_PRELOAD=PRELOAD)
        env.update(extra)
        return env

    def listens(self, child, port):
        """Whether a process listens at the TCP port, where the child runs."""
        tables = (f"/proc/{child.pid}/net/{name}" for name in ("tcp", "tcp6"))
        lines = [line.split() for table in tables for line in open(table).readlines()[1:]]
        return any(fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port for fields in lines)

    def mac(self, name, interface):
        return re.search(r"link/ether (\S+)", ip("-n", self.namespaces[name], "link", "show", "dev", interface)).group(1)

    def counted(self, role, group, name):
        """A counter of the kernel's stack: ("Icmp", "OutDestUnreachs")."""
        rows = [line.split() for line in self.run(role, "cat", "/proc/self/net/snmp").decode().splitlines() if line.startswith(group + ":")]
        return int(rows[1][rows[0].index(name)])

    def programs(self):
        """The programs at our interface: TCX programs, and whether there is an XDP program."""
        tcx = int(self.python("here", "interface_programs.py", "veth-a").split()[1])
        return tcx, "xdp" in ip("-n", self.namespaces["ours"], "link", "show", "dev", "veth-a")

    def echo(self, port, address=OURS, *more, **extra):
        return self.start("server", ECHO, "udp", address, port, *more, until="ready", **extra)

    def is_echoed(self, port):
        """Whether the peer's kernel sockets get an echo."""
        return b"wrong 0" in self.python("there", "udp_bounce.py", OURS, port, 20)


def pair(side, *command, timeout=60, **of_client):
    """Runs a verbs program of two ends to its end. Returns the client's output."""
    port = free_port()
    command = [*command, "-p", port]
    server = side.start("server", *command)
    side.until(lambda: server.poll() is not None or side.listens(server, port), f"{command[0]} listens")
    said = side.run("client", *command, OURS, timeout=timeout, **of_client).decode()
    check(side.end(server, timeout) == 0, f"{command}: the server failed")
    return said


class KernelTraffic:
    """While the object lives, the kernel has traffic of its own on the same interfaces and addresses: a ping, a bulk
    transfer in each direction, datagrams. The end is awaited, and everything must have come."""

    def __init__(self, side):
        self.side = side

    def __enter__(self):
        side, self.port, udp = self.side, free_port(), free_port()
        self.ping = side.start("there", "ping", "-q", "-i", "0.01", "-c", 100, OURS)
        self.server = side.start_python("here", "transfer.py", "serve", OURS, self.port, 64 << 20, until="ready")
        self.client = side.start_python("there", "transfer.py", "connect", OURS, self.port, 64 << 20)
        side.start_python("here", "udp_echo.py", "server", OURS, udp, until="ready")
        self.datagrams = side.start_python("there", "udp_echo.py", "client", OURS, udp, 100)
        return self

    def __exit__(self, kind, *rest):
        if kind is not None:
            return
        for child in (self.ping, self.server, self.client, self.datagrams):
            check(self.side.end(child, 60) == 0, f"{child.args}: {self.side.output(child)}")
        check(" 0% packet loss" in self.side.output(self.ping), self.side.output(self.ping))
        told = self.side.output(self.server) + self.side.output(self.client)
        check(told.count("same") == 2, told)
        check("wrong 0" in self.side.output(self.datagrams), self.side.output(self.datagrams))


@case
def queue_pairs_beside_the_kernel():
    """RC with the data checked, over IPv4 and IPv6, and writes, while the kernel's own traffic goes on at the same
    addresses. The kernel sees none of the RoCE packets, so it refuses none."""
    for kind in WIRES:
        with Shared(kind) as side:
            with KernelTraffic(side):
                for gid in (0, 1, 2):
                    check("1000 iters in" in pair(side, "ibv_rc_pingpong", "-g", gid, "-n", 1000, "-c"), f"GID {gid}")
                check("invalid data" not in pair(side, "ibv_ud_pingpong", "-g", 1, "-n", 500, "-s", 1000), "UD")
                for program in ("ib_write_bw", "ib_read_bw", "ib_send_lat"):
                    said = pair(side, program, *PERFTEST, "-n", 500)
                    check(re.search(r"^ \d+ +500 ", said, re.M), said)
            for role in ("here", "there"):
                check(side.counted(role, "Icmp", "OutDestUnreachs") == 0, f"{kind}: {role}: RoCE packets met the kernel")


@case
def device_says_whose_interface_it_is_on():
    """The device reports the interface's addresses, index and MTU."""
    for kind in (*WIRES, "netdev"):
        with Shared(kind) as side:
            index = ip("-n", side.namespaces["ours"], "link", "show", "dev", "veth-a").split(":")[0]
            link_local = re.search(r"inet6 (fe80::\S+)/", ip("-n", side.namespaces["ours"], "addr", "show", "dev", "veth-a")).group(1)
            said = side.run("server", ECHO, "gids").decode()
            check(said == f"0 {link_local} {index}\n1 ::ffff:{OURS} {index}\n2 fd77::1 {index}\n", said)
            check("active_mtu:\t\t1024" in side.run("server", "ibv_devinfo").decode(), "the MTU is not the interface's")
            ip("-n", side.namespaces["ours"], "addr", "add", "10.78.0.1/24", "dev", "veth-a")
            chosen = side.run("server", ECHO, "gids", BYPASS_SOFT_ADDR="10.78.0.1/24").decode()
            check(chosen == f"0 {link_local} {index}\n1 ::ffff:10.78.0.1 {index}\n", chosen)
            said = side.run("server", ECHO, "gids", BYPASS_SOFT_ADDR="10.77.0.9/24").decode()
            check("::ffff:10.77.0.9 0\n" in said, "an address of its own: " + said)


@case
def peer_with_an_address_of_its_own():
    """The peer's device answers for that address itself, at a MAC address of its own beside the kernel's."""
    for kind in WIRES:
        with Shared(kind) as side:
            said = pair(side, "ibv_rc_pingpong", "-g", 1, "-c", BYPASS_SOFT_ADDR="10.77.0.9/24")
            check("GID ::ffff:10.77.0.9" in said and "1000 iters" in said, said)


@case
def interface_goes_down_and_changes():
    """The port's state is that of the interface. An interface with another MAC address is another interface."""
    for kind in WIRES:
        with Shared(kind) as side:
            watch = side.start("server", "stdbuf", "-oL", "ibv_asyncwatch", "-d", "soft0", until="async event")
            for number, (change, event) in enumerate(((["down"], "PORT_ERR"), (["up"], "PORT_ACTIVE"),
                                                      (["address", "02:00:00:00:00:07"], "PORT_ERR"))):
                ip("-n", side.namespaces["ours"], "link", "set", "veth-a", *change)
                side.until(lambda: side.output(watch).count(event) == 1 + number // 2, f"{change}: {event}")
                if change == ["down"]:  # which leaves an error at its sockets
                    side.until(lambda: is_idle(watch), "the device sleeps")


@case
def flow_of_a_rule_is_its_alone():
    """The queue pair echoes the datagrams to its port, and the kernel refuses none of them. Other ports, and TCP at the
    same number, are the kernel's. After SIGKILL nothing is left, and the port is the kernel's."""
    for kind in WIRES:
        with Shared(kind) as side:
            check(side.programs() == (0, False), "a program is there from the start")
            for address in (OURS, "any"):
                port, other = free_port(), free_port()
                echo = side.echo(port, address)
                check(side.programs() == ((1, False) if kind == "af_packet" else (0, True)), side.programs())
                plain = [side.start_python("here", "udp_echo.py", "server", OURS, other, until="ready"),
                         side.start_python("here", "asyncio_echo.py", "server", OURS, port, until="ready")]
                before = side.counted("here", "Icmp", "OutDestUnreachs")
                check(side.is_echoed(port) and side.is_echoed(other), "echoes")
                side.python("there", "wait_port.py", OURS, port, 20)
                check(side.counted("here", "Icmp", "OutDestUnreachs") == before, "the kernel has seen the datagrams")
                side.kill(echo, signal.SIGKILL)
                check(side.programs() == (0, False), "a program is left after SIGKILL")
                side.python("there", "udp_bounce.py", OURS, port, 1, expect=1)
                check(side.counted("here", "Icmp", "OutDestUnreachs") > before, "the port is not the kernel's again")
                for child in plain:
                    side.kill(child)


@case
def forked_child_holds_nothing():
    for kind in WIRES:
        with Shared(kind) as side:
            echo = side.echo(free_port(), OURS, "fork")
            os.kill(echo.pid, signal.SIGKILL)
            echo.wait()
            check(len(side.inhabitants()) == 1, "the child does not live")
            check(side.programs() == (0, False), "a program is left while the child lives")


@case
def processes_share_an_interface():
    """Each process has its flows. The same flow is in use until its process is dead. The same holds for RoCE packets, which
    the first process with a queue pair for them gets. With AF_XDP only one process can have an interface."""
    with Shared() as side:
        ports = [free_port(), free_port()]
        first, second = [side.echo(port) for port in ports]
        check(side.programs() == (2, False) and all(map(side.is_echoed, ports)), "both echo")
        third = side.start("server", ECHO, "udp", "any", ports[0])
        check(side.end(third) == 3 and "rule: EADDRINUSE" in side.output(third), side.output(third))
        check(f"(pid {first.pid}) has UDP port {ports[0]} of {OURS} steered to it" in side.output(third), side.output(third))
        port = free_port()
        holder = side.start("server", "ibv_rc_pingpong", "-g", 1, "-p", port)
        side.until(lambda: side.listens(holder, port), "it has its queue pair")
        other = side.start("server", "ibv_rc_pingpong", "-g", 1, "-p", free_port())
        check(side.end(other) != 0 and "has UDP port 4791 of" in side.output(other), side.output(other))
        check(all(map(side.is_echoed, ports)), "both echo still")
        for child in (first, holder):
            side.kill(child, signal.SIGKILL)
        side.echo(ports[0], "any")
        check(all(map(side.is_echoed, ports)), "the dead one's port has been taken over")
        check("1000 iters" in pair(side, "ibv_rc_pingpong", "-g", 1), "RoCE packets are free again")
    with Shared("af_xdp") as side:
        side.echo(free_port())
        late = side.start("server", ECHO, "udp", OURS, free_port())
        check(side.end(late) == 3 and "several processes share one by af_packet" in side.output(late), side.output(late))


# Frames of experimental types (IEEE 802): one in a VLAN, one without.
SEND_FRAMES = """
import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(("veth-b", 0))
to = bytes.fromhex(sys.argv[1].replace(":", ""))
for kind in ("8100000588b6", "88b5"):
    s.send(to + bytes.fromhex("020000000009" + kind) + bytes(60))
"""


@case
def rule_for_the_mac_address_takes_every_frame():
    """The rule takes every frame except ARP and tagged ones. perftest's raw_ethernet_lat asks for that."""
    for kind in WIRES:
        with Shared(kind) as side:
            mac, other = side.mac("ours", "veth-a"), side.mac("peer", "veth-b")
            ping = ["ping", "-q", "-c", 2, "-i", "0.2", "-W", 1, OURS]
            side.run("there", *ping)
            taker = side.start("server", ECHO, "all", until="ready")
            side.run("there", "/usr/bin/python3", "-c", SEND_FRAMES, mac)
            side.wait_for(taker, "frame 88b5")
            check("88b6" not in side.output(taker) and "8100" not in side.output(taker), side.output(taker))
            ip("-n", side.namespaces["peer"], "neigh", "flush", "dev", "veth-b")
            side.run("there", *ping, expect=1)
            side.wait_for(taker, "frame 0800")
            check(mac in ip("-n", side.namespaces["peer"], "neigh", "show", OURS), "the kernel has answered no question")
            side.kill(taker)
            side.run("there", *ping)
            # The kernels would ask again by ARP after 5 s. The rule's queue pair gets a copy, and perftest takes it for its peer's.
            for name, interface, address, lladdr in (("peer", "veth-b", OURS, mac), ("ours", "veth-a", KERNELS, other)):
                ip("-n", side.namespaces[name], "neigh", "replace", address, "lladdr", lladdr, "dev", interface, "nud", "permanent")
            command = ["stdbuf", "-oL", "raw_ethernet_lat", "-d", "soft0", "-F", "-n", 500]
            server = side.start("server", *command, "--server", "-B", mac, "-E", other, until="#bytes")
            said = side.run("client", *command, "--client", "-B", other, "-E", mac).decode()
            check(side.end(server) == 0 and re.search(r"^ 64 +500 ", said, re.M), said)


@case
def what_cannot_be_had_is_said():
    with Shared() as side:
        said = side.run("server", ECHO, "refused").decode()
        check(said == "sniffer: EOPNOTSUPP\nprefix: EOPNOTSUPP\nother MAC: EOPNOTSUPP\n", said)
        bare = side.start("server", "setpriv", "--bounding-set=-all,+net_raw", ECHO, "gids")
        check(side.end(bare) == 3, "it opened without the right to")
        check("CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF, and this process lacks CAP_NET_ADMIN, CAP_BPF" in side.output(bare),
              side.output(bare))
        mixed = side.start("server", ECHO, "gids", BYPASS_SOFT_ADDR=f"{OURS}/24,10.77.0.9/24")
        check(side.end(mixed) == 3 and "accepted are either the kernel's" in side.output(mixed), side.output(mixed))
        moved = side.start("server", ECHO, "gids", BYPASS_MAC="02:00:00:00:00:01")
        check(side.end(moved) == 3 and "leave BYPASS_MAC out" in side.output(moved), side.output(moved))


run_named(CASES, "passed")
