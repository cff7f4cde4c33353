"""Existing interfaces: libbypass on one end of a veth pair, the kernel's own TCP on the other. Needs root.
veth.py CASE...   (no name: lists them)"""
import json
import os
import re
import signal
import subprocess

from agents import Agent
from harness import BUILD, check, free_port, is_idle, make_file, run_named, sha256
from veth_wire import AMOUNT, KERNELS, OURS, Tap, Veth, ip, transfer

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def bypassed(side):
    check("port_unavailable" not in side.why(), "the port did not open: " + side.why())


def both_ways(port, count, **options):
    with Veth(port, **options) as side:
        for server_role in ("ours", "kernel"):
            transfer(side, server_role, count)
        bypassed(side)
        check("faults" not in options or "faulty" in side.output(side.children[0]), "the forwarder did nothing to the frames")


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


# struct tcp_info: its length, and by place busy, rwnd limited, sndbuf limited; acked, received; sent, sent again.
INFO = """info = lambda: s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 512)
at = lambda place, how: struct.unpack_from(how, info(), place)
times = lambda: list(at(168, '3Q'))
until = lambda holds: next(x for x in (time.sleep(0.01) or holds() for _ in range(2000)) if x)
total = 0
def fill():
    global total
    s.setblocking(False)
    try:
        while True: total += s.send(bytes(65536))
    except BlockingIOError:
        return total
def read(most):
    got = 0
    while got < most: got += len(s.recv(1 << 20))
    return got"""


def held_back(side, writer, reader):
    """The times that a writer sees while its peer does not read, and then reads."""
    here, there = (Agent(side, role, under=side.inside(role)) for role in (writer, reader))
    there(f"l = socket.create_server(({side.address_of(reader)!r}, 0))")
    port = there("l.getsockname()[1]")
    here(f"s = socket.create_connection(({side.address_of(reader)!r}, {port}))")
    there("s = l.accept()[0]")
    for agent in (here, there):
        agent(INFO)
    seen = [here("times()")]
    here("until(lambda: fill() and times()[1] > 0)")  # the program's buffer is full as well, but the peer's window counts
    total = here("total")
    here("t = times()")
    seen.append(here("t[0] >= t[1] + t[2]"))
    there(f"read({total})")
    here("until(lambda: at(24, 'I')[0] == 0 and at(144, 'I')[0] == 0)")  # unacknowledged segments, bytes not sent
    here("t = times(); time.sleep(0.05)")
    seen.append(here("times() == t"))
    acked, sent, again = here("[*at(120, 'Q'), *at(200, '2Q')]")
    seen += [acked - total, sent - again - total, there("at(128, 'Q')[0]") - total]
    return seen + [here("[at(8, 'I')[0] > 0, at(148, 'I')[0] < 2**32 - 1, 0 < at(104, 'Q')[0] < 2**64 - 1, at(112, 'Q')[0]]")]


@case
def tcp_info_says_what_holds_a_writer_back():
    seen = []
    for roles in (("ours", "kernel"), ("kernel", "ours")):
        with Veth("af_packet:veth-a") as side:
            seen.append(held_back(side, *roles))
            bypassed(side)
    check(seen[0] == seen[1], f"ours {seen[0]}, the kernel's {seen[1]}")
    check(seen[1][1:3] == [True, True], f"the kernel's {seen[1]}")


def bound_to_a_device(side, binder, other, device, made):
    """Connections both ways of a process that binds its sockets to a device, and over which paths they go."""
    here, there = (Agent(side, role, under=side.inside(role)) for role in (binder, other))
    made.append(here)
    own, peers = side.address_of(binder), side.address_of(other)
    seen = [here(f"d = socket.socket(); d.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, {device.encode()!r})")]
    there(f"l = socket.create_server(({peers!r}, 0))")
    seen += [here(f"bounded(d).connect(({peers!r}, {there('l.getsockname()[1]')}))"), here("d.sendall(b'question')"),
             there("s = bounded(l.accept()[0]); s.sendall(s.recv(100)[::-1])"), here("d.recv(100)"),
             here("d.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16)")]
    for address in (own, "0.0.0.0"):
        here("k = socket.socket()")
        seen += [here(f"k.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, {device.encode()!r}); k.bind(({address!r}, 0)); k.listen()")]
        seen += [there(f"t = socket.create_connection(({own!r}, {here('k.getsockname()[1]')}), 5); t.sendall(b'to it')"),
                 here("e = bounded(k.accept()[0]); k.close()"), here("e.recv(100)"), there("t.close()"), here("e.recv(1)")]
    return seen


@case
def bound_to_the_ports_interface():
    """SO_BINDTODEVICE with the port's interface: connections and listeners stay on the port."""
    made = []
    with Veth("netdev:veth-a") as side:
        seen = [bound_to_a_device(side, "ours", "kernel", "veth-a", made)]
        side.until(made[0].sockets, "the connection is told")
        check({s["path"] for s in made[0].sockets()} == {"wire"}, f"{made[0].sockets()}: {side.why()}")
    with Veth("netdev:veth-a") as side:
        seen.append(bound_to_a_device(side, "kernel", "ours", "veth-b", made))
    for one in seen:
        one[5] = one[5].replace("veth-a", "veth-b")
    check(seen[0] == seen[1], f"ours {seen[0]}, the kernel's {seen[1]}")


@case
def bound_to_another_interface():
    """SO_BINDTODEVICE with an interface that no port is on: the kernel has the socket, and `why` says so."""
    with Veth("netdev:veth-a") as side:
        here = Agent(side, "ours", under=side.inside("ours"))
        here("d = socket.socket(); d.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b'lo'); d.setblocking(False)")
        error = here(f"d.connect_ex(({KERNELS!r}, 9)) in (errno.ENETUNREACH, errno.EINPROGRESS, errno.EHOSTUNREACH)")
        check(error is True, f"{error}")
        check("SO_BINDTODEVICE" in side.why(here), side.why(here))


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
        side.wait_for(server, f"(test #{number})")  # it makes a new listener for each client
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
    """One line for each frame of ours; tshark verifies the checksums that it is asked about. What a port number means to
    it otherwise (17220: audio and video) is not what we send there."""
    found = subprocess.run(["tshark", "-r", capture, "-d", "udp.port==1-65535,data", "-d", "tcp.port==1-65535,data", "-o", "ip.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE", "-o",
                            "udp.check_checksum:TRUE", "-Y", f"ip.src == {OURS} and ({condition})"], capture_output=True, text=True)
    return found.stdout.splitlines()


def frames_on_the_wire(port):
    """Our interface fills checksums and cuts segments in software. So the peer's end shows what a card would send."""
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
    """Nothing is left over, also after SIGKILL. The kernel keeps what is not for us: its own address on the interface
    answers meanwhile."""
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
def what_no_fast_path_carries_says_why():
    """Connections of a neighbour's kernel, of a kernel behind a router, and of a program with itself."""
    beyond = "198.51.100.1"
    with Veth("af_packet:veth-a") as side:
        ip("-n", side.namespaces["kernel"], "addr", "add", f"{beyond}/32", "dev", "lo")
        server = side.start_python("ours", "ends_of_all_kinds.py", "server", OURS, port := free_port(), 4, until="ready",
                                   BYPASS_LOCAL="on", BYPASS_GATEWAY=KERNELS)
        for source in (KERNELS, KERNELS, beyond):
            side.start_python("kernel", "ends_of_all_kinds.py", "client", OURS, port, source)
        side.wait_for(server, "complete")
        text = side.why(server)
        for line in (f" {KERNELS} +peer_plain ", f" {KERNELS} +no_shm_link .*behind a router", f" {OURS} +no_shm_link .*both ends belong",
                     " - +no_rdma .*: BYPASS_RDMA="):
            check(len(re.findall(line, text)) == 1, f"{line}: {text}")


@case
def handler_takes_connections_on_top_of_malloc():
    """The first connections of all, from several peers, so that something is recorded for each."""
    sources = [KERNELS] + [f"10.77.0.{i}" for i in range(20, 24)]
    with Veth("af_packet:veth-a") as side:
        for source in sources[1:]:
            ip("-n", side.namespaces["kernel"], "addr", "add", f"{source}/24", "dev", "veth-b")
        server = side.start("ours", os.path.join(BUILD, "bin", "accepting_handler"), OURS, port := free_port(), len(sources),
                            until="ready", BYPASS_LOCAL="on")
        for source in sources:
            side.start_python("kernel", "ends_of_all_kinds.py", "client", OURS, port, source)
        side.wait_for(server, "complete")


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
                side.until(lambda: [p["link"] for p in side.stat(server)["ports"]] == [state], f"the link is {state}")
                side.until(lambda: is_idle(server), f"the server sleeps; {port} {state}")


@case
def a_few_buffers_suffice():
    """The peer's window is larger than all buffers together. They run out, and come back. (AF_XDP takes its least.)"""
    for port in ("af_packet:veth-a", "af_xdp:veth-a"):
        with Veth(port) as side:
            for server_role in ("ours", "kernel"):
                transfer(side, server_role, 20 << 20, BYPASS_PORT_MEMORY="1M")
            bypassed(side)


@case
def another_process_of_the_family_takes_the_interface_over():
    """Forked processes have inherited parts of the port. They end with its owner's death, and another process opens the
    port anew."""
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
        # The family shares memory. Otherwise the child has a driver and goes on serving.
        parent = side.start_python("ours", "unprivileged_child.py", OURS, number, until="ready", BYPASS_TRUST="family")
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
    """Both would answer, the kernel with resets. So the program runs on the kernel's sockets, and says why."""
    with Veth("af_packet:veth-a") as side:
        side.run("ours", "ip", "addr", "add", f"{OURS}/24", "dev", "veth-a", LD_PRELOAD="")
        port = free_port()
        side.start("ours", "redis-server", "--bind", OURS, "--protected-mode", "no", "--port", port, "--save", "", "--dir", side.dir,
                   until="Ready to accept")
        check("both would answer" in side.why(), side.why())
        check(side.run("kernel", "redis-cli", "-h", OURS, "-p", port, "ping").strip() == b"PONG", "the kernel's socket does not answer")


@case
def address_that_another_process_has_is_in_use():
    """Both would answer, and each would reset the other's connections. The second process gets what the kernel's bind()
    would say, and sends no frame. When the first is dead, the address is free."""
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
            early = f"another process has the address {OURS} on this interface, and it is no fork of this process"  # at bind()
            check(early in side.output(second), side.output(second))
            check([line for line in side.output(second).splitlines() if "bypass[" not in line] == ["EADDRINUSE"] * 3, side.output(second))
            check(side.run("kernel", *cli).strip() == b"PONG", "no answer any more")
            side.kill(first, signal.SIGKILL)
            check(side.python("ours", "bind_listen.py", OURS, number, other).split() == [b"listens"] * 2, "the address is not free")


@case
def address_of_another_host_is_said():
    """A host on the link answers for our address. This is said once in the log, and in `bypass why`."""
    claim = ("import socket, struct; s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind(('veth-b', 0));"
             f"a = socket.inet_aton('{OURS}'); m = bytes.fromhex('020000000099');"
             "s.send(b'\\xff' * 6 + m + struct.pack('!HHHBBH', 0x806, 1, 0x800, 6, 4, 1) + m + a + bytes(6) + a)")
    with Veth("af_packet:veth-a") as side:
        port = free_port()
        server = side.start("ours", "redis-server", "--bind", OURS, "--protected-mode", "no", "--port", port, "--save", "", "--dir",
                            side.dir, until="Ready to accept")
        said = f"another host, 02:00:00:00:00:99, has the address {OURS}"
        for _ in range(2):
            side.run("kernel", "/usr/bin/python3", "-c", claim)
            side.wait_for(server, said)
        check(re.search(f"{re.escape(OURS)} +address_conflict .*{said}", side.why()), side.why())
        side.run("kernel", "redis-cli", "-h", OURS, "-p", port, "ping")
        check(side.output(server).count(said) == 1, side.output(server))


# SYNs of 32 clients that are not there, from veth-b's own neighbour; a raw socket, as the kernel sends none of its own.
FORGED = """
import socket, struct, sys
ours, port, mac = socket.inet_aton(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3].replace(':', ''))

def total(data):
    value = sum(struct.unpack(f'!{len(data) // 2}H', data))
    while value >> 16:
        value = (value & 0xffff) + (value >> 16)
    return struct.pack('!H', ~value & 0xffff)

s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind(('veth-b', 0))
for i in range(32):
    source = socket.inet_aton(f'10.77.0.{100 + i}')
    tcp = struct.pack('!HHIIBBHHH', 1024 + i, port, i, 0, 0x50, 2, 1000, 0, 0)
    tcp = tcp[:16] + total(source + ours + struct.pack('!HH', 6, len(tcp)) + tcp) + tcp[18:]
    head = struct.pack('!BBHHHBBH', 0x45, 0, 40, i, 0, 64, 6, 0) + source + ours
    s.send(mac + bytes.fromhex('020000000099') + struct.pack('!H', 0x800) + head[:10] + total(head) + head[12:] + tcp)
"""


@case
def flood_of_forged_syns_is_said():
    """The library's listener reports it. Clients go on where it sends cookies, and only there."""
    for cookies in ("on", "off"):
        with Veth("af_packet:veth-a") as side:
            port = free_port()
            server = side.start("ours", "redis-server", "--bind", OURS, "--protected-mode", "no", "--port", port, "--save", "",
                                "--dir", side.dir, until="Ready to accept", BYPASS_TCP_SYN_QUEUE="8", BYPASS_TCP_SYN_COOKIES=cookies)
            ping = ("redis-cli", "-h", OURS, "-p", port, "ping")
            check(side.run("kernel", *ping).strip() == b"PONG", "no answer")
            check("syn_flood" not in side.why(server), side.why(server))
            mac, = re.findall(rf"{re.escape(OURS)} .*lladdr (\S+)", ip("-n", side.namespaces["kernel"], "neigh"))
            side.run("kernel", "/usr/bin/python3", "-c", FORGED, OURS, port, mac)
            said = "nothing is kept" if cookies == "on" else "SYNs are dropped"
            side.until(lambda: re.search(rf"syn_flood .*\(8 connections\).*{said}", side.why(server)), "why says it", 5)
            if cookies == "on":
                check(side.run("kernel", *ping).strip() == b"PONG", "no answer under the flood")


@case
def interface_goes_down_and_comes_back():
    """Frames that are sent meanwhile are lost, as with a cable. The connection goes on. Then the interface is removed and
    made again, with another index."""
    with Veth("af_packet:veth-a") as side:
        port = free_port()
        server = side.start("ours", "redis-server", "--bind", OURS, "--protected-mode", "no", "--port", port, "--save", "", "--dir",
                            side.dir, until="Ready to accept")
        cli = ["redis-cli", "-h", OURS, "-p", port, "ping"]
        check(side.run("kernel", *cli).strip() == b"PONG", "no answer at first")
        here = side.namespaces["ours"]
        ip("-n", here, "link", "set", "veth-a", "down")
        side.until(lambda: [p["link"] for p in side.stat(server)["ports"]] == ["down"], "the link is down")
        ip("-n", here, "link", "set", "veth-a", "up")
        check(side.run("kernel", *cli).strip() == b"PONG", "no answer after the interface was down")
        ip("-n", here, "link", "del", "veth-a")
        side.until(lambda: [p["link"] for p in side.stat(server)["ports"]] == ["down"], "the link is down again")
        side.pair("ours", "veth-a", "kernel", "veth-b")
        ip("-n", side.namespaces["kernel"], "addr", "add", f"{KERNELS}/24", "dev", "veth-b")
        check(side.run("kernel", *cli).strip() == b"PONG", "no answer over the new interface")


run_named(CASES, "passed")
