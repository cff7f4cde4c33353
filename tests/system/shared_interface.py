"""An existing interface whose addresses libbypass shares with the kernel: what is steered to it, what stays the kernel's,
and how it follows what the kernel changes. Needs root.   shared_interface.py CASE...   (no name: lists them)"""
import contextlib
import errno
import json
import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor

from agents import Agent
from harness import BUILD, check, free_port, run_named
from veth_wire import AMOUNT, KERNELS, OURS, Shared, ip, transfer

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def redis_at(side, role, port, **extra):
    address = side.address_of(role)
    return side.start(role, "redis-server", "--bind", address, "--protected-mode", "no", "--port", port, "--save", "", "--dir", side.dir,
                      until="Ready to accept", **extra)


def ask_redis(side, role, address, port, **options):
    return side.run(role, "redis-cli", "-h", address, "-p", port, "ping", **options).strip()


def wire_connections(side, server):
    return side.stat(server)["counters"].get("tcp_passive_opens", 0)


def wait_until_steered(side, server, port):
    """Waits until the server's port is open. Before that the kernel has its connections. Returns how many came over the
    wire meanwhile. Each is waited for before the next is made, since they are counted a moment later."""
    def comes_over_the_wire():
        before = wire_connections(side, server)
        return (ask_redis(side, "kernel", OURS, port) == b"PONG"
                and side.soon(lambda: wire_connections(side, server) > before, 2))
    side.until(comes_over_the_wire, "connections are steered")
    return wire_connections(side, server)


def beside_the_kernel(wire):
    """Our programs and the kernel's use one interface and one address at the same time. When ours is killed, the kernel has
    the whole address again."""
    with Shared(wire) as side:
        ours, kernels, far = free_port(), free_port(), free_port()
        # An address that does not tell the interface's MAC address.
        side.run("beside", "sh", "-c", "echo 3 >/proc/sys/net/ipv6/conf/veth-a/addr_gen_mode; ip link set veth-a down; ip link set veth-a up")
        server = redis_at(side, "ours", ours, BYPASS_PORT="auto")
        before = wait_until_steered(side, server, ours)
        redis_at(side, "beside", kernels)
        redis_at(side, "kernel", far)
        udp = free_port()
        side.start_python("beside", "udp_echo.py", "server", OURS, udp, until="ready")
        for _ in range(3):
            check(ask_redis(side, "kernel", OURS, ours) == b"PONG", "ours does not answer")
            check(ask_redis(side, "kernel", OURS, kernels) == b"PONG", "the kernel's service does not answer")
            side.python("kernel", "udp_echo.py", "client", OURS, udp, 100)
            side.run("kernel", "ping", "-c", "1", "-W", "5", OURS)
            for role in ("ours", "beside"):
                check(ask_redis(side, role, KERNELS, far) == b"PONG", f"{role}: no connection to the other end")
        check(ask_redis(side, "beside", OURS, ours) == b"PONG", "this machine's own kernel does not reach our listener")
        side.until(lambda: wire_connections(side, server) - before >= 3, "three connections have come over the wire")
        side.kill(server, signal.SIGKILL)
        refused = ask_redis(side, "kernel", OURS, ours, expect=1)
        check(b"" == refused, f"somebody answers: {refused}")
        redis_at(side, "beside", ours)
        check(ask_redis(side, "kernel", OURS, ours) == b"PONG", "the port is not the kernel's again")


@case
def shared_with_the_kernel_af_packet():
    beside_the_kernel("af_packet")


@case
def shared_with_the_kernel_af_xdp():
    beside_the_kernel("af_xdp")


def older_connection(wire):
    """The kernel has a connection at a port before the port becomes ours. That connection goes on."""
    server = ("import socket, sys\n"
              "s = socket.create_server((sys.argv[1], int(sys.argv[2])))\n"
              "print('ready', flush=True)\n"
              "c, _ = s.accept()\n"
              "s.close()\n"
              "print('accepted', flush=True)\n"
              "while data := c.recv(4096): c.sendall(data)\n")
    client = ("import os, socket, sys, time\n"
              "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
              "s.settimeout(20)\n"
              "while not os.path.exists(sys.argv[3]):\n"
              "    s.sendall(b'x' * 1000)\n"
              "    left = 1000\n"
              "    while left: left -= len(s.recv(left)) or sys.exit('the connection has ended')\n"
              "    time.sleep(0.01)\n"
              "s.close()\n")
    with Shared(wire) as side:
        port, stop = free_port(), side.path("stop")
        old = side.start("beside", "/usr/bin/python3", "-c", server, OURS, port, until="ready")
        peer = side.start("kernel", "/usr/bin/python3", "-c", client, OURS, port, stop)
        side.wait_for(old, "accepted")
        ours = redis_at(side, "ours", port)
        wait_until_steered(side, ours, port)
        for _ in range(3):
            check(ask_redis(side, "kernel", OURS, port) == b"PONG", "ours does not answer")
        check(peer.poll() is None, "the older connection has ended: " + side.output(peer))
        open(stop, "w").close()
        check(side.end(peer) == 0 and side.end(old) == 0, "the older connection broke: " + side.output(peer))


@case
def shared_port_with_an_older_connection_af_packet():
    older_connection("af_packet")


@case
def shared_port_with_an_older_connection_af_xdp():
    older_connection("af_xdp")


@case
def shared_transfers():
    """Many bytes in each direction, from either end, beside the kernel's own traffic."""
    with Shared() as side:
        beside = free_port()
        server = side.start_python("beside", "transfer.py", "serve", OURS, beside, AMOUNT, until="ready")
        client = side.start_python("kernel", "transfer.py", "connect", OURS, beside, AMOUNT)
        for role in ("ours", "kernel"):
            transfer(side, role, AMOUNT)
        check(side.end(client) == 0 and side.end(server) == 0, "the kernel's transfer failed")


@case
def shared_number_of_a_process_without_the_port():
    """A process without the port closes a connection. The kernel gets the TCP port back when nothing of the connection is
    left, although the process does nothing more."""
    program = ("import os, signal, socket, sys\n"
               "server = (sys.argv[1], int(sys.argv[2]))\n"
               "socket.create_connection(server).close()\n"
               "if os.fork() == 0:\n"
               "    s = socket.create_connection(server)\n"
               "    number = s.getsockname()[1]\n"
               "    s.close()\n"
               "    print('number', number, 'closed', flush=True)\n"
               "signal.pause()\n")
    bind = ("import socket, sys\n"
            "try: socket.socket().bind((sys.argv[1], int(sys.argv[2])))\n"
            "except OSError as problem: print(problem.errno)\n")
    server = ("import socket, sys\n"
              "s = socket.create_server((sys.argv[1], int(sys.argv[2])))\n"
              "print('ready', flush=True)\n"
              "while True: s.accept()[0].recv(1)\n")
    with Shared() as side:
        port = free_port()
        side.start("kernel", "/usr/bin/python3", "-c", server, KERNELS, port, until="ready")
        child = side.start("ours", "/usr/bin/python3", "-c", program, KERNELS, port, until="closed", BYPASS_TCP_TIME_WAIT_MS="6000")
        number = side.output(child).split()[1]
        said = lambda: side.run("beside", "/usr/bin/python3", "-c", bind, OURS, number).strip()
        check(said() == str(errno.EADDRINUSE).encode(), "the kernel gives the number to somebody else")
        side.until(lambda: said() == b"", "the kernel has the number again")
        reasons = side.run("ours", os.path.join(BUILD, "bypass"), "why", LD_PRELOAD="").decode()
        check("unguarded" in reasons, f"the child's connections are no part of what its parent's end leaves alone: {reasons}")


@case
def shared_listener_of_a_process_without_the_port():
    """The listener's flow is ours when listen() returns, and the kernel's when close() returns, although the process that
    has the port sleeps."""
    program = ("import os, signal, socket, sys\n"
               "kept = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
               "if os.fork() == 0:\n"
               "    l = socket.create_server(('0.0.0.0', int(sys.argv[3])))\n"
               "    print('listens', flush=True)\n"
               "    with l.accept()[0] as c: c.sendall(b'ours')\n"
               "    l.close()\n"
               "    print('closed', flush=True)\n"
               "signal.pause()\n")
    server = ("import socket, sys\n"
              "l = socket.create_server((sys.argv[1], int(sys.argv[2])))\n"
              "print('ready', flush=True)\n"
              "while True:\n"
              "    with l.accept()[0] as c: c.sendall(b'kernel')\n")
    client = ("import socket, sys\n"
              "s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 20)\n"
              "print(s.recv(100).decode())\n")
    with Shared() as side:
        far, port = free_port(), free_port()
        side.start("kernel", "/usr/bin/python3", "-c", server, KERNELS, far, until="ready")
        parent = side.start("ours", "/usr/bin/python3", "-c", program, KERNELS, far, port, until="listens")
        ask = lambda: side.run("kernel", "/usr/bin/python3", "-c", client, OURS, port).strip()
        check(ask() == b"ours", "the child does not answer")
        side.wait_for(parent, "closed")
        side.start("beside", "/usr/bin/python3", "-c", server, OURS, port, until="ready")
        check(ask() == b"kernel", "the kernel's server does not answer")
        side.until(lambda: wire_connections(side, parent) == 1, "the child's connection came over the wire, and no other")


@case
def shared_refused_peers_and_unreachable_ones():
    """The errors are those of the kernel's own sockets: for a port where nobody listens, by TCP and by ICMP, and for an
    address that no host has."""
    program = ("import socket, sys\n"
               "for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):\n"
               "    s = socket.socket(socket.AF_INET, kind)\n"
               "    s.settimeout(6)\n"
               "    try:\n"
               "        s.connect((sys.argv[1], int(sys.argv[2])))\n"
               "        s.send(b'x')\n"
               "        s.recv(1)\n"
               "    except OSError as problem: print(problem.errno)\n")
    with Shared() as side, ThreadPoolExecutor() as all_at_once:  # giving an address up takes seconds
        port = free_port()
        asked = {address: [all_at_once.submit(side.run, role, "/usr/bin/python3", "-c", program, address, port)
                           for role in ("ours", "beside")] for address in (KERNELS, "10.77.0.77")}
        for address, answers in asked.items():
            said = [answer.result() for answer in answers]
            check(said[0] == said[1], f"{address}: {said}")


NEW_OURS, NEW_KERNELS, BEYOND = "10.78.0.1", "10.78.0.2", "10.79.0.5"
TOLD = """
def connect(address):
    global c
    c = bounded(socket.create_connection((address, 7000)))
    return c.getsockname()[0]

def listen(address, port):
    global l
    l = socket.create_server((address, port))

def accept():
    return bounded(l.accept()[0])

def bound(kind, address):
    s = bounded(socket.socket(socket.AF_INET, kind))
    s.bind((address, 0))
    return s

def segment():
    a.sendall(b"x")
    return a.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)

def path_mtu(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect((address, 7000))
        return s.getsockopt(socket.IPPROTO_IP, 14)
"""


class Followed(Shared):
    """An agent under libbypass and one on the kernel's sockets, on the same interface, get the same commands. A third agent
    at the other end listens at port 7000. The kernel's agent gives the result that ours must give."""

    def __enter__(self):
        super().__enter__()
        self.ours, self.beside, self.far = agents = [Agent(self, role, self.inside(role)) for role in ("ours", "beside", "kernel")]
        for agent in agents:
            agent(TOLD)
        self.far("server = socket.create_server(('0.0.0.0', 7000))")
        return self

    def change(self, name, *words):
        ip("-n", self.namespaces[name], *words)

    def both(self, *sources):
        """Runs one source on both, or one source on each."""
        said = [agent(source) for agent, source in zip((self.ours, self.beside), sources * (3 - len(sources)))]
        check(said[0] == said[1], f"{sources}: ours {said[0]}, the kernel's {said[1]}")
        return said[0]

    def until_both(self, source, wanted):
        """The kernel's agent must have the result at once, and ours when it has heard of the change."""
        said = self.beside(source)
        check(said == wanted, f"{source}: the kernel's is {said}")
        self.until(lambda: self.ours(source) == wanted, f"{source}: ours is {wanted}")

    def counted(self, name):
        return self.stat(self.ours.child)["counters"].get(name, 0)

    def connects(self, address, source):
        """Connects to the other end's listener from this address of ours. Until our stack has heard of the address, the
        kernel connects."""
        def over_the_wire():
            before = self.counted("tcp_active_opens")
            said = self.ours(f"connect('{address}')")
            check(said in (source, "ENETUNREACH"), f"to {address}: {said}")
            published = time.monotonic() + 0.5
            while self.counted("tcp_active_opens") == before and time.monotonic() < published:
                time.sleep(0.01)
            return self.counted("tcp_active_opens") > before
        self.until(over_the_wire, f"a connection to {address} by our stack")
        check(self.both(f"connect('{address}')") == source, f"{address}: from {source}")

    def accepted(self, address, port, name):
        """Makes connections from the other end, called `name` by all three agents."""
        self.both(f"listen('{address}', {port})", f"listen('{address}', {port + 1})")
        before = self.counted("tcp_passive_opens")
        self.far(f"{name} = [bounded(socket.create_connection(('{address}', port))) for port in ({port}, {port + 1})]")
        self.both(f"{name} = accept()")
        self.until(lambda: self.counted("tcp_passive_opens") > before, f"our stack serves {address}")

    def transfer(self, name):
        """A megabyte each way."""
        for i, near in enumerate((self.ours, self.beside)):
            for one, mine, other, its in ((near, name, self.far, f"{name}[{i}]"), (self.far, f"{name}[{i}]", near, name)):
                one.begin(f"{mine}.sendall(pattern(0, 1 << 20))")
                same = other(f"take({its}, 1 << 20) == pattern(0, 1 << 20)")
                who = ("ours", "the kernel's")[i]
                check(same is True, f"{who}, {'from' if one is near else 'to'} {name}: other bytes: {same}")
                one.end()


def netlink_drops(child):
    """How many messages the program's netlink sockets had no room for."""
    inodes = set()
    for fd in os.listdir(f"/proc/{child.pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            inodes.add(os.readlink(f"/proc/{child.pid}/fd/{fd}")[8:-1])
    lines = [line.split() for line in open(f"/proc/{child.pid}/net/netlink").readlines()]
    drops, inode = lines[0].index("Drops"), lines[0].index("Inode")
    return sum(int(fields[drops]) for fields in lines[1:] if fields[inode] in inodes)


def follows_the_kernel(wire):
    """Addresses, routes and the MTU change under running programs. What is new is used, and what has gone is not. A
    connection whose address has gone is silent until the address is back. Then more changes come at once than netlink can
    report."""
    with Followed(wire) as side:
        side.connects(KERNELS, OURS)
        side.accepted(OURS, 7001, "a")

        check(side.both(f"connect('{NEW_KERNELS}')") == "ENETUNREACH", "it is there from the start")
        side.change("kernel", "addr", "add", f"{NEW_KERNELS}/24", "dev", "veth-b")
        side.change("ours", "addr", "add", f"{NEW_OURS}/24", "dev", "veth-a")
        side.connects(NEW_KERNELS, NEW_OURS)
        side.accepted(NEW_OURS, 7003, "b")

        check(side.both(f"connect('{BEYOND}')") == "ENETUNREACH", "there is a route from the start")
        side.change("kernel", "addr", "add", f"{BEYOND}/32", "dev", "lo")
        side.change("ours", "route", "add", "10.79.0.0/24", "via", KERNELS)
        side.connects(BEYOND, OURS)
        side.change("ours", "route", "change", "10.79.0.0/24", "via", NEW_KERNELS)
        side.until_both(f"connect('{BEYOND}')", NEW_OURS)
        side.connects(BEYOND, NEW_OURS)
        side.change("ours", "route", "del", "10.79.0.0/24")
        side.until_both(f"connect('{BEYOND}')", "ENETUNREACH")

        for mtu in (1200, 1500):
            for name, interface in (("kernel", "veth-b"), ("ours", "veth-a")):
                side.change(name, "link", "set", interface, "mtu", mtu)
            side.until_both("segment()", mtu - 52)
            side.until_both(f"path_mtu('{KERNELS}')", mtu)
            side.transfer("b")

        side.both(f"t = bound(socket.SOCK_STREAM, '{NEW_OURS}')")
        side.both(f"u = bound(socket.SOCK_DGRAM, '{NEW_OURS}')")
        side.change("ours", "addr", "del", f"{NEW_OURS}/24", "dev", "veth-a")
        side.until_both(f"connect('{NEW_KERNELS}')", "ENETUNREACH")
        said = side.both(f"listen('{NEW_OURS}', 7005)")
        check(said == "EADDRNOTAVAIL", said)
        for address in (KERNELS, NEW_KERNELS):
            side.both(f"u.sendto(b'x', ('{address}', 7000))")
            side.both(f"t.connect(('{address}', 7000))")
        side.far("[each.sendall(b'there') for each in b]")
        side.both("b.send(b'here')")
        check(side.both("len(select.select([b], [], [], 0.3)[0])") == 0, "it is not silent")
        side.change("ours", "addr", "add", f"{NEW_OURS}/24", "dev", "veth-a")
        check(side.both("take(b, 5)") == "b:there", "what was sent without the address")
        check(side.far("[take(each, 4) for each in b]") == ["b:here", "b:here"], "what was written without the address")
        side.accepted(NEW_OURS, 7007, "b")

        os.kill(side.ours.pid, signal.SIGSTOP)
        with open(side.path("routes"), "w") as batch:
            batch.writelines(f"route add 10.90.{i % 250}.{i // 250}/32 dev lo\n" for i in range(2000))
        side.change("ours", "-batch", side.path("routes"))
        side.change("ours", "route", "add", "10.79.0.0/24", "via", KERNELS)
        os.kill(side.ours.pid, signal.SIGCONT)
        check(netlink_drops(side.ours.child) > 0, "all of it was told")
        side.connects(BEYOND, OURS)


@case
def shared_changes_are_followed_af_packet():
    follows_the_kernel("af_packet")


@case
def shared_changes_are_followed_af_xdp():
    follows_the_kernel("af_xdp")


@case
def shared_datagrams_tell_their_interface():
    """IP_PKTINFO of a datagram that came over the wire names the kernel's interface, as for the kernel's own datagrams."""
    told = ("def told(port):\n"
            "    u = bounded(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))\n"
            "    u.setsockopt(socket.IPPROTO_IP, 8, 1)\n"
            "    u.bind(('0.0.0.0', port))\n"
            "    return u\n"
            "def info():\n"
            "    return [[kind, data.hex()] for _, kind, data in u.recvmsg(100, 100)[1]]\n")
    with Followed() as side:
        side.both(told)
        side.both("u = told(7001)", "u = told(7002)")
        side.far("v = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)")

        def over_the_wire():
            before = side.counted("udp_in")
            side.far(f"[v.sendto(b'x', ('{OURS}', port)) for port in (7001, 7002)]")
            check(len(side.both("info()")) == 1, "nothing is told")
            published = time.monotonic() + 0.5
            while side.counted("udp_in") == before and time.monotonic() < published:
                time.sleep(0.01)
            return side.counted("udp_in") > before
        side.until(over_the_wire, "a datagram comes over the wire")


@case
def shared_neighbour_with_another_mac_address():
    """The other end's MAC address changes under connections. They go on when the kernel knows the new one. It learns that
    from the other end's ARP request."""
    with Followed() as side:
        side.connects(KERNELS, OURS)
        side.accepted(OURS, 7001, "a")
        side.transfer("a")
        for last in ("55", "66"):
            side.change("kernel", "link", "set", "veth-b", "address", f"02:00:00:00:00:{last}")
            side.far.begin("[each.sendall(pattern(0, 1 << 20)) for each in a]")
            check(side.both("take(a, 1 << 20) == pattern(0, 1 << 20)") is True, "other bytes")
            side.far.end()
            side.transfer("a")


@case
def shared_interface_is_made_anew():
    """The interface is deleted and made again with its name, MAC address and IP address, twice. Old connections go on. New
    ones in both directions are our stack's."""
    with Followed() as side:
        side.connects(KERNELS, OURS)
        side.accepted(OURS, 7001, "a")
        side.transfer("a")
        mac = re.search("link/ether (\\S+)", ip("-n", side.namespaces["ours"], "link", "show", "veth-a"))[1]
        for turn in range(2):
            side.change("ours", "link", "del", "veth-a")
            side.until(lambda: [p["link"] for p in side.stat(side.ours.child)["ports"]] == ["down"], "the link is down")
            side.pair("ours", "veth-a", "kernel", "veth-b", mac)  # the first characters of the address, which is looked at when it comes
            # From then on the kernel gets nothing of ours. With an address before that, it resets what the peer sends again.
            side.until(lambda: [p["link"] for p in side.stat(side.ours.child)["ports"]] == ["up"], "the link is up")
            side.change("kernel", "addr", "add", f"{KERNELS}/24", "dev", "veth-b")
            side.change("ours", "addr", "add", f"{OURS}/24", "dev", "veth-a")
            side.transfer("a")
            side.connects(KERNELS, OURS)
            side.accepted(OURS, 7003 + 2 * turn, f"b{turn}")
            side.transfer(f"b{turn}")


@case
def shared_changes_are_followed_in_families():
    """The process that has the port follows changes for another one's listener. The process that takes the port over
    follows a smaller MTU that the first has not heard of."""
    program = ("import os, socket, sys\n"
               "kept = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
               "if os.fork() == 0:\n"
               "    l = socket.create_server(('0.0.0.0', int(sys.argv[3])))\n"
               "    print('child', os.getpid(), 'ready', flush=True)\n"
               "    while True:\n"
               "        with l.accept()[0] as c: c.sendall(bytes(100000))\n"
               "else: os.wait()\n")
    client = ("import socket, sys\n"
              "s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)\n"
              "s.settimeout(20)\n"
              "count = 0\n"
              "while data := s.recv(65536): count += len(data)\n"
              "print(count)\n")
    with Shared() as side:
        far, port = free_port(), free_port()
        side.start("kernel", "/usr/bin/python3", "-c", f"import socket; l = socket.create_server(('{KERNELS}', {far})); print('ready', flush=True); l.accept()[0].recv(1); l.accept()", until="ready")
        parent = side.start("ours", "/usr/bin/python3", "-c", program, KERNELS, far, port, until="ready")
        child = int(side.output(parent).split()[1])

        def served(address, by):
            """Over the wire. `by` has the port, and shows the family's counters."""
            def opens():
                said = side.run("server", os.path.join(BUILD, "bypass"), "stat", "--json", by, LD_PRELOAD="")
                return json.loads(said)["processes"][0]["counters"].get("tcp_passive_opens", 0)

            def comes():
                before = opens()
                said = side.run("kernel", "/usr/bin/python3", "-c", client, address, port, expect=None)
                published = time.monotonic() + 0.5
                while opens() == before and time.monotonic() < published:
                    time.sleep(0.01)
                return said == b"100000\n" and opens() > before
            side.until(comes, f"{address} is served by our stack")

        def add(number):
            for name, interface, host in (("ours", "veth-a", 1), ("kernel", "veth-b", 2)):
                ip("-n", side.namespaces[name], "addr", "add", f"10.{number}.0.{host}/24", "dev", interface)

        add(78)
        served("10.78.0.1", parent.pid)
        os.kill(parent.pid, signal.SIGSTOP)
        add(79)
        for name, interface in (("kernel", "veth-b"), ("ours", "veth-a")):
            ip("-n", side.namespaces[name], "link", "set", interface, "mtu", 1200)
        os.kill(parent.pid, signal.SIGKILL)
        served("10.79.0.1", child)
        add(80)
        served("10.80.0.1", child)


run_named(CASES, "passed")
