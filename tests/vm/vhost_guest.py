"""A guest's kernel in front of a vhost: port: redis on this machine under libbypass, its client the guest's TCP."""
import os

from card import long_form
from machine import Machine
from harness import LONG, check, run_named
from veth_wire import Namespaces

CASES = {}
OURS, GUEST = "10.67.0.1", "10.67.0.2"
REDIS = 6379
BULK = 50_000_000 if LONG else 2_000_000


def case(function):
    CASES[function.__name__] = function


def wired_card(device="", slot=False, number=0):
    """QEMU's card on a vhost: port; `device` are further options of the card. In a slot it can be pulled out."""
    # Without KVM, QEMU 7.2 ends with SIGSEGV as soon as a guest takes MSI-X of a vhost-user card, also of a single one:
    # msix_set_vector_notifiers() asks KVM, which is not there. No option of the card avoids that but vectors=0.
    return ",".join(filter(None, ("virtio-net-pci", f"netdev=n{number}", "vectors=0", "romfile=", f"id=card{number}", device,
                                  "bus=slot0" if slot else "")))


def wired_devices(wire, card, memory, slot=False, number=0):
    """QEMU's words for a card on the vhost: port whose socket is `wire`."""
    return ["-object", f"memory-backend-memfd,id=memory,size={memory}M,share=on", "-machine", "memory-backend=memory",
            "-chardev", f"socket,id=wire,path={wire}", "-netdev", f"vhost-user,id=n{number},chardev=wire",
            *(["-device", "pcie-root-port,id=slot0,chassis=1,slot=1"] if slot else []), "-device", card]


class Asking(Machine):
    """A guest whose kernel asks redis at `ours` through a card on a vhost: port."""
    ours, own = OURS, GUEST

    def connect_guest(self):
        self.do("load virtio_pci && load virtio_net")
        self.until(self.is_there, "the guest's interface", 30)
        self.do(f"ip addr add {self.own}/24 dev eth0; ip link set eth0 up")
        self.do(f"for i in $(seq 100); do ping -c 1 -W 1 {self.ours} >/dev/null && exit_ok=1 && break; done; [ \"$exit_ok\" = 1 ]", 120)

    def is_there(self):
        return self.run_in("[ -e /sys/class/net/eth0 ]")[0] == 0

    def store(self, count=BULK):
        """A value there and back."""
        self.do(f"head -c {count} /dev/urandom >/tmp/value")
        self.do(f"redis-cli -h {self.ours} -x set v </tmp/value | grep -q OK", 300)
        self.do(f"redis-cli -h {self.ours} get v | head -c {count} | cmp - /tmp/value", 300)


class Wired(Asking):
    """The role `ours` has redis on the guest's port, and on the other `ports`, a list of socket and address; `outside` has
    QEMU."""

    def __init__(self, device="", slot=False, ports=()):
        self.card, self.slot = wired_card(device, slot), slot
        self.wires = [("wire", OURS), *ports]
        super().__init__([], taps=0, iommu=False, before=lambda machine: machine.serve(), resets=True)

    def is_ours(self, role):
        return role == "ours"

    def environment(self, role, **extra):
        # Machine's programs are the kernel's; these are the wires'.
        env = super().environment(role)
        if self.is_ours(role):
            env["BYPASS_ADDR"] = ";".join(f"{address}/24" for _, address in self.wires)
        env.update(extra)
        return env

    def address_of(self, role):
        return OURS

    def serve(self):
        self.port = ";".join(f"vhost:{self.path(name)}" for name, _ in self.wires)
        self.redis = self.start("ours", "redis-server", "--bind", *(address for _, address in self.wires), "--protected-mode",
                                "no", "--save", "", until="Ready to accept connections")
        self.devices = wired_devices(self.path("wire"), self.card, self.memory, self.slot)
        for name, _ in self.wires:
            self.until(lambda: os.path.exists(self.path(name)), "the port's socket")

    def start_load(self):
        """Values go to redis without end."""
        self.do("head -c 2000000 /dev/urandom >/tmp/load")
        begun = self.carried()
        self.do(f"back loading sh -c 'while redis-cli -h {OURS} -x set load </tmp/load; do :; done'")
        self.until(lambda: self.carried() > begun + 1_000_000, "the load is on the wire", 120)

    def carried(self):
        return int(self.do("cat /sys/class/net/eth0/statistics/tx_bytes"))

    def negotiated(self, bit):
        """Whether the guest's driver and the port agreed on a feature (virtio 1.2, chapter 6)."""
        return self.do("cat /sys/class/net/eth0/device/features").strip()[bit] == "1"

    def is_asked(self, count=BULK):
        """The guest's kernel has the card, and a value's bytes are whole; redis has not ended."""
        self.connect_guest()
        self.store(count)
        check(self.redis.poll() is None, "redis has ended")


@case
def vhost_guest():
    """The guest's kernel asks redis, moves a value both ways, reboots, and does so again."""
    with Wired() as guest:
        guest.is_asked()
        guest.monitor("system_reset")
        guest.start_over()
        guest.is_asked()


# Bits of virtio's features.
INDIRECT, PACKED = 28, 34


def vhost_guest_rings():
    """Without indirect descriptors, and with the packed form of rings asked for: right, or not agreed on."""
    long_form()
    for device, bit in (("indirect_desc=off", INDIRECT), ("mrg_rxbuf=off", None), ("packed=on", PACKED)):
        with Wired(device) as guest:
            guest.is_asked()
            print(device, "" if bit is None else f"feature {bit}: {guest.negotiated(bit)}")


def vhost_guest_rebooted():
    """The guest is reset under load."""
    long_form()
    with Wired() as guest:
        guest.connect_guest()
        guest.start_load()
        guest.monitor("system_reset")
        guest.start_over()
        guest.is_asked()


def vhost_guest_unplugged():
    """The card is pulled out of the guest under load, and put back."""
    long_form()
    with Wired(slot=True) as guest:
        guest.connect_guest()
        guest.start_load()
        guest.monitor("device_del card0")
        guest.until(lambda: not guest.is_there(), "the guest's kernel has given the card back", 30)
        # QEMU has the slot free a moment after the guest has let the card go.
        guest.until(lambda: "rror" not in guest.monitor(f"device_add {guest.card}"), "QEMU adds the card", 30)
        guest.is_asked()


def vhost_guest_stopped():
    """The machine is stopped under load, and goes on."""
    long_form()
    with Wired() as guest:
        guest.connect_guest()
        guest.start_load()
        guest.monitor("stop")
        guest.until(lambda: "paused" in guest.monitor("info status"), "the machine stands", 30)
        guest.monitor("cont")
        guest.is_asked()


class Beside(Asking):
    """A second guest, on another port of the same process."""
    ours, own = "10.67.1.1", "10.67.1.2"

    def __init__(self, wire, device=""):
        super().__init__(wired_devices(wire, wired_card(device), 1024), taps=0, iommu=False)


def vhost_guests():
    """Two guests on two ports of one process, which move values at the same time."""
    long_form()
    with Wired(ports=[("wire2", Beside.ours)]) as guest, Beside(guest.path("wire2")) as beside:
        guest.connect_guest()
        beside.connect_guest()
        guest.start_load()
        beside.store()
        guest.store()
        check(guest.redis.poll() is None, "redis has ended")


for each in (vhost_guests, vhost_guest_rings, vhost_guest_rebooted, vhost_guest_unplugged, vhost_guest_stopped):
    case(each)

if __name__ == "__main__":
    run_named(CASES, "served")
