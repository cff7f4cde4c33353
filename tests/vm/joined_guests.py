"""Two guests on one wire, each with rxe0 on its end; their kernels keep the interfaces."""
from machine import MAC
from roce import MODULES, GuestPrograms, programs

ADDRESSES = {"server": "10.66.0.1", "client": "10.66.0.2"}


class Joined(GuestPrograms):
    """One of the two; `other` is the one that was made before."""
    built = ()
    card, driver = "e1000e", "e1000e"  # QEMU's name, and the guest's module

    def __init__(self, role, other=None):
        self.role, self.other, self.programs = role, other, programs()
        super().__init__([], taps=0, iommu=False, before=Joined.connect_card)

    def connect_card(self):
        first = self if self.other is None else self.other
        ends = [first.path("wire-server"), first.path("wire-client")]
        own, far = ends if self.role == "server" else reversed(ends)
        self.devices = ["-netdev", f"dgram,id=n0,local.type=unix,local.path={own},remote.type=unix,remote.path={far}",
                        "-device", f"{self.card},netdev=n0,mac={MAC[:-1]}{1 if self.role == 'server' else 2},romfile="]

    def build(self):
        super().build()
        self.do(f"load virtio_pci && load {self.driver} && " + " && ".join(f"load {name}" for name in MODULES[2:]))
        self.do(f"ip addr add {ADDRESSES[self.role]}/24 dev eth0; ip link set eth0 up; rdma link add rxe0 type rxe netdev eth0")
