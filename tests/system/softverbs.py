"""Unmodified verbs programs on the software RDMA devices: two processes, one vhost/virtio link, no RDMA hardware or driver.
softverbs.py CASE...   (no name: lists them)"""
import contextlib
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import time

from harness import LONG, BUILD, PERFTEST, Side, check, free_port, is_idle, run_named
from veth_wire import Namespaces, ip

CASES = {}
LIBRARY = os.path.join(BUILD, "libbypass-softverbs.so")
VERBS_ABI = os.path.join(BUILD, "bin", "verbs_abi")
JUMBO = "9000"  # has room for a path MTU of 4096


def case(function):
    CASES[function.__name__] = function
    return function


class Wire(Side):
    """Each role has a device soft0, at the two ends of one wire."""
    preloaded = LIBRARY
    meeting_point = "127.0.0.1"

    def __init__(self, server_port="vhost", mtu=JUMBO):
        super().__init__("bypass", server_port=server_port)
        self.mtu = mtu

    def environment(self, role, **extra):
        env = super().environment(role)
        del env["BYPASS_PORT"]
        env.update(BYPASS_SOFT=f"{self.kinds[role]}:{self.path('wire')}", BYPASS_MTU=self.mtu)
        env.update(extra)
        return {name: value for name, value in env.items() if value is not None}


class DropIn(Wire):
    """The programs load libibverbs.so.1 of our folder, and nothing is preloaded."""
    folder = os.path.join(BUILD, "verbs")

    def environment(self, role, **extra):
        return super().environment(role, **dict(LD_PRELOAD=None, LD_LIBRARY_PATH=self.folder) | extra)


class Joined(Wire):
    """One program has both ends of the wire, as soft0 and soft1."""

    def environment(self, role, **extra):
        path = self.path("wire")
        return super().environment(role, **dict(BYPASS_SOFT=f"vhost:{path};virtio:{path}", BYPASS_MTU=f"{self.mtu};{self.mtu}",
                                                BYPASS_ADDR="10.9.0.1/24;10.9.0.2/24", WIRE_MTU=self.mtu) | extra)


class Interfaces(Namespaces):
    """Each role has a device on an interface with a MAC address and an IP address of its own: the ends of a veth, or taps
    on a bridge. The programs meet over kernel sockets beside it."""
    preloaded = LIBRARY

    def __init__(self, kind, roles=("server", "client")):
        self.kind = kind
        self.macs = {role: f"02:00:00:00:00:0{number}" for number, role in enumerate(roles, 1)}
        self.addresses = {role: f"10.9.0.{number}" for number, role in enumerate(roles, 1)}
        self.meeting_point = "127.0.0.1" if kind == "tap" else "10.78.0.1"
        super().__init__("", ["server"] if kind == "tap" else ["server", "client"])

    def place(self, role):
        return "server" if self.kind == "tap" else role

    def address_of(self, role):
        return self.addresses[role]

    def build(self):
        if self.kind == "tap":
            namespace = self.namespaces["server"]
            for role in self.macs:
                ip("-n", namespace, "tuntap", "add", f"tap-{role}", "mode", "tap")
                ip("-n", namespace, "link", "set", f"tap-{role}", "up")
            return self.add_bridge("server", *(f"tap-{role}" for role in self.macs))
        self.pair("server", "veth-server", "client", "veth-client")
        self.pair("server", "beside", "client", "beside")
        for number, role in enumerate(self.macs, 1):
            ip("-n", self.namespaces[role], "addr", "add", f"10.78.0.{number}/24", "dev", "beside")
        # The kernel may take a second to say that a new pair has a carrier.
        for role in self.macs:
            self.until(lambda: " state UP " in ip("-n", self.namespaces[role], "link", "show", f"veth-{role}"), f"the {role}'s carrier")

    def environment(self, role, **extra):
        env = super().environment(role)
        del env["BYPASS_PORT"]
        interface = f"{'tap' if self.kind == 'tap' else 'veth'}-{role}"
        env.update(BYPASS_SOFT=f"{self.kind}:{interface}", BYPASS_MAC=self.macs[role])
        env.update(extra)
        return env


class OnePlace(Namespaces):
    """Like Joined, over both ends of a veth in one namespace."""
    preloaded = LIBRARY

    def __init__(self, kind, mtu):
        self.kind, self.mtu = kind, mtu
        super().__init__("", ["server"])

    def place(self, role):
        return "server"

    def address_of(self, role):
        return "10.9.0.1"

    def build(self):
        namespace = self.namespaces["server"]
        ip("-n", namespace, "link", "add", "veth-0", "mtu", self.mtu, "type", "veth", "peer", "name", "veth-1", "mtu", self.mtu)
        for name in ("veth-0", "veth-1"):
            ip("-n", namespace, "link", "set", name, "up")

    def environment(self, role, **extra):
        env = super().environment(role)
        del env["BYPASS_PORT"]
        env.update(BYPASS_SOFT=f"{self.kind}:veth-0;{self.kind}:veth-1", BYPASS_ADDR="10.9.0.1/24;10.9.0.2/24", WIRE_MTU=self.mtu)
        env.update(extra)
        return env


def listens(port, process="self"):
    """Whether a process listens at the TCP port, as that process sees it."""
    for table in (f"/proc/{process}/net/tcp", f"/proc/{process}/net/tcp6"):
        try:
            lines = open(table).readlines()[1:]
        except FileNotFoundError:
            return False  # the process has ended
        for line in lines:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                return True
    return False


def pair(wire, *command, timeout=60):
    """Runs a program of two ends to its end. Returns the output of both."""
    port = free_port()
    command = [*command, "-p", port]
    server = wire.start("server", *command)
    wire.until(lambda: server.poll() is not None or listens(port, server.pid), f"{command[0]} listens")
    said = wire.run("client", *command, wire.meeting_point, timeout=timeout).decode()
    check(wire.end(server, timeout) == 0, f"{command}: the server failed")
    return wire.output(server), said


# --- What a device says of itself

# What programs ask libc about devices of libibverbs, and devices that do not exist.
DEVICE_FILES = """
import errno, os, stat
def error(call, *arguments):
    try: return call(*arguments)
    except OSError as e: return errno.errorcode[e.errno]
types = '/sys/class/infiniband/{}/ports/{}/gid_attrs/types/{}'
for device in 'soft0', 'soft1':
    assert stat.S_ISCHR(os.stat('/dev/infiniband/' + device).st_mode)
    assert os.access('/dev/infiniband/' + device, os.R_OK | os.W_OK) and not os.access('/dev/infiniband/' + device, os.X_OK)
    fd = os.open(types.format(device, 1, 1), os.O_RDONLY)
    assert os.read(fd, 99) == b'RoCE v2\\n' and os.read(fd, 99) == b''
    assert error(os.open, types.format(device, 1, 0), os.O_RDWR) == 'EACCES'
for device in 'soft2', 'soft', 'soft0x', 'mlx5_0':
    assert error(os.stat, '/dev/infiniband/' + device) == 'ENOENT' and not os.access('/dev/infiniband/' + device, os.F_OK)
    assert error(os.open, types.format(device, 1, 0), os.O_RDONLY) == 'ENOENT'
assert error(os.open, types.format('soft0', 2, 0), os.O_RDONLY) == 'ENOENT'
assert error(os.open, types.format('soft0', 1, 256), os.O_RDONLY) == 'ENOENT'
"""


@case
def devices():
    """ibv_devices and ibv_devinfo see one device for each wire, with its addresses and MTU."""
    with Wire() as wire:
        two = dict(BYPASS_SOFT=f"vhost:{wire.path('a')};vhost:{wire.path('b')}", BYPASS_MTU=f"{JUMBO};1500",
                   BYPASS_ADDR="10.7.0.1/24;10.8.0.1/24,fd08::1/64")
        listed = wire.run("server", "ibv_devices", **two).decode()
        guids = re.findall(r"^ +(soft\d) +\t([0-9a-f]{16})$", listed, re.M)
        check([name for name, _ in guids] == ["soft0", "soft1"] and guids[0][1] != guids[1][1], listed)
        check(listed == wire.run("server", "ibv_devices", **two).decode(), "the GUIDs change from run to run")
        first = wire.run("server", "ibv_devinfo", "-v", "-d", "soft0", **two).decode()
        for text in ("state:\t\t\tPORT_ACTIVE", "active_mtu:\t\t4096", "link_layer:\t\tEthernet", "atomic_cap:\t\t\tATOMIC_HCA", "XRC",
                     "::ffff:10.7.0.1, RoCE v2"):
            check(text in first, f"{text!r} is not in {first}")
        check(re.search(r"GID\[  0\]:\t+fe80::\S+, RoCE v2", first), first)
        wire.run("server", "/usr/bin/python3", "-c", DEVICE_FILES, **two)
        second = wire.run("server", "ibv_devinfo", "-v", "-d", "soft1", **two).decode()
        check("active_mtu:\t\t1024" in second and "GID[  2]:\t\tfd08::1, RoCE v2" in second, second)


@case
def without_devices():
    """If no software device is asked for, programs see what they saw before. Standard error says once how to have one, and
    names one that cannot be had."""
    with Wire() as wire:
        none = dict(BYPASS_SOFT=None, BYPASS_ADDR=None, BYPASS_MTU=None)
        plain = subprocess.run(["ibv_devices"], capture_output=True, env={"LC_ALL": "C"}, timeout=20)
        preloaded = subprocess.run(["ibv_devices"], capture_output=True, env=wire.environment("server", **none), timeout=20)
        check((plain.returncode, plain.stdout) == (preloaded.returncode, preloaded.stdout), f"{plain} {preloaded}")
        advice = b"".join(preloaded.stderr.split(plain.stderr) if plain.stderr else [preloaded.stderr])
        check(advice.count(b"\n") == advice.count(b"BYPASS_SOFT=WIRE makes soft0") == 1, preloaded)
        quiet = subprocess.run(["cat", "/dev/null"], capture_output=True, env=wire.environment("server", **none), timeout=20)
        check((quiet.returncode, quiet.stdout, quiet.stderr) == (0, b"", b""), quiet)
        bad = subprocess.run(["ibv_devinfo"], capture_output=True, timeout=20,
                             env=wire.environment("server", BYPASS_SOFT=f"vhost:{wire.path('nowhere/wire')}"))
        check(bad.returncode != 0 and f"BYPASS_SOFT=vhost:{wire.path('nowhere')}".encode() in bad.stderr, bad)
        listed = subprocess.run(["ibv_devices"], capture_output=True, timeout=20,
                                env=wire.environment("server", BYPASS_SOFT=f"vhost:{wire.path('nowhere/wire')}"))
        check(listed.stderr.count(f"BYPASS_SOFT=vhost:{wire.path('nowhere')}".encode()) == 1, listed)
        bare = subprocess.run(["ibv_rc_pingpong", "-d", "soft0", "-g", "1"], capture_output=True, timeout=20,
                              env=wire.environment("server", **none | dict(BYPASS_SOFT=f"vhost:{wire.path('bare')}")))
        check(bare.returncode != 0 and bare.stderr.count(b"BYPASS_SOFT_ADDR gives it one") == 1, bare)
        check(not os.path.exists(wire.path("bare")), "the wire's file stays behind a program that ends with its device open")
        strict = subprocess.run(["ibv_devices"], capture_output=True, timeout=20,
                                env=wire.environment("server", BYPASS_SOFT="frotz:x", BYPASS_STRICT="1"))
        check(strict.returncode == 78 and b"unknown kind 'frotz'" in strict.stderr, strict)


def symbols(path, which):
    """The names that a program or a library defines or needs. Each has the version that programs built today ask for."""
    said = subprocess.run(["nm", "-D", "--with-symbol-versions", which, path], capture_output=True, text=True, check=True).stdout
    words = [line.split()[-1] for line in said.splitlines()]
    mark = "@@" if which == "--defined-only" else "@"
    return dict(word.split(mark) for word in words if mark in word)


@case
def a_real_device():
    """Beside a software device: both are listed. Calls for the real device go to its own library."""
    with Wire() as wire:
        real = dict(LD_LIBRARY_PATH=os.path.join(BUILD, "one_device"))
        listed = wire.run("server", "ibv_devices", ONE_DEVICE_LOG=wire.path("listing"), **real).decode()
        rows = dict(re.findall(r"^ +(\w+) +\t([0-9a-f]{16})$", listed, re.M))
        check(list(rows) == ["soft0", "real0"] and rows["real0"] == "0200000000000077", listed)
        wire.run("server", VERBS_ABI, "a_real_device", ONE_DEVICE_LOG=wire.path("calls"), **real)
        reached = set(open(wire.path("calls")).read().split())
        # These calls touch only libibverbs' own structures, whichever library made them.
        alike = {"ibv_get_device_name", "ibv_ack_cq_events", "ibv_ack_async_event"}
        ours = {name for name, version in symbols(LIBRARY, "--defined-only").items() if version.startswith("IBVERBS_")}
        check(reached == ours - alike, f"not reached: {ours - alike - reached}, besides: {reached - ours | reached & alike}")
        # A program without a libibverbs of its own.
        count = ("import ctypes\nn = ctypes.c_int()\nctypes.CDLL(None).ibv_get_device_list(ctypes.byref(n))\nprint(n.value)\n")
        said = wire.run("server", "/usr/bin/python3", "-c", count, ONE_DEVICE_LOG=wire.path("listing"), **real)
        check(said == b"2\n", said)


# What goes to the real library, as it speaks of no device: texts and numbers …
TEXTS = {"ibv_event_type_str", "ibv_node_type_str", "ibv_port_state_str", "ibv_wc_status_str", "ibv_rate_to_mbps", "ibv_rate_to_mult",
         "mbps_to_ibv_rate", "mult_to_ibv_rate"}
# … what a fork does to memory that a driver has pinned …
FORKS = {"ibv_fork_init", "ibv_is_fork_initialized", "ibv_dofork_range", "ibv_dontfork_range"}
# … the kernel's files, and what librdmacm copies out of its messages …
KERNELS = {"ibv_get_sysfs_path", "ibv_read_sysfs_file", "ibv_copy_ah_attr_from_kern", "ibv_copy_qp_attr_from_kern",
           "ibv_copy_path_rec_from_kern", "ibv_copy_path_rec_to_kern"}
# … and a device by the number of an open file, which ours do not have. What it gave is returned there.
BY_DESCRIPTOR = {"ibv_import_device", "ibv_unimport_dm"}
# The calls of libc that librdmacm makes on its device's file.
OF_LIBC = {"open", "open64", "write", "close", "fstat", "fstat64", "stat", "stat64", "access", "eaccess", "euidaccess", "faccessat"}


@case
def exports():
    """The library has every call of libibverbs that a program can make for a device, at the same version."""
    needs = subprocess.run(["ldd", VERBS_ABI], capture_output=True, text=True, check=True).stdout
    real = symbols(re.search(r"libibverbs\.so\.1 => (\S+)", needs)[1], "--defined-only")
    ours = {name: version for name, version in symbols(LIBRARY, "--defined-only").items() if version != "LIBBYPASS_1"}
    libc = symbols(re.search(r"libc\.so\.6 => (\S+)", needs)[1], "--defined-only")
    check({name: libc.get(name) for name in OF_LIBC}.items() <= ours.items(), f"libc's calls: {ours.items() - real.items()}")
    ours = {name: version for name, version in ours.items() if name not in OF_LIBC}
    check(ours.items() <= real.items(), f"not libibverbs' own: {ours.items() - real.items()}")
    public = {name for name, version in real.items() if not version.startswith("IBVERBS_PRIVATE")}
    passed_on = TEXTS | FORKS | KERNELS | BY_DESCRIPTOR
    check(public - ours.keys() == passed_on, f"neither ours nor listed: {public - ours.keys() - passed_on}, "
          f"listed and ours, or nobody's: {passed_on - (public - ours.keys())}")
    for name in ("ibv_devices", "ibv_devinfo", "ibv_rc_pingpong", "ibv_asyncwatch", "ib_send_bw", "ib_write_lat", "raw_ethernet_lat"):
        asked = {call: version for call, version in symbols(shutil.which(name), "--undefined-only").items() if version.startswith("IBVERBS")}
        missing = {call for call, version in asked.items() if ours.get(call) != version and call not in passed_on}
        check(asked and not missing, f"{name} asks for {missing}")


@case
def drop_in_library():
    """libibverbs.so.1 in a folder of its own: for programs that load it themselves, and for any other, without a preload. It has the
    names of the system's at the same versions, and drivers of cards can be loaded beside it."""
    with DropIn() as wire:
        said = wire.run("server", os.path.join(BUILD, "bin", "dlopened_verbs"))
        check(said == b"soft0 opens\n", said)
        loaded = wire.run("server", "ldd", shutil.which("ibv_devinfo")).decode()
        check(f"libibverbs.so.1 => {wire.folder}/" in loaded, loaded)
        said = wire.run("server", "ibv_devinfo", "-v", "-d", "soft0").decode()
        check("RoCE v2" in said, said)
        for said in pair(wire, "ibv_rc_pingpong", "-g", 1, "-n", 100, "-c"):
            check("100 iters in" in said and "invalid data" not in said, said)
        # It ends with 1 where the kernel has no RDMA, as without the library.
        none = wire.run("server", "ibv_devices", expect=None, BYPASS_SOFT=None, BYPASS_ADDR=None, BYPASS_MTU=None)
        check(b"soft0" not in none, none)
        # Without a symbol that a driver of a card needs, it could not be loaded.
        drivers = [path for path in glob.glob(os.path.join(os.path.dirname(real_libibverbs()), "libibverbs", "*.so"))]
        for driver in drivers:
            said = wire.run("server", "ldd", "-r", driver).decode()
            check("undefined symbol" not in said and "not found" not in said, said)
    for name in ("libibverbs.so.1", "librdmacm.so.1"):
        ours = versioned(os.path.join(DropIn.folder, name))
        missing = versioned(os.path.join(os.path.dirname(real_libibverbs()), name)) - ours
        check(ours and not missing, f"{name}: missing: {missing}")


def real_libibverbs():
    said = subprocess.run(["ldd", shutil.which("ibv_devinfo")], capture_output=True, text=True, check=True).stdout
    return re.search(r"libibverbs.so.1 => (\S+)", said).group(1)


def versioned(library):
    """The names with their versions, those of older programs as well."""
    listed = subprocess.run(["nm", "-D", "--defined-only", "--with-symbol-versions", library], capture_output=True, text=True, check=True)
    return {line.split()[-1] for line in listed.stdout.splitlines()}


@case
def async_events():
    """ibv_asyncwatch sleeps, and gets an event when the peer comes and when it goes."""
    with Wire() as wire:
        command = ["stdbuf", "-oL", "ibv_asyncwatch", "-d", "soft0"]
        watch = wire.start("server", *command, until="async event")
        peer = wire.start("client", *command, until="async event")  # its port may have been active before it asked
        wire.wait_for(watch, "IBV_EVENT_PORT_ACTIVE")
        wire.kill(peer, signal.SIGKILL)
        wire.wait_for(watch, "IBV_EVENT_PORT_ERR")
        check(watch.poll() is None, "the watcher ended")


@case
def port_states():
    """A port is active until its first peer comes, and while a peer is there. It is down when the peer has gone."""
    with Wire() as wire:
        watch = wire.start("server", VERBS_ABI, "port_states", until="waiting")
        peer = wire.start("client", "ibv_asyncwatch", "-d", "soft0")
        wire.until(lambda: wire.output(watch).count("waiting") == 2, "the port is active")
        wire.kill(peer, signal.SIGKILL)
        check(wire.end(watch) == 0, wire.output(watch))


@case
def an_absent_receiver():
    """A program that has got its message makes no more calls to the device. The acknowledgement does not wait for it."""
    with Wire() as wire:
        peer = {role: wire.environment(other)["BYPASS_ADDR"].split("/")[0]
                for role, other in (("server", "client"), ("client", "server"))}
        receiver = wire.start("server", VERBS_ABI, "receives_and_stays_away", until="waiting", PEER=peer["server"])
        sender = wire.start("client", VERBS_ABI, "sends_to_one_who_stays_away", until="waiting", PEER=peer["client"])
        check(wire.end(sender) == 0, wire.output(sender))
        check(receiver.poll() is None, wire.output(receiver))


@case
def everything_is_closed():
    """A program closes all descriptors that it does not know. It goes on, and its device does not spin. (DPDK's wires have
    threads of their own, which do.)"""
    with Interfaces("af_packet") as wire:
        said = wire.run("server", os.path.join(BUILD, "bin", "verbs_abi"), "everything_is_closed").decode()
        check(said == "everything_is_closed: ok\n", said)


# --- Links of libbypass's own

def two_processes(wire, size, deaths):
    """Two processes with RC links of the verbs plugin, which check each byte; what each says at its end."""
    program = os.path.join(BUILD, "bin", "rc_two_processes")
    address = {role: wire.environment(role)["BYPASS_ADDR"].split("/")[0] for role in ("server", "client")}
    options = ["--listen", free_port(), "--size", size, "--count", deaths]
    ends = {}
    for role, other in (("server", "client"), ("client", "server")):
        ends[role] = wire.start(role, program, "--role", role, "--address", address[role], "--peer", address[other],
                                *options, until="ready" if role == "server" else None, LD_PRELOAD=None)
    told = []
    for role, end in ends.items():
        check(wire.end(end, 60) == 0, f"{role}: {wire.output(end)}")
        said = json.loads(wire.output(end).splitlines()[-1])
        # The last link may be seen to die, too: the other end is ready, and gone.
        check(said["deaths"] >= deaths and said["bytes"] == 4 * size, f"{role}: {said}")  # of four connections
        check(said["over_tcp"] + sum(said["over_lanes"]) == said["bytes"], f"{role}: {said}")
        told.append(said)
    return told


@case
def rc_links_die_and_come_again():
    """The queue pair is made to fail, at either end in turn. The lanes end, and the bytes go on over TCP and over the next
    link."""
    deaths = 9 if LONG else 3
    size = 750_000 * (deaths + 1)  # of a part at most 187 kB, and what was not placed, go over TCP
    for server_port in ("vhost", "virtio"):
        with Wire(server_port) as wire:
            over_the_last = 0
            for said in two_processes(wire, size, deaths):
                # An end that is ready ends the last link. Bytes that its peer has not placed by then come over TCP, perhaps all of them.
                check(len(said["over_lanes"]) == deaths + 1 and all(said["over_lanes"][:deaths]), f"a link carried nothing: {said}")
                over_the_last += said["over_lanes"][deaths]
            check(over_the_last > 0, "the last link carried nothing, either way")


@case
def rc_links_die_after_few_bytes():
    """The parts of a few bytes and of less than TCP would take suffice for each link's turn."""
    for size, deaths in ((300_000, 2), (30, 4)):
        with Wire() as wire:
            two_processes(wire, size, deaths)


# --- rdma-core's examples

def pingpong(name, *options, mtu=JUMBO):
    for server_port in ("vhost", "virtio"):
        with Wire(server_port, mtu) as wire:
            for more in ((), ("-e",), ("-c",), ("-e", "-c")):
                for said in pair(wire, f"ibv_{name}_pingpong", "-g", 1, "-n", 500, *options, *more):
                    check("500 iters in" in said and "invalid data" not in said, said)


@case
def rc_pingpong():
    pingpong("rc")


@case
def uc_pingpong():
    pingpong("uc", "-r", 500)


@case
def ud_pingpong():
    pingpong("ud", "-r", 500)


@case
def srq_pingpong():
    pingpong("srq")


@case
def xsrq_pingpong():
    """XRC: each end sends to receive queues that the other end names."""
    for server_port in ("vhost", "virtio"):
        with Wire(server_port) as wire:
            for more in ((), ("-e",), ("-s", 50_000)):
                for said in pair(wire, "ibv_xsrq_pingpong", "-g", 1, "-n", 300, *more):
                    check("success" in said, said)


@case
def rc_pingpong_over_a_small_mtu():
    """Messages of four packets, through the extended interfaces: timestamps, and requests built call by call."""
    with Wire(mtu="1500") as wire:
        for options in (("-m", 1024), ("-t",), ("-N",)):
            for said in pair(wire, "ibv_rc_pingpong", "-g", 1, "-n", 500, "-c", *options):
                check("500 iters in" in said and "invalid data" not in said, said)


# --- Other wires

def over_interfaces(kind):
    with Interfaces(kind) as wire:
        for command in (("ibv_rc_pingpong", "-c"), ("ibv_rc_pingpong", "-e"), ("ibv_ud_pingpong", "-s", 1024, "-c")):
            for said in pair(wire, *command, "-g", 1, "-n", 100):
                check("100 iters in" in said and "invalid data" not in said, said)
        raw_frames(wire, "raw_ethernet_lat", 64, wire.macs["server"], wire.macs["client"])


@case
def af_packet():
    over_interfaces("af_packet")


@case
def af_xdp():
    over_interfaces("af_xdp")


@case
def tap():
    over_interfaces("tap")


# --- perftest

def perftest(*command, **options):
    with Wire() as wire:
        return measured(wire, *command, **options)


def measured(wire, *command, sizes=None, timeout=60):
    """Runs one of perftest's programs. Returns the rows of the client's table, one for each of `sizes` if sizes are
    named."""
    said = pair(wire, command[0], *PERFTEST, *command[1:], timeout=timeout)[1]
    rows = [line.split() for line in said.splitlines() if re.match(r" \d+ +\d+ +[\d.]+", line)]
    # The last column, a time or a rate of messages: two bytes in a millisecond are 0.00 MB/s.
    check(rows and all(float(row[-1]) > 0 for row in rows), said)
    check(sizes is None or [int(row[0]) for row in rows] == sizes, said)
    return rows


def every_size(program, *options, iterations=200 if LONG else 8):
    perftest(program, "-a", "-n", iterations, *options, sizes=[2 ** i for i in range(1, 24)], timeout=240)


@case
def send_lat():
    every_size("ib_send_lat")


@case
def send_bw():
    every_size("ib_send_bw")


@case
def write_lat():
    every_size("ib_write_lat")


@case
def write_bw():
    every_size("ib_write_bw")


@case
def read_lat():
    every_size("ib_read_lat")


@case
def read_bw():
    every_size("ib_read_bw")


@case
def atomic():
    """Both operations, one at a time and many."""
    with Wire() as wire:
        for program in ("ib_atomic_lat", "ib_atomic_bw"):
            for operation in ("FETCH_AND_ADD", "CMP_AND_SWAP"):
                measured(wire, program, "-A", operation, "-n", 500)


@case
def many_queue_pairs_both_ways():
    with Wire() as wire:
        for command in (("ib_send_bw", "-b", "-q", 4), ("ib_write_bw", "-b", "-q", 4), ("ib_read_bw", "-b", "-q", 2),
                        ("ib_write_bw", "-q", 16, "-s", 4096), ("ib_atomic_bw", "-q", 4), ("ib_atomic_bw", "-b", "-q", 2),
                        ("ib_send_bw", "--use-srq", "-q", 2)):
            measured(wire, *command, "-n", 400)


@case
def every_size_both_ways():
    for program in ("ib_send_bw", "ib_write_bw", "ib_read_bw"):
        every_size(program, "-b", "-q", 2, iterations=200 if LONG else 5)


@case
def other_transports():
    with Wire() as wire:
        for command in (("ib_send_lat", "-c", "UC"), ("ib_write_lat", "-c", "UC"), ("ib_send_lat", "-c", "UD"),
                        ("ib_send_bw", "-c", "UC", "-s", 1024), ("ib_send_bw", "-c", "UD", "-s", 1024)):
            measured(wire, *command, "-n", 400)


@case
def xrc():
    with Wire() as wire:
        for command in (("ib_send_bw",), ("ib_send_lat",), ("ib_write_bw",), ("ib_write_lat",), ("ib_read_bw",), ("ib_atomic_bw",),
                        ("ib_send_bw", "-b", "-q", 2), ("ib_write_bw", "-b", "-q", 2)):
            measured(wire, *command, "-c", "XRC", "-n", 400)


@case
def events_and_lists():
    """Sleeping on completion events; lists of requests; inline data."""
    with Wire() as wire:
        for command in (("ib_send_lat", "-e"), ("ib_send_bw", "-e"), ("ib_read_lat", "-e"), ("ib_write_bw", "-l", 8, "-s", 256),
                        ("ib_write_bw", "-I", 128, "-s", 64)):
            measured(wire, *command, "-n", 400)


@case
def raw_ethernet():
    """Raw frames, steered by MAC address."""
    for server_port in ("vhost", "virtio"):
        with Wire(server_port) as wire:
            raw_frames(wire, "raw_ethernet_lat", 64, "02:00:00:00:00:01", "02:00:00:00:00:02")
            raw_frames(wire, "raw_ethernet_bw", 1518, "02:00:00:00:00:01", "02:00:00:00:00:02")


def raw_frames(wire, program, size, *macs):
    command = ["stdbuf", "-oL", program, "-d", "soft0", "-F", "-n", 500]
    server = wire.start("server", *command, "--server", "-B", macs[0], "-E", macs[1], BYPASS_MAC=macs[0], until="#bytes")
    said = wire.run("client", *command, "--client", "-B", macs[1], "-E", macs[0], BYPASS_MAC=macs[1]).decode()
    check(wire.end(server) == 0 and re.search(rf"^ {size} +500 ", said, re.M), said)


@case
def large_raw_frames():
    """Frames up to the largest size that the wire takes, and none above it."""
    for mtu in ("4000", JUMBO):
        with Joined(mtu=mtu) as wire:
            wire.run("server", VERBS_ABI, "large_raw_frames")
    for kind in ("af_packet", "af_xdp"):
        with OnePlace(kind, "3000") as wire:
            wire.run("server", VERBS_ABI, "large_raw_frames")


@case
def large_segments():
    """Segments of many frames, which the device cuts."""
    with Joined(mtu="1500") as wire:
        wire.run("server", VERBS_ABI, "large_segments_by_calls")


# --- Processes

@case
def pyverbs():
    """A script that does each operation once by rdma-core's Python binding."""
    command = ["/usr/bin/python3", os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers", "pyverbs_ends.py"), free_port()]
    with Wire() as wire:
        server = wire.start("server", *command, until="waits")
        said = wire.run("client", *command, wire.meeting_point, timeout=60).decode().split()
        check(wire.end(server) == 0 and wire.output(server).split()[1:] == said, f"{said} {wire.output(server)}")
        check(said[0] == "queries" and said[-1] == "xrc", said)


@case
def a_killed_peer():
    """The peer's queue pairs end with it. The other end learns that its retries are exhausted, and serves the next peer."""
    with Wire() as wire:
        port = free_port()
        command = ["ib_write_bw", "-x", 1, "-F", "-p", port]
        server = wire.start("server", *command, "-D", 60)
        wire.until(lambda: listens(port), "ib_write_bw listens")
        client = wire.start("client", *command, "-D", 60, "127.0.0.1")
        wire.until(lambda: moved(client) > 0.2, "the client is writing")
        wire.kill(server, signal.SIGKILL)
        check(wire.end(client) != 0, "the client noticed nothing")
        check("Failed status 12" in wire.output(client), wire.output(client))
        measured(wire, "ib_write_bw", "-n", 200)


@case
def one_of_two_killed_peers():
    """A process that dies takes down only its own queue pairs. A process with two peers learns that its retries to that one
    are exhausted, and goes on with the other."""
    with Interfaces("tap", ("server", "dies", "stays")) as wire:
        peers = {role: wire.start(role, VERBS_ABI, "receives_for_ever", until="waiting", PEER=wire.address_of("server"), PLACE=place)
                 for place, role in (("0", "dies"), ("1", "stays"))}
        server = wire.start("server", VERBS_ABI, "sends_to_two", until="both answer", PEER=wire.address_of("dies"),
                            OTHER=wire.address_of("stays"))
        wire.kill(peers["dies"], signal.SIGKILL)
        check(wire.end(server, 60) == 0, wire.output(server))
        check("one answers" in wire.output(server) and peers["stays"].poll() is None, wire.output(server))


def moved(child):
    """The seconds of processor time that the program has used: it spins once it transfers."""
    with open(f"/proc/{child.pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@case
def idle_devices_use_no_cpu():
    """Programs that sleep over devices whose link is up: one in ibv_get_async_event, one in ibv_get_cq_event. All are
    measured at once."""
    def sleepers(wire):
        watch = wire.start("server", "stdbuf", "-oL", "ibv_asyncwatch", "-d", "soft0", until="async event")
        sleeper = wire.start("client", VERBS_ABI, "sleeps_for_ever", until="sleeps")
        wire.until(lambda: is_idle(watch) and is_idle(sleeper), "both sleep")
        return watch, sleeper

    with contextlib.ExitStack() as wires:
        idle = {}
        for kind in ("vhost", "virtio", "af_packet", "af_xdp", "tap"):
            idle[kind] = sleepers(wires.enter_context(Wire(kind) if kind in ("vhost", "virtio") else Interfaces(kind)))
        before = {child: moved(child) for ends in idle.values() for child in ends}
        time.sleep(3)  # what is measured
        for kind, ends in idle.items():
            used = [moved(child) - before[child] for child in ends]
            check(all(seconds <= 0.03 for seconds in used), f"{kind}: in three seconds {used}")
            check(all(child.poll() is None for child in ends), f"{kind}: they have ended")


@case
def abi():
    """A test program that asks what no tool asks: events, forks, extended interfaces, refusals."""
    with Wire() as wire:
        two = dict(BYPASS_SOFT=f"vhost:{wire.path('a')};vhost:{wire.path('b')}", BYPASS_MTU=f"{JUMBO};{JUMBO}",
                   BYPASS_ADDR="10.7.0.1/24;10.8.0.1/24")
        for name in wire.run("server", VERBS_ABI, timeout=30).decode().split():
            said = wire.run("server", VERBS_ABI, name, timeout=30, **two).decode()
            check(said == f"{name}: ok\n", said)


if __name__ == "__main__":  # other files use what is above
    run_named(CASES, "shown")
