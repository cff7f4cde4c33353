"""A guest's kernel in front of a vhost: port: redis on this machine under libbypass, its client the guest's TCP."""
import os

from machine import Machine
from harness import LONG, check, run_named
from veth_wire import Namespaces

CASES = {}
OURS, GUEST = "10.67.0.1", "10.67.0.2"
REDIS = 6379
BULK = 50_000_000 if LONG else 2_000_000


def case(function):
    CASES[function.__name__] = function


class Wired(Machine):
    """A guest whose card is a vhost: port's. The role `ours` has redis on that port; `outside` has QEMU."""

    def __init__(self, device="virtio-net-pci"):
        self.device = device
        super().__init__([], taps=0, iommu=False, before=lambda machine: machine.serve(), resets=True)

    def is_ours(self, role):
        return role == "ours"

    def address_of(self, role):
        return OURS

    def environment(self, role, **extra):
        # Machine's programs are the kernel's; these are the wire's.
        return Namespaces.environment(self, role, **extra)

    def serve(self):
        self.port = f"vhost:{self.path('wire')}"
        self.redis = self.start("ours", "redis-server", "--bind", OURS, "--protected-mode", "no", "--save", "",
                                until="Ready to accept connections")
        # QEMU 7.2 ends with SIGSEGV when a guest under TCG takes MSI-X interrupts of a vhost-user card: vectors=0.
        self.devices = ["-object", f"memory-backend-memfd,id=memory,size={self.memory}M,share=on",
                        "-machine", "memory-backend=memory", "-chardev", f"socket,id=wire,path={self.path('wire')}",
                        "-netdev", "vhost-user,id=n0,chardev=wire", "-device", f"{self.device},netdev=n0,vectors=0,romfile="]
        self.until(lambda: os.path.exists(self.path("wire")), "the port's socket")

    def connect_guest(self):
        self.do("load virtio_pci && load virtio_net")
        self.do(f"ip addr add {GUEST}/24 dev eth0 && ip link set eth0 up")
        self.do(f"for i in $(seq 100); do ping -c 1 -W 1 {OURS} >/dev/null && exit_ok=1 && break; done; [ \"$exit_ok\" = 1 ]", 120)

    def store(self, count):
        """A value there and back."""
        self.do(f"head -c {count} /dev/urandom >/tmp/value")
        self.do(f"redis-cli -h {OURS} -x set v </tmp/value | grep -q OK", 300)
        self.do(f"redis-cli -h {OURS} get v | head -c {count} | cmp - /tmp/value", 300)


@case
def vhost_guest():
    """The guest's kernel asks redis, moves a value both ways, reboots, and does so again."""
    with Wired() as guest:
        guest.connect_guest()
        guest.store(BULK)
        guest.monitor("system_reset")
        guest.start_over()
        guest.connect_guest()
        guest.store(BULK)
        check(guest.redis.poll() is None, "redis has ended")


if __name__ == "__main__":
    run_named(CASES, "served")
