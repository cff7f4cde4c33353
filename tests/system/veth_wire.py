"""A veth pair between two network namespaces: programs in the one under libbypass, in the other on the kernel's sockets,
with a bridge between them, or a forwarder that loses and reorders frames, if asked to. All of it goes with the object."""
import os
import subprocess

from harness import HERE, Side, check

OURS, KERNELS = "10.77.0.1", "10.77.0.2"


def ip(*words):
    done = subprocess.run(["ip", *map(str, words)], capture_output=True, text=True)
    check(done.returncode == 0, f"ip {' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


class Veth(Side):
    """`ours` is the preloaded role, at veth-a, `kernel` the other one, at veth-b."""

    def __init__(self, port, offloads=True, faults=None, bridge=False):
        super().__init__("bypass")
        self.port = port
        self.namespaces = {role: f"bp-{role}-{os.getpid()}-{self.dir[-4:]}" for role in ("ours", "kernel", "between")}
        try:
            self.build(offloads, faults, bridge)
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def build(self, offloads, faults, bridge):
        for name in self.namespaces.values():
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        if faults is None and not bridge:
            self.pair("ours", "veth-a", "kernel", "veth-b")
        else:
            self.pair("ours", "veth-a", "between", "fwd-a")
            self.pair("between", "fwd-b", "kernel", "veth-b")
        if bridge:
            self.build_bridge()
        ip("-n", self.namespaces["kernel"], "addr", "add", f"{KERNELS}/24", "dev", "veth-b")
        if not offloads:
            self.offloads_off("kernel", "veth-b")
        if faults is not None:
            self.start_python("between", "forwarder.py", "fwd-a", "fwd-b", *faults, until="ready")

    def build_bridge(self):
        """As a container has it: the peer's end is a port of a bridge, which learns our MAC address."""
        between = self.namespaces["between"]
        ip("-n", between, "link", "add", "bridge", "type", "bridge")
        for name in ("fwd-a", "fwd-b"):
            ip("-n", between, "link", "set", name, "master", "bridge")
        ip("-n", between, "link", "set", "bridge", "up")

    def pair(self, role, name, other_role, other_name):
        here, there = self.namespaces[role], self.namespaces[other_role]
        ip("-n", here, "link", "add", name, "type", "veth", "peer", "name", other_name, "netns", there)
        ip("-n", here, "link", "set", name, "up")
        ip("-n", there, "link", "set", other_name, "up")

    def offloads_off(self, role, name):
        self.run(role, "ethtool", "-K", name, "tx", "off", "tso", "off", "gso", "off", "gro", "off", LD_PRELOAD="")

    def environment(self, role, **extra):
        env = super().environment("server")
        if role == "ours":
            env.update(BYPASS_PORT=self.port, BYPASS_ADDR=f"{OURS}/24")
        else:
            env = {k: v for k, v in env.items() if k == "BYPASS_RUN_DIR" or not k.startswith("BYPASS_") and k != "LD_PRELOAD"}
        env.update(extra)
        return env

    def start(self, role, *command, **options):
        return super().start(role, *self.inside(role), *command, **options)

    def run(self, role, *command, **options):
        return super().run(role, *self.inside(role), *command, **options)

    def inside(self, role):
        role = "kernel" if role == "server" else role  # the harness's own calls of `bypass`
        return ["nsenter", f"--net=/run/netns/{self.namespaces[role]}"]

    def __exit__(self, kind, *rest):
        super().__exit__(kind, *rest)
        for name in self.namespaces.values():
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


class Tap(Veth):
    """A tap interface whose kernel side lies in the same namespace."""

    def __init__(self):
        super().__init__("tap:bp-tap")

    def build(self, offloads, faults, bridge):
        name = self.namespaces["kernel"] = self.namespaces["ours"]
        ip("netns", "add", name)
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "tuntap", "add", "bp-tap", "mode", "tap")
        ip("-n", name, "addr", "add", f"{KERNELS}/24", "dev", "bp-tap")
