"""A guest whose kernel has Linux's software RDMA device (rdma_rxe), and the project's soft0 at the other end of its wire.

The guest has two cards. On the first one programs meet over TCP. The second one is the wire: rxe0 in the guest, soft0 on the
interface tap1 in the namespace `outside`."""
import os
import shutil

from machine import MAC, Machine
from vhost_guest import wired_card, wired_devices
from image import DEBIAN
from harness import BUILD, Skip, check, preload
from softverbs import listens
from veth_wire import ip

MEET = {"rxe": "10.66.0.1", "soft": "10.66.0.9"}
WIRE = {"rxe": "10.66.1.1", "soft": "10.66.1.2"}
SOFT_MAC = "02:00:00:00:66:02"
LIBRARY = os.path.join(BUILD, "libbypass-softverbs.so")
TOOLS = ("rdma", "ibv_devinfo", "ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong", "ib_send_bw", "ib_write_bw",
         "ib_read_bw", "ib_atomic_bw", "ib_send_lat", "rping", "ucmatose", "udaddy", "rstream", "cmtime")
# The driver of rxe0 is opened by the name in its file, libgcc by pthread_exit().
FILES = ("/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so", "/etc/libibverbs.d/rxe.driver", "/lib/x86_64-linux-gnu/libgcc_s.so.1")
MODULES = ("virtio_pci", "virtio_net", "crc32_generic", "rdma_rxe", "ib_uverbs", "rdma_ucm")


def programs():
    """What a guest with rxe0 needs of this machine."""
    paths = [shutil.which(name) for name in TOOLS]
    if missing := [name for name, path in zip(TOOLS, paths) if path is None] + [path for path in FILES if not os.path.exists(path)]:
        raise Skip(f"not installed: {', '.join(missing)}; apt-get install iproute2 ibverbs-utils ibverbs-providers perftest rdmacm-utils")
    return (*paths, *FILES)


def card(number):
    return ["-netdev", f"tap,id=n{number},ifname=tap{number},script=no,downscript=no",
            "-device", f"virtio-net-pci,netdev=n{number},mac={MAC[:-1]}{1 + number},romfile="]


class GuestPrograms(Machine):
    """A guest with an rxe device, and programs of the guest's that are awaited one by one."""
    begun = 0

    def start_program(self, *command, timeout=60):
        """In the background; killed when its time is over. Returns a name for the calls below."""
        self.begun += 1
        name = f"/tmp/end{self.begun}"
        words = " ".join(map(str, command))
        # No child of the guest's shell: one that ends while the shell reads a line takes the line's beginning from it.
        self.do(f"( (sh -c 'echo $$ >{name}.pid; exec timeout -s KILL {timeout} {words}' </dev/null >{name} 2>&1; echo $? >{name}.code) & )")
        return name

    def await_port(self, port):
        """Until a program of the guest's listens at that TCP port, for 30 s at most."""
        self.do(f"for i in $(seq 300); do grep -qE ':{port:04X} 0+:0000 0A' /proc/net/tcp /proc/net/tcp6 && break; sleep 0.1; done", 60)

    def end_program(self, name, timeout=30):
        """Its exit code and what it said, once it has ended by itself."""
        code = int(self.do(f"until [ -s {name}.code ]; do sleep 0.05; done; cat {name}.code", timeout + 30))
        return code, self.do(f"cat {name}")

    def program_has_ended(self, name):
        return self.run_in(f"[ -s {name}.code ]")[0] == 0

    def kill_program(self, name):
        self.do(f"[ -s {name}.code ] || kill -9 $(cat {name}.pid); until [ -s {name}.code ]; do sleep 0.05; done")

    def counter(self, name):
        """One of rxe0's own."""
        return int(self.do(f"cat /sys/class/infiniband/rxe0/ports/1/hw_counters/{name}"))


class Rxe(GuestPrograms):
    """The roles `rxe` and `soft` are the two ends: programs of the guest on rxe0, and programs outside on soft0."""

    built = ("bin/verbs_abi",)

    def __init__(self, mtu=1500, loss=0, kernel=DEBIAN, served_by=None):
        """`loss`: so many per cent of the frames do not arrive, either way. `served_by`: a program on soft0 that is there before
        the guest is. Then the wire is a vhost: port of the program's, and no tap."""
        self.programs, self.mtu, self.loss, self.kernel, self.served_by = programs(), mtu, loss, kernel, served_by
        check(os.path.exists(LIBRARY), f"{LIBRARY} is not built")
        super().__init__([*card(0), *card(1)], taps=1 if served_by else 2, iommu=False, before=Rxe.serve if served_by else None)

    def serve(self):
        self.server = self.start("soft", *self.served_by)
        self.until(lambda: os.path.exists(self.path("wire")), "the port's socket", 30)
        self.devices = [*card(0), *wired_devices(self.path("wire"), wired_card(number=1), self.memory, number=1)]

    def build(self):
        super().build()
        if not self.served_by:
            # Only soft0 has an address on the wire at this end.
            ip("-n", self.namespaces["outside"], "addr", "flush", "dev", "tap1")
            self.set_mtu("tap1", self.mtu)
        self.do(" && ".join(f"load {name}" for name in MODULES))
        self.do(f"ip addr add {MEET['rxe']}/24 dev eth0; ip link set eth0 up")
        self.do(f"ip addr add {WIRE['rxe']}/24 dev eth1; ip link set eth1 mtu {self.mtu} up")
        self.do("rdma link add rxe0 type rxe netdev eth1")
        if self.loss:
            self.pair("outside", "lossy", "outside", "soft")
            self.start_python("outside", "forwarder.py", "tap1", "lossy", self.loss, 0, 1, until="ready")

    def environment(self, role, **extra):
        env = super().environment(role)
        if role == "soft":
            wire = f"vhost:{self.path('wire')}" if self.served_by else f"af_packet:{'soft' if self.loss else 'tap1'}"
            env.update(BYPASS_SOFT=wire, BYPASS_MAC=SOFT_MAC, BYPASS_ADDR=f"{WIRE['soft']}/24",
                       BYPASS_CONFIG=self.path("empty.toml"), **preload(LIBRARY))
        env.update(extra)
        return env

    def start_end(self, role, *command, timeout=60):
        """A program at one end, in the background; in the guest it is killed when its time is over."""
        if role == "soft":
            return self.start("soft", *command)
        return self.start_program(*command, timeout=timeout)

    def start_listener(self, role, *command, timeout=60):
        """A program at one end that listens for rdma_cm's connections, in the background. Returns it once it listens."""
        if role == "soft":
            return self.start("soft", *command, until="listens at port", BYPASS_LOG="debug")
        child = self.start_program(*command, timeout=timeout)
        # `rdma` shows the listeners of all programs. The one before this was killed, and has ended.
        self.do(f"until rdma resource show cm_id | grep LISTEN || [ -s {child}.code ]; do sleep 0.05; done", timeout)
        check(not self.program_has_ended(child), f"{command} ended before it listened")
        return child

    def await_listener(self, role, child, port):
        if role == "soft":
            self.until(lambda: child.poll() is not None or listens(port, child.pid), f"{child.args} listens", 30)
        else:
            self.await_port(port)

    def run_end(self, role, *command, timeout=60):
        """A program at one end, until it has ended well; returns what it said."""
        if role == "soft":
            return self.run("soft", *command, timeout=timeout).decode()
        return self.do(f"timeout {timeout} {' '.join(map(str, command))}", timeout + 10)

    def try_end(self, role, *command, timeout=60):
        """A program at one end, to its end; returns its exit code and what it said."""
        if role == "rxe":
            return self.run_in(f"timeout -s KILL {timeout} {' '.join(map(str, command))}", timeout + 10)
        child = self.start("soft", *command)
        return self.end(child, timeout), self.output(child)

    def end_end(self, role, child, timeout=30):
        """A program that was started ends well by itself; returns what it said."""
        if role == "soft":
            code, said = self.end(child, timeout), self.output(child)
        else:
            code, said = self.end_program(child, timeout)
        check(code == 0, f"the {role} end: exit {code}: {said}")
        return said

    def has_ended(self, role, child):
        return child.poll() is not None if role == "soft" else self.program_has_ended(child)

    def kill_end(self, role, child):
        if role == "soft":
            self.kill(child)
        else:
            self.kill_program(child)


def other(role):
    return {"rxe": "soft", "soft": "rxe"}[role]
