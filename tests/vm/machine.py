"""A guest in QEMU and what it is connected to. No KVM is needed; a guest is up in three seconds.

A guest's card is a tap interface at this end, in a namespace of its own, where the kernel's TCP has 10.66.0.9. The guest
obeys through its second serial port (`Machine.run`)."""
import os
import re
import socket
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "system"))
import image
from harness import BUILD, Skip, check
from veth_wire import Namespaces, ip

GUEST, OUTSIDE = "10.66.0.1", "10.66.0.9"
MAC = "52:54:00:00:00:01"
LIBRARIES = ("libbypass.so", "libbypass-dpdk.so", "libbypass-cards.so", "libbypass-crash.so", "libbypass-toml.so")
PROGRAMS = ("bypass", "bin/netbench", "bin/io_ports", "bin/confined", "bin/mute")
# virtio's newer form goes through the IOMMU only if it is told to; the legacy form cannot.
CARDS = {
    "e1000e": "e1000e", "e1000": "e1000", "vmxnet3": "vmxnet3",
    "virtio": "virtio-net-pci,disable-legacy=on,iommu_platform=on,ats=on",
    "virtio-legacy": "virtio-net-pci,disable-modern=on",
}


def made(path, programs=(), built=LIBRARIES + PROGRAMS, kernel=image.DEBIAN, **texts):
    """The image, this build's files, and files of this machine's, as one; returns the kernel beside it."""
    try:
        folder = image.ready(kernel)
    except image.Missing as reason:
        raise Skip(str(reason)) from None
    built = [(os.path.join(BUILD, name), f"b/{os.path.basename(name)}") for name in built
             if os.path.exists(os.path.join(BUILD, name))]
    image.overlay(path, built, programs, **texts)
    with open(path, "rb") as file:
        over = file.read()
    with open(path, "wb") as out:
        out.write(image.read(os.path.join(folder, "root.cpio")) + over)
    return os.path.join(folder, "vmlinux")


def command(kernel, archive, devices, iommu=True, words="", memory=1024, resets=False):
    """QEMU's command line up to its serial ports."""
    vtd = ["-device", "intel-iommu,intremap=on,caching-mode=on,device-iotlb=on"] if iommu else []
    return ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", str(memory), "-machine", "q35",
            "-kernel", kernel, "-initrd", archive, "-nodefaults", "-display", "none", *([] if resets else ["-no-reboot"]), *vtd, *devices,
            "-append", f"console=ttyS0 quiet panic=-1 {'intel_iommu=on' if iommu else ''} {words}"]


def card_words(card, number=0, slot=False):
    """Of QEMU's device; in a slot it can be added and removed while the guest runs."""
    place = [f"bus=slot{number}"] if slot else []
    return [*CARDS[card].split(","), f"netdev=n{number}", f"id=card{number}", f"mac={MAC[:-1]}{1 + number}", "romfile=", *place]


def tap_card(card, number=0, slot=False):
    """The options of a card on tap interface tap<number>."""
    port = ["-device", f"pcie-root-port,id=slot{number},chassis={1 + number},slot={1 + number}"] if slot else []
    return [*port, "-netdev", f"tap,id=n{number},ifname=tap{number},script=no,downscript=no",
            "-device", ",".join(card_words(card, number, slot))]


class Machine(Namespaces):
    """A guest. The role `outside` is where its cards' other ends are."""
    programs = ()  # of this machine's that the guest has, too
    built = LIBRARIES + PROGRAMS  # of this build that the guest has
    kernel = image.DEBIAN

    def __init__(self, devices, taps=1, iommu=True, memory=1024, before=None, resets=False):
        self.devices, self.taps, self.iommu, self.memory = devices, taps, iommu, memory
        self.before, self.resets = before, resets
        self.shell = self.monitor_socket = None
        super().__init__("", ["outside"])

    def place(self, role):
        return "outside"

    def is_ours(self, role):
        return False

    def build(self):
        name = self.namespaces["outside"]
        for number in range(self.taps):
            ip("-n", name, "tuntap", "add", f"tap{number}", "mode", "tap")
            ip("-n", name, "addr", "add", f"10.66.{number}.9/24", "dev", f"tap{number}")
            ip("-n", name, "link", "set", f"tap{number}", "up")
        kernel = made(self.path("root.cpio"), self.programs, self.built, self.kernel)
        if self.before is not None:
            self.before(self)
        words = command(kernel, self.path("root.cpio"), self.devices, self.iommu, memory=self.memory, resets=self.resets)
        self.qemu = self.start(
            "outside", *words, "-serial", f"file:{self.path('console')}",
            "-serial", f"unix:{self.path('shell')},server=on,wait=off", "-monitor", f"unix:{self.path('monitor')},server=on,wait=off")
        self.shell = self.connect("shell")
        self.start_over()

    def address_outside(self, prefix, tap="tap0"):
        ip("-n", self.namespaces["outside"], "addr", "add", prefix, "dev", tap)

    def set_mtu(self, tap, bytes_):
        ip("-n", self.namespaces["outside"], "link", "set", tap, "mtu", str(bytes_))

    def start_over(self):
        """Until the guest is there: at first, and after a reset."""
        self.said = b""
        self.hear(rb"@ready@\r?\n", "its start", 120)

    def connect(self, name):
        end = socket.socket(socket.AF_UNIX)
        self.until(lambda: end.connect_ex(self.path(name)) == 0 or self.qemu.poll() is not None, f"QEMU's {name}", 30)
        check(self.qemu.poll() is None, f"QEMU has ended: {self.output(self.qemu)}")
        return end

    def __exit__(self, kind, *rest):
        if kind is not None and os.path.exists(self.path("console")):
            print(f"--- the guest's console\n{self.console()[-3000:]}", file=sys.stderr)
        super().__exit__(kind, *rest)

    def console(self):
        with open(self.path("console"), errors="replace") as file:
            return file.read()

    def run_in(self, line, timeout=60):
        """Has the guest's shell run a line; returns its exit status and what it said."""
        line = line.strip().rstrip(";")
        mark = f"@{time.monotonic_ns()}@"
        self.shell.sendall(f"{{ {line}; }} </dev/null 2>&1; echo \"{mark}$?{mark}\"\n".encode())
        found = self.hear(rf"(.*?){mark}(\d+){mark}\r?\n".encode(), line, timeout)
        return int(found.group(2)), found.group(1).decode(errors="replace").replace("\r", "")

    def hear(self, pattern, what, timeout):
        """What the guest's shell says up to a pattern."""
        deadline = time.monotonic() + timeout
        while not (found := re.search(pattern, self.said, re.S)):
            left = deadline - time.monotonic()
            check(left > 0, f"the guest is silent for {timeout} s after: {what}; {self.said[-500:]!r}")
            self.shell.settimeout(min(left, 1))
            try:
                part = self.shell.recv(65536)
                check(part, f"the guest has ended after: {what}")
                self.said += part
            except socket.timeout:
                pass
        self.said = self.said[found.end():]
        return found

    def do(self, line, timeout=60):
        """The same, and it has to succeed."""
        status, said = self.run_in(line, timeout)
        check(status == 0, f"the guest's {line} ended with {status}: {said}")
        return said

    def logged(self, name):
        """What a program in the background has said."""
        return self.do(f"cat /tmp/{name}")

    def monitor(self, line):
        """One command of QEMU's monitor."""
        with self.connect("monitor") as end:
            end.sendall(line.encode() + b"\n")
            end.settimeout(5)
            said = b""
            while said.count(b"(qemu)") < 2:
                said += end.recv(65536)
            return said.decode(errors="replace")
