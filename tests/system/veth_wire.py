"""Network namespaces joined by veths: programs in some under libbypass, in others on the kernel's sockets. Everything is
removed with the object."""
import os
import subprocess

import guardian
from harness import LONG, Side, Skip, check, free_port

OURS, KERNELS = "10.77.0.1", "10.77.0.2"


def ip(*words):
    done = subprocess.run(["ip", *map(str, words)], capture_output=True, text=True)
    check(done.returncode == 0, f"ip {' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


class Namespaces(Side):
    """A namespace for each of `names`. The derived class says how they are joined (`build`), and where and as whom a role's
    programs run and under which address (`place`, `is_ours`, `address_of`)."""

    def __init__(self, port, names):
        if os.geteuid() != 0:
            raise Skip("only root makes network namespaces")
        super().__init__("bypass")
        self.port = port
        self.namespaces = {name: f"bp-{name}-{os.getpid()}-{self.dir[-4:]}" for name in names}
        try:
            for name in self.namespaces.values():
                guardian.entrust("namespace", name)
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
            self.build()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def pair(self, name, interface, other_name, other_interface, mac=None):
        here, there = self.namespaces[name], self.namespaces[other_name]
        own = ["address", mac] if mac else []
        ip("-n", here, "link", "add", interface, *own, "type", "veth", "peer", "name", other_interface, "netns", there)
        ip("-n", here, "link", "set", interface, "up")
        ip("-n", there, "link", "set", other_interface, "up")

    def add_bridge(self, name, *interfaces):
        namespace = self.namespaces[name]
        ip("-n", namespace, "link", "add", "bridge", "type", "bridge")
        for interface in interfaces:
            ip("-n", namespace, "link", "set", interface, "master", "bridge")
        ip("-n", namespace, "link", "set", "bridge", "up")

    def environment(self, role, **extra):
        env = super().environment("server")
        if self.is_ours(role):
            env.update(BYPASS_PORT=self.port, BYPASS_ADDR=f"{self.address_of(role)}/24")
        else:
            env = {k: v for k, v in env.items() if k == "BYPASS_RUN_DIR" or not k.startswith("BYPASS_") and k != "LD_PRELOAD"}
        env.update(extra)
        return env

    def start(self, role, *command, **options):
        return super().start(role, *self.inside(role), *command, **options)

    def run(self, role, *command, **options):
        return super().run(role, *self.inside(role), *command, **options)

    def inside(self, role):
        return ["nsenter", f"--net=/run/netns/{self.namespaces[self.place(role)]}"]

    def __exit__(self, kind, *rest):
        super().__exit__(kind, *rest)
        for name in self.namespaces.values():
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


class Veth(Namespaces):
    """A veth pair. If asked to, with a bridge between the ends, or a forwarder that loses and reorders frames. The role
    `ours` runs under the library, at veth-a. The role `kernel` is at veth-b. A scenario's `server` and `client` are one and
    the other, as `ours` says."""

    def __init__(self, port, offloads=True, faults=None, bridge=False, ours="server"):
        self.offloads, self.faults, self.bridge = offloads, faults, bridge
        self.places = {"server": "ours", "client": "kernel"} if ours == "server" else {"server": "kernel", "client": "ours"}
        super().__init__(port, ["ours", "kernel"] + ["between"] * (bridge or faults is not None))
        self.title = f"veth, {ours} ours"
        self.address, self.client_address = self.address_of("server"), self.address_of("client")

    def place(self, role):
        return self.places.get(role, role)

    def is_ours(self, role):
        return self.place(role) == "ours"

    def address_of(self, role):
        return OURS if self.is_ours(role) else KERNELS

    def build(self):
        if "between" in self.namespaces:
            self.pair("ours", "veth-a", "between", "fwd-a")
            self.pair("between", "fwd-b", "kernel", "veth-b")
        else:
            self.pair("ours", "veth-a", "kernel", "veth-b")
        if self.bridge:  # as a container has it: the peer's end is a port of a bridge, which learns our MAC address
            self.add_bridge("between", "fwd-a", "fwd-b")
        ip("-n", self.namespaces["kernel"], "addr", "add", f"{KERNELS}/24", "dev", "veth-b")
        if not self.offloads:
            self.offloads_off("kernel", "veth-b")
        if self.faults is not None:
            self.start_python("between", "forwarder.py", "fwd-a", "fwd-b", *self.faults, until="ready")

    def offloads_off(self, role, name):
        self.run(role, "ethtool", "-K", name, "tx", "off", "tso", "off", "gso", "off", "gro", "off", LD_PRELOAD="")


class Shared(Veth):
    """A veth whose address the kernel also has at our end. Our programs share it with the kernel's through a software RDMA
    device that steers, as they would share a card. The role `beside` is a kernel program at our end."""

    def __init__(self, wire="af_packet", **options):
        self.wire = wire
        super().__init__("verbs:soft0", **options)
        self.title = f"shared {wire}, {'server' if self.is_ours('server') else 'client'} ours"

    def place(self, role):
        return "ours" if role == "beside" else super().place(role)

    def is_ours(self, role):
        return role != "beside" and super().is_ours(role)

    def address_of(self, role):
        return OURS if self.place(role) == "ours" else KERNELS

    def build(self):
        super().build()
        ip("-n", self.namespaces["ours"], "addr", "add", f"{OURS}/24", "dev", "veth-a")

    def environment(self, role, **extra):
        env = super().environment(role)
        if self.is_ours(role):
            del env["BYPASS_ADDR"]  # the interface's own
            env.update(BYPASS_SOFT=f"{self.wire}:veth-a")
        env.update(extra)
        return env


class Tap(Veth):
    """A tap interface whose kernel side lies in the same namespace."""

    def __init__(self):
        super().__init__("tap:bp-tap")

    def build(self):
        name = self.namespaces["ours"]
        ip("-n", name, "tuntap", "add", "bp-tap", "mode", "tap")
        ip("-n", name, "addr", "add", f"{KERNELS}/24", "dev", "bp-tap")

    def inside(self, role):
        return super().inside("ours")


class Bridge(Namespaces):
    """A namespace for each role. Its veth is a port of one bridge. The roles in `ours` run under the library."""

    def __init__(self, roles, ours, port="netdev:veth"):
        self.addresses = {role: f"10.77.0.{number}" for number, role in enumerate(roles, 1)}
        self.ours = ours
        super().__init__(port, [*roles, "bridge"])
        self.title = f"bridge, ours: {', '.join(ours) or 'none'}"

    def place(self, role):
        return role if role in self.addresses else "bridge"  # the harness's own calls of `bypass`

    def is_ours(self, role):
        return role in self.ours

    def address_of(self, role):
        return self.addresses[role]

    def build(self):
        for role, address in self.addresses.items():
            self.pair(role, "veth", "bridge", role)
            if not self.is_ours(role):
                ip("-n", self.namespaces[role], "addr", "add", f"{address}/24", "dev", "veth")
        self.add_bridge("bridge", *self.addresses)


def ends(server_role):
    """The client's role and the server's address."""
    return {"ours": ("kernel", OURS), "kernel": ("ours", KERNELS)}[server_role]


AMOUNT = (2 << 30) if LONG else (120 << 20)  # bytes that a transfer moves each way


def transfer(side, server_role, count, timeout=600, **extra):
    """Transfers `count` bytes in each direction, and compares the digests of both ends."""
    client_role, address = ends(server_role)
    port = free_port()
    server = side.start_python(server_role, "transfer.py", "serve", address, port, count, until="ready", **extra)
    told = side.python(client_role, "transfer.py", "connect", address, port, count, timeout=timeout, **extra).decode()
    check(side.end(server) == 0, "the server failed")
    told += side.output(server)
    check(told.count(f"{count} ") == 2 and told.count("same") == 2, told)
