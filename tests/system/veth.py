"""Existing interfaces: libbypass on one end of a veth pair, the kernel's own TCP on the other. Needs root.
veth.py CASE...   (no name: lists them)"""
import contextlib
import errno
import json
import os
import signal
import subprocess
import time

from agents import Agent
from harness import BUILD, LONG, check, free_port, is_idle, make_file, run_named, sha256
from veth_wire import KERNELS, OURS, Shared, Tap, Veth, ip

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def ends(server_role):
    """The client's role and the server's address."""
    return {"ours": ("kernel", OURS), "kernel": ("ours", KERNELS)}[server_role]


def bypassed(side):
    check("port_unavailable" not in side.why(), "the port did not open: " + side.why())


def transfer(side, server_role, count, timeout=600, **extra):
    """`count` bytes each way, with both ends' digests compared."""
    client_role, address = ends(server_role)
    port = free_port()
    server = side.start_python(server_role, "transfer.py", "serve", address, port, count, until="ready", **extra)
    told = side.python(client_role, "transfer.py", "connect", address, port, count, timeout=timeout, **extra).decode()
    check(side.end(server) == 0, "the server failed")
    told += side.output(server)
    check(told.count(f"{count} ") == 2 and told.count("same") == 2, told)


def both_ways(port, count, **options):
    with Veth(port, **options) as side:
        for server_role in ("ours", "kernel"):
            transfer(side, server_role, count)
        bypassed(side)
        check("faults" not in options or "faulty" in side.output(side.children[0]), "the forwarder did nothing to the frames")


AMOUNT = (2 << 30) if LONG else (200 << 20)
FAULTS = ("1", "2", "11")  # per cent lost, per cent reordered, seed


@case
def af_packet_and_kernel():
    """The default veth: partial checksums and frames of 64 KiB."""
    both_ways("af_packet:veth-a", AMOUNT)


@case
def af_packet_and_kernel_without_offloads():
    both_ways("af_packet:veth-a", AMOUNT, offloads=False)


@case
def af_packet_with_loss_and_reordering():
    both_ways("af_packet:veth-a", AMOUNT // 2, offloads=False, faults=FAULTS)


def redis(side):
    port = free_port()
    side.start("ours", "redis-server", "--bind", OURS, "--protected-mode", "no", "--port", port, "--save", "", "--dir", side.dir,
               until="Ready to accept")
    cli = ["redis-cli", "-h", OURS, "-p", port]
    check(side.run("kernel", *cli, "set", "k", "v").strip() == b"OK", "SET failed")
    big = bytes(range(33, 123)) * 50000
    side.run("kernel", *cli, "-x", "set", "big", stdin=big)
    check(side.run("kernel", *cli, "get", "big").strip() == big, "4.5 MB came back changed")


def curl(side):
    make_file(side.path("large"), 20 << 20)
    port = free_port()
    side.start("ours", "/usr/bin/python3", "-u", "-m", "http.server", port, "--bind", OURS, until="Serving HTTP")
    side.run("kernel", "curl", "-sS", "-o", side.path("got"), f"http://{OURS}:{port}/large")
    check(sha256(side.path("got")) == sha256(side.path("large")), "curl: the file came changed")


def iperf3(side):
    port = free_port()
    server = side.start("ours", "iperf3", "-s", "-B", OURS, "-p", port, "--forceflush")
    for number, extra in enumerate(([], ["-R"], ["-u", "-b", "50M"]), 1):
        side.wait_for(server, f"(test #{number})")  # it makes its listener anew for each client
        report = json.loads(side.run("kernel", "iperf3", "-c", OURS, "-p", port, "-J", "-t", "1", *extra))
        check("error" not in report, f"iperf3: {report.get('error')}")
        end = report["end"]
        check(end.get("sum_received", end.get("sum"))["bytes"] > 1 << 20, "less than 1 MiB in a second")


def programs(port):
    with Veth(port) as side:
        for program in (redis, curl, iperf3):
            program(side)
            bypassed(side)
            for child in side.children:  # the next one takes the address
                side.kill(child)


def read_capture(capture, condition):
    """One line for each frame of ours; tshark verifies the checksums that it is asked about."""
    found = subprocess.run(["tshark", "-r", capture, "-o", "ip.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE", "-o",
                            "udp.check_checksum:TRUE", "-Y", f"ip.src == {OURS} and ({condition})"], capture_output=True, text=True)
    return found.stdout.splitlines()


def frames_on_the_wire(port):
    """Our interface fills checksums and cuts segments in software, so that the peer's end shows what a card would send."""
    with Veth(port) as side:
        side.offloads_off("ours", "veth-a")
        capture = side.path("capture")
        tshark = side.start("kernel", "tshark", "-q", "-i", "veth-b", "-B", "64", "-w", capture, until="Capture started")
        for server_role in ("ours", "kernel"):
            transfer(side, server_role, 2 << 20)
        port_number = free_port()
        side.start_python("ours", "udp_echo.py", "server", OURS, port_number, until="ready")
        side.python("kernel", "udp_echo.py", "client", OURS, port_number, 100)
        side.until(lambda: len(read_capture(capture, "udp")) > 50, "tshark writes what it has captured")
        side.kill(tshark, signal.SIGINT)
        check(len(read_capture(capture, "tcp.len > 0")) > 1000, "the capture has too few segments of ours")
        wrong = read_capture(capture, "_ws.malformed or ip.checksum.status == 0 or tcp.checksum.status == 0 or udp.checksum.status == 0")
        check(not wrong, "wrong frames:\n" + "\n".join(wrong[:20]))


@case
def af_packet_frames_pass_tshark():
    frames_on_the_wire("af_packet:veth-a")


@case
def af_xdp_and_kernel():
    """The peer's frames come with partial checksums, as those of a default veth do."""
    both_ways("af_xdp:veth-a", AMOUNT)


@case
def af_xdp_and_kernel_without_offloads():
    both_ways("af_xdp:veth-a", AMOUNT, offloads=False)


@case
def af_xdp_with_loss_and_reordering():
    both_ways("af_xdp:veth-a", AMOUNT // 2, offloads=False, faults=FAULTS)


@case
def af_xdp_programs():
    programs("af_xdp:veth-a")


@case
def af_xdp_frames_pass_tshark():
    frames_on_the_wire("af_xdp:veth-a")


@case
def af_xdp_leaves_nothing_behind():
    """Also after SIGKILL; and the kernel keeps what is not for us: its own address on the interface answers meanwhile."""
    with Veth("af_xdp:veth-a") as side:
        def interface():
            return ip("-n", side.namespaces["ours"], "link", "show", "dev", "veth-a")
        ip("-n", side.namespaces["ours"], "addr", "add", "10.77.0.9/24", "dev", "veth-a")
        for _ in range(2):
            port = free_port()
            server = side.start_python("ours", "asyncio_echo.py", "server", OURS, port, until="ready")
            side.until(lambda: "xdp" in interface(), "the program is at the interface")
            side.python("kernel", "wait_port.py", OURS, port, 20)
            plain = side.start_python("ours", "asyncio_echo.py", "server", "10.77.0.9", port, until="ready", LD_PRELOAD="")
            side.python("kernel", "wait_port.py", "10.77.0.9", port, 20)
            side.kill(plain)
            bypassed(side)
            side.kill(server, signal.SIGKILL)
            side.until(lambda: "xdp" not in interface(), "the program is gone")


@case
def container_behind_a_bridge():
    """With the one capability that a container has by default."""
    with Veth("af_packet:veth-a", bridge=True) as side:
        for server_role in ("ours", "kernel"):
            transfer(side, server_role, AMOUNT // 4)
        port = free_port()
        side.start("ours", "setpriv", "--bounding-set=-all,+net_raw", "redis-server", "--bind", OURS, "--protected-mode", "no", "--port",
                   port, "--save", "", "--dir", side.dir, until="Ready to accept")
        check(side.run("kernel", "redis-cli", "-h", OURS, "-p", port, "ping").strip() == b"PONG", "no answer")
        bypassed(side)


@case
def datagrams_that_the_sender_joined_arrive_one_by_one():
    for port in ("af_packet:veth-a", "af_xdp:veth-a"):
        with Veth(port) as side:
            number = free_port()
            receiver = side.start_python("ours", "joined_datagrams.py", "receive", OURS, number, 21, until="ready")
            side.python("kernel", "joined_datagrams.py", "send", OURS, number)
            check(side.end(receiver) == 0, "the receiver failed")
            check(side.output(receiver) == "ready\n" + "1000 same\n" * 20 + "500 same\n", side.output(receiver))
            bypassed(side)


@case
def idle_server_uses_no_cpu():
    """Also while the interface is down, which leaves an error at its sockets."""
    for port in ("af_packet:veth-a", "af_xdp:veth-a"):
        with Veth(port) as side:
            number = free_port()
            server = side.start_python("ours", "asyncio_echo.py", "server", OURS, number, until="ready")
            side.python("kernel", "wait_port.py", OURS, number, 20)
            for state in ("up", "down"):
                ip("-n", side.namespaces["ours"], "link", "set", "veth-a", state)
                side.until(lambda: side.stat(server)["ports"][0]["link"] == state, f"the link is {state}")
                side.until(lambda: is_idle(server), f"the server sleeps; {port} {state}")


@case
def a_few_buffers_suffice():
    """The peer's window is larger than all of them together: they run dry, and come back. (AF_XDP takes its least.)"""
    for port in ("af_packet:veth-a", "af_xdp:veth-a"):
        with Veth(port) as side:
            for server_role in ("ours", "kernel"):
                transfer(side, server_role, 20 << 20, BYPASS_PORT_MEMORY="1M")
            bypassed(side)


@case
def another_process_of_the_family_takes_the_interface_over():
    """What forked processes inherited of the port, its owner's death ends; another one opens the port afresh."""
    for port in ("af_packet:veth-a", "af_xdp:veth-a"):
        with Veth(port) as side:
            number = free_port()
            side.start_python("ours", "forked_listener.py", OURS, number, until="ready\n" * 4)
            killed = set()
            for _ in range(3):  # the owner is among them, or the last one left
                process = side.python("kernel", "ask_number.py", OURS, number).decode().strip()
                check(process not in killed, f"{process} answers after it was killed")
                killed.add(process)
                os.kill(int(process), signal.SIGKILL)
            side.python("kernel", "ask_number.py", OURS, number)
            bypassed(side)


@case
def wire_that_nobody_left_may_open_is_said_to_be_lost():
    with Veth("af_packet:veth-a") as side:
        number = free_port()
        parent = side.start_python("ours", "unprivileged_child.py", OURS, number, until="ready")
        check(side.python("kernel", "ask_number.py", OURS, number).strip() == str(parent.pid).encode(), "the parent does not answer")
        side.wait_for(parent, "child")
        os.kill(parent.pid, signal.SIGKILL)
        lost = "the process that had the wire has ended, and this one cannot open it"
        side.until(lambda: lost in side.output(parent), "the child says so")
        check(side.output(parent).count(lost) == 1 and "CAP_NET_RAW" in side.output(parent), side.output(parent))


@case
def tap_and_kernel():
    with Tap() as side:
        for server_role in ("ours", "kernel"):
            transfer(side, server_role, AMOUNT // 4)
        redis(side)
        bypassed(side)


@case
def netdev_takes_the_interface():
    with Veth("netdev:veth-a") as side:
        redis(side)
        bypassed(side)


@case
def address_that_the_kernel_has_is_refused():
    """Both would answer, the kernel with resets; the program runs on the kernel's sockets, and says why."""
    with Veth("af_packet:veth-a") as side:
        side.run("ours", "ip", "addr", "add", f"{OURS}/24", "dev", "veth-a", LD_PRELOAD="")
        port = free_port()
        side.start("ours", "redis-server", "--bind", OURS, "--protected-mode", "no", "--port", port, "--save", "", "--dir", side.dir,
                   until="Ready to accept")
        check("both would answer" in side.why(), side.why())
        check(side.run("kernel", "redis-cli", "-h", OURS, "-p", port, "ping").strip() == b"PONG", "the kernel's socket does not answer")


@case
def address_that_another_process_has_is_in_use():
    """Both would answer, and each reset the other's connections. The second one hears what the kernel's bind() would say,
    without a frame of its own; when the first one is dead the address is free."""
    for port in ("af_packet:veth-a", "af_xdp:veth-a"):
        with Veth(port) as side:
            number, other = free_port(), free_port()
            first = side.start("ours", "redis-server", "--bind", OURS, "--protected-mode", "no", "--port", number, "--save", "", "--dir",
                               side.dir, until="Ready to accept")
            cli = ["redis-cli", "-h", OURS, "-p", number, "ping"]
            check(side.run("kernel", *cli).strip() == b"PONG", "no answer at first")
            second = side.start_python("ours", "bind_listen.py", OURS, number, other, other)
            check(side.end(second) == 0, side.output(second))
            check(f"another process (pid {first.pid}) has the address {OURS}" in side.output(second), side.output(second))
            check([line for line in side.output(second).splitlines() if "bypass[" not in line] == ["EADDRINUSE"] * 3, side.output(second))
            check(side.run("kernel", *cli).strip() == b"PONG", "no answer any more")
            side.kill(first, signal.SIGKILL)
            check(side.python("ours", "bind_listen.py", OURS, number, other).split() == [b"listens"] * 2, "the address is not free")


@case
def interface_goes_down_and_comes_back():
    """What is sent meanwhile is lost, as with a cable; the connection lives on. Then the interface is removed and made
    again, with another index."""
    with Veth("af_packet:veth-a") as side:
        port = free_port()
        server = side.start("ours", "redis-server", "--bind", OURS, "--protected-mode", "no", "--port", port, "--save", "", "--dir",
                            side.dir, until="Ready to accept")
        cli = ["redis-cli", "-h", OURS, "-p", port, "ping"]
        check(side.run("kernel", *cli).strip() == b"PONG", "no answer at first")
        here = side.namespaces["ours"]
        ip("-n", here, "link", "set", "veth-a", "down")
        side.until(lambda: side.stat(server)["ports"][0]["link"] == "down", "the link is down")
        ip("-n", here, "link", "set", "veth-a", "up")
        check(side.run("kernel", *cli).strip() == b"PONG", "no answer after the interface was down")
        ip("-n", here, "link", "del", "veth-a")
        side.until(lambda: side.stat(server)["ports"][0]["link"] == "down", "the link is down again")
        side.pair("ours", "veth-a", "kernel", "veth-b")
        ip("-n", side.namespaces["kernel"], "addr", "add", f"{KERNELS}/24", "dev", "veth-b")
        check(side.run("kernel", *cli).strip() == b"PONG", "no answer over the new interface")


def redis_at(side, role, port, **extra):
    address = side.address_of(role)
    return side.start(role, "redis-server", "--bind", address, "--protected-mode", "no", "--port", port, "--save", "", "--dir", side.dir,
                      until="Ready to accept", **extra)


def ask_redis(side, role, address, port, **options):
    return side.run(role, "redis-cli", "-h", address, "-p", port, "ping", **options).strip()


def wire_connections(side, server):
    return side.stat(server)["counters"].get("tcp_passive_opens", 0)


def wait_until_steered(side, server, port):
    """Until the server's port is open the kernel has its connections. Returns how many came over the wire meanwhile."""
    side.until(lambda: ask_redis(side, "kernel", OURS, port) == b"PONG" and wire_connections(side, server), "connections are steered")
    side.until(lambda: is_idle(server), "the last of them are counted")
    return wire_connections(side, server)


def beside_the_kernel(wire):
    """Our programs and the kernel's at one interface and one address, at the same time; and the address is the kernel's
    alone again when ours is killed."""
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
        side.until(lambda: wire_connections(side, server) - before == 3, "three connections have come over the wire")
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
    """A connection that the kernel has had at a port goes on when the port becomes ours."""
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
    """Many bytes each way, from either end, with the kernel's own beside them."""
    with Shared() as side:
        beside = free_port()
        server = side.start_python("beside", "transfer.py", "serve", OURS, beside, AMOUNT, until="ready")
        client = side.start_python("kernel", "transfer.py", "connect", OURS, beside, AMOUNT)
        for role in ("ours", "kernel"):
            transfer(side, role, AMOUNT)
        check(side.end(client) == 0 and side.end(server) == 0, "the kernel's transfer failed")


@case
def shared_number_of_a_process_without_the_port():
    """The kernel gets the number of a closed connection back when nothing is left of it, also from a process that does not
    own the port and does nothing more."""
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


@case
def shared_refused_peers_and_unreachable_ones():
    """What the kernel's own sockets are told: a port that nobody listens at, by TCP and by ICMP; an address that nobody
    has."""
    program = ("import socket, sys\n"
               "for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):\n"
               "    s = socket.socket(socket.AF_INET, kind)\n"
               "    s.settimeout(6)\n"
               "    try:\n"
               "        s.connect((sys.argv[1], int(sys.argv[2])))\n"
               "        s.send(b'x')\n"
               "        s.recv(1)\n"
               "    except OSError as problem: print(problem.errno)\n")
    with Shared() as side:
        port = free_port()
        for address in (KERNELS, "10.77.0.77"):
            said = [side.run(role, "/usr/bin/python3", "-c", program, address, port, timeout=60) for role in ("ours", "beside")]
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
    """An agent under libbypass, one on the kernel's sockets at the same interface, which are told the same, and one at
    the other end, where port 7000 is listened at. What the kernel's own is answered is what ours has to be."""

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
        """One source for both, or one for each."""
        said = [agent(source) for agent, source in zip((self.ours, self.beside), sources * (3 - len(sources)))]
        check(said[0] == said[1], f"{sources}: ours {said[0]}, the kernel's {said[1]}")
        return said[0]

    def until_both(self, source, wanted):
        """The kernel's at once, ours when it has heard."""
        said = self.beside(source)
        check(said == wanted, f"{source}: the kernel's is {said}")
        self.until(lambda: self.ours(source) == wanted, f"{source}: ours is {wanted}")

    def counted(self, name):
        return self.stat(self.ours.child)["counters"].get(name, 0)

    def connects(self, address, source):
        """To the other end's listener, from this address of ours. Before our stack has heard, the kernel does it."""
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
        """Connections from the other end, `name` at all three."""
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
                check(other(f"take({its}, 1 << 20) == pattern(0, 1 << 20)") is True, f"{mine}: other bytes")
                one.end()


def netlink_drops(child):
    """Messages that the program's netlink sockets had no room for."""
    inodes = set()
    for fd in os.listdir(f"/proc/{child.pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            inodes.add(os.readlink(f"/proc/{child.pid}/fd/{fd}")[8:-1])
    lines = [line.split() for line in open(f"/proc/{child.pid}/net/netlink").readlines()]
    drops, inode = lines[0].index("Drops"), lines[0].index("Inode")
    return sum(int(fields[drops]) for fields in lines[1:] if fields[inode] in inodes)


def follows_the_kernel(wire):
    """Addresses, routes and the MTU change under programs that run: what is new is used, what has gone is not, and a
    connection whose address has gone is silent until it is back. Then more changes at once than can be told."""
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
def shared_changes_are_followed_in_families():
    """By the process that has the port for another one's listener, and, with a smaller MTU that the first has not heard of,
    by the one that takes the port over."""
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
            """Over the wire: `by` has the port, and shows the family's counters."""
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
